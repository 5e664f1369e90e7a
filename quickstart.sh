#!/usr/bin/env bash
# quickstart.sh: from a bare Debian or Ubuntu to two trained networks, side by side. Installs missing packages,
# builds, makes a text, trains a small GPT dense and the same one 90 % sparse on two ranks, for equal
# time, compares them, and samples text from the sparse one. About 7 minutes on two cores; a second
# call reuses the results of the first.
set -euo pipefail
cd "$(dirname "$0")"

ranks=2
build=build
program=$build/src/cli/espalier
text=data/text.txt
dense=runs/quickstart-dense
sparse=runs/quickstart-sparse

if [ $# -gt 0 ]; then
  echo "usage: $0    (no options; to train again, remove $dense and $sparse)" >&2
  exit 2
fi

say() { printf '\n== %s (%d:%02d)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

# Silences Open MPI's warnings about hardware that a container hides and about unused transports.
export OMPI_MCA_btl_base_warn_component_unused=0
export HWLOC_HIDE_ERRORS=2 PMIX_MCA_psec=native PMIX_MCA_gds=hash
# A rank's standard error is a pipe to mpirun. This variable tells the rank that a terminal shows it.
if [ -t 2 ]; then
  export ESPALIER_TERMINAL=1
fi

finished() { grep -qs '"finished": *true' "$1/summary.json"; }

train() {  # CONFIG RUN_DIR [OPTION…]
  if finished "$2"; then
    echo "$2 is complete: used again. Remove it to train again."
    return
  fi
  scripts/mpirun.sh "$ranks" "$program" train "$1" --out "$2" --resume auto "${@:3}"
}

number() {  # KEY RUN_DIR: of its summary
  sed -n "s/^ *\"$1\": *\([0-9.]*\).*/\1/p" "$2/summary.json" | head -n 1
}

# The steps that the sparse network takes in the time of the dense run, by a trial of 40 steps; those
# of an earlier call, if it was interrupted.
sparse_steps() {
  if [ ! -s $sparse.steps ]; then
    scripts/mpirun.sh "$ranks" "$program" train configs/quickstart-sparse.toml \
      --out $sparse.trial --resume none --set train.steps=40 --set train.eval_every=0 --set train.eval_batches=1 \
      --set train.checkpoint_every=-1 >&2
    awk -v steps="$(number steps $dense)" -v dense="$(number tokens_per_s $dense)" \
      -v sparse="$(number tokens_per_s $sparse.trial)" \
      'BEGIN { print int(steps * sparse / dense) }' >$sparse.steps
    rm -r $sparse.trial
  fi
  cat $sparse.steps
}

say "Packages"
scripts/install-packages.sh

say "Build"
if [ ! -e $build/CMakeCache.txt ]; then
  # The program alone, for this CPU alone; test.sh turns the rest on in the same folder.
  cmake --preset release -DESPALIER_TESTS=OFF -DESPALIER_BENCHMARKS=OFF -DESPALIER_CPU_TABLES=native
fi
cmake --build $build --target espalier

say "Text"
if [ ! -s $text ]; then
  scripts/make-text.sh $text
fi
echo "$text: $(wc -c <$text) bytes of English prose"

say "Dense baseline, $ranks ranks"
train configs/quickstart-dense.toml $dense

say "The same with 90 % of its weights pruned at random before the first step, for the same time"
steps=$(sparse_steps)
echo "$steps steps instead of $(number steps $dense)"
train configs/quickstart-sparse.toml $sparse --set "train.steps=$steps"

say "Comparison"
"$program" report $dense $sparse -o runs/report.html
echo "Curves, memory and timeline: runs/report.html"

say "Text by the sparse network"
checkpoint=$(find $sparse/checkpoints -name 'step-*.h5' | sort | tail -n 1)
"$program" sample "$checkpoint" --prompt "The function returns " --tokens 400 --temperature 0.7 --seed 1
say "Done"
