#!/usr/bin/env bash
# run.sh [--small]: trains a GPT of 2.7 billion parameters, 90 % pruned, on this machine: on 2 ranks as 2 stages
# until a signal stops it, then from the saved checkpoint on 4 ranks as 2 stages x 2 replicas. Exports the
# weights, and prints a table of both runs. --small: the same with a network of 5 million parameters.
# Needs, results, and what to change for a cluster: docs/billion.md. Variables:
#   OUT     folder of the runs (default runs/billion; --small: runs/billion-small); its old runs are removed
#   TEXT    text to learn (default data/text.txt, made from the package perl-doc)
#   PROGRAM the program (default build/src/cli/espalier, built first)
set -euo pipefail
cd "$(dirname "$0")/../.."

config=examples/billion/gpt-2p7b.toml
case "${1-}" in
"")
  out=${OUT:-runs/billion}
  first=5 last=9  # steps: the signal comes during step `first`; the second run ends after `last`
  options=()
  ;;
--small)
  out=${OUT:-runs/billion-small}
  first=10 last=30
  options=(--set model.layers=6 --set model.heads=4 --set model.width=256)
  ;;
*)
  echo "usage: $0 [--small]" >&2
  exit 2
  ;;
esac
text=${TEXT:-data/text.txt}
program=${PROGRAM:-build/src/cli/espalier}
patience=1800  # s, for each step of the first run

say() { printf '\n== %s (%d:%02d)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

training=("$program" train $config --set "data.train=[\"$text\"]" ${options[@]+"${options[@]}"})

steps_of() { cat "$out/$1/metrics.jsonl" 2>/dev/null | wc -l; }

# row NAME WORD…: the first column is as wide as the report's.
row() { printf '%-28s %16s %16s\n' "$@"; }

# metric KEY RUN LINE: a number of metrics.jsonl; LINE as for sed: 1 is the first, $ the last.
metric() { sed -n "$3s/.*\"$1\":\([-+.e0-9]*\).*/\1/p" "$out/$2/metrics.jsonl"; }

# summary KEY RUN: the first such number of summary.json.
summary() { sed -n "s/^ *\"$1\": *\([-+.e0-9]*\).*/\1/p" "$out/$2/summary.json" | head -n 1; }

gigabytes() { awk -v bytes="$1" 'BEGIN { printf "%.3f GB", bytes / 1e9 }'; }

say "Program and text"
if [ -z "${PROGRAM-}" ]; then
  scripts/install-packages.sh
  if [ ! -e build/CMakeCache.txt ]; then
    cmake --preset release -DESPALIER_TESTS=OFF -DESPALIER_BENCHMARKS=OFF -DESPALIER_CPU_TABLES=native
  fi
  cmake --build build --target espalier
fi
if [ ! -s "$text" ]; then
  scripts/make-text.sh "$text"
fi
rm -rf "$out/2-stages" "$out/2x2" "$out/weights.h5"
mkdir -p "$out"

say "2 ranks: 2 stages"
scripts/mpirun.sh 2 "${training[@]}" --out "$out/2-stages" --resume none &
launcher=$!
trap 'kill $launcher 2>/dev/null || true' EXIT
begin=$SECONDS done=0
while [ "$done" -lt $((first - 1)) ] && kill -0 $launcher 2>/dev/null; do
  sleep 0.2
  if [ "$(steps_of 2-stages)" != "$done" ]; then
    begin=$SECONDS done=$(steps_of 2-stages)
  elif [ $((SECONDS - begin)) -gt $patience ]; then
    echo "$0: no step in $patience s" >&2
    exit 1
  fi
done

say "A signal: mpirun passes SIGUSR1 to the ranks, which finish the step and save"
kill -USR1 $launcher 2>/dev/null || true
code=0
wait $launcher || code=$?
trap - EXIT
if [ $code != 4 ] && [ $code != 0 ]; then  # mpirun of MPICH may return 0 after a signal
  echo "$0: the first run ended with exit code $code, not with 4 (stopped and saved): docs/errors.md" >&2
  exit 1
fi
checkpoint=$(find "$out/2-stages/checkpoints" -name 'step-*.h5' | sort | tail -n 1)

say "4 ranks: 2 stages x 2 replicas, from $checkpoint"
scripts/mpirun.sh 4 "${training[@]}" --out "$out/2x2" --resume "$checkpoint" --steps $last

say "Export as dense fp32 arrays"
newest=$(find "$out/2x2/checkpoints" -name 'step-*.h5' | sort | tail -n 1)
"$program" export "$newest" -o "$out/weights.h5"
du -h "$newest" "$out/weights.h5"

say "Both runs"
"$program" report "$out/2-stages" "$out/2x2" -o "$out/report.html"
echo
row "" 2-stages 2x2
row "Peak memory of the ranks" "$(gigabytes "$(summary peak_rss 2-stages)")" "$(gigabytes "$(summary peak_rss 2x2)")"
row "Rank 0 sends in a step" "$(gigabytes "$(metric comm_bytes_sent 2-stages '$')")" \
  "$(gigabytes "$(metric comm_bytes_sent 2x2 '$')")"
row "Loss of the first step" "$(metric loss 2-stages 1 | cut -c -6)" "$(metric loss 2x2 1 | cut -c -6)"
row "Loss of the last step" "$(metric loss 2-stages '$' | cut -c -6)" "$(metric loss 2x2 '$' | cut -c -6)"
say "Done"
