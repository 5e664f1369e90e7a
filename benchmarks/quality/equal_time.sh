#!/usr/bin/env bash
# Does sparse training give a better model in the same time? A dense GPT (6 layers, 6 heads, 384 wide, context 256,
# batch 8) beside 90 % sparse ones of 1, 2 and 3 times its width, each trained for as many steps as fit into SECONDS
# on this machine (a short run finds out), learning rate to its minimum within that time.
#   benchmarks/quality/equal_time.sh TEXT [SECONDS [SVG]]     600; needs ./build/espalier and a machine left alone
#   random-W   random mask from the start, storage sparse
#   pruned-W   gradual magnitude pruning over 10-50 % of the steps, storage sparse
# Prints run=… minutes=… val_loss=… lines (minutes of training: evaluations are not counted, and a step of over five times
# the median, in which somebody stopped the program, counts as the median), a table, and draws SVG. RUNS chooses, DTYPE
# (bf16) and SET change all.
set -euo pipefail
cd "$(dirname "$0")/../.."
text=$(realpath "$1")
seconds=${2:-600}
svg=${3:-}
program=${ESPALIER:-build/src/cli/espalier}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# train WIDTH STEPS EVAL_EVERY settings… → $work/run
train() {
  local width=$1 steps=$2 every=$3
  shift 3
  local settings=()
  for setting in "$@"; do settings+=(--set "$setting"); done
  # shellcheck disable=SC2086
  "$program" train configs/shakespeare-char.toml --resume none --out "$work/run" --set "data.train=[\"$text\"]" \
    --set model.layers=6 --set "model.heads=$((width / 64))" --set "model.width=$width" --set model.context=256 \
    --set model.tie_embeddings=false --set train.global_batch=8 --set "train.dtype=${DTYPE:-bf16}" \
    --set "train.steps=$steps" --set "train.eval_every=$every" --set train.eval_batches=20 --set run.trace=false \
    --set sparse.storage=sparse "${settings[@]}" ${SET:-} >/dev/null 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
}
random=(pruning.method=random pruning.at_step=0)

# step_ms WIDTH settings… → median milliseconds of a step
step_ms() {
  train "$1" 12 0 "${@:2}" train.eval_batches=1
  python3 -c "
import json, statistics, sys
rows = [json.loads(line)['step_ms'] for line in open(sys.argv[1])]
print(statistics.median(rows[len(rows) // 2:]))" "$work/run/metrics.jsonl"
}

for run in ${RUNS:-dense-384 random-384 random-768 random-1152 pruned-384 pruned-768 pruned-1152}; do
  width=${run#*-}
  case $run in
    dense-*) steps=$(python3 -c "print(int($seconds * 1e3 / $(step_ms "$width")))") settings=() ;;
    random-*)
      steps=$(python3 -c "print(int($seconds * 1e3 / $(step_ms "$width" "${random[@]}")))")
      settings=("${random[@]}") ;;
    pruned-*)
      # On its way down the density passes values at which sparse products lose to dense ones: there a step takes
      # about as long as a dense one, on average.
      steps=$(python3 -c "print(int($seconds * 1e3 / (0.5 * $(step_ms "$width") + 0.5 * $(step_ms "$width" "${random[@]}"))))")
      settings=(pruning.method=magnitude "pruning.from_step=$((steps / 10))" "pruning.to_step=$((steps / 2))"
        "pruning.every=$((steps / 100 + 1))") ;;
  esac
  train "$width" "$steps" $((steps / 20 + 1)) "${settings[@]}"
  python3 - "$run" "$work/run/metrics.jsonl" <<'P'
import json, statistics, sys
run, path = sys.argv[1:]
rows = [json.loads(line) for line in open(path)]
median = statistics.median(row["step_ms"] for row in rows)
ms = 0.0
for row in rows:
    ms += row["step_ms"] if row["step_ms"] < 5 * median else median
    if "val_loss" in row:
        print(f"run={run} step={row['step']} minutes={ms / 6e4:.3f} val_loss={row['val_loss']:.4f}", flush=True)
P
done | tee "$work/lines"
python3 benchmarks/quality/plot.py time "$work/lines" "$svg"
