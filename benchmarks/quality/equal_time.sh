#!/usr/bin/env bash
# Does sparse training give a better model in the same time? Trains a dense GPT (6 layers, 6 heads,
# 384 wide, context 256, batch 8) and 90 % sparse ones of 1, 2 and 3 times its width. Each takes as
# many steps as fit into SECONDS on this machine (a short run measures them), and its learning rate
# falls to the minimum within that time.
#
#   benchmarks/quality/equal_time.sh TEXT [SECONDS [SVG]]     600; needs build/src/cli/espalier
#
#   random-W   random mask from the start, storage sparse
#   pruned-W   gradual magnitude pruning between 10 and 50 % of the steps, storage sparse
#
# Prints lines run=… minutes=… val_loss=… and a table, and draws SVG. Minutes are those of training
# steps, without evaluations; a step of over five times the median (the program was stopped) counts
# as the median. RUNS chooses among the runs; DTYPE (bf16) and SET change all. Run it on an idle
# machine.
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
seconds=${2:-600}
svg=${3:-}
random=(pruning.method=random pruning.at_step=0)

# train_gpt WIDTH STEPS EVAL_EVERY KEY=VALUE…
train_gpt() {
  train model.layers=6 "model.heads=$(($1 / 64))" "model.width=$1" model.context=256 \
    model.tie_embeddings=false train.global_batch=8 "train.dtype=${DTYPE:-bf16}" "train.steps=$2" \
    "train.eval_every=$3" train.eval_batches=20 sparse.storage=sparse "${@:4}"
}

# step_ms WIDTH KEY=VALUE…: milliseconds of a step
step_ms() {
  train_gpt "$1" 12 0 "${@:2}" train.eval_batches=1
  median step_ms
}

for name in ${RUNS:-dense-384 random-384 random-768 random-1152 pruned-384 pruned-768 pruned-1152}; do
  width=${name#*-}
  case $name in
    dense-*) steps=$(python3 -c "print(int($seconds * 1e3 / $(step_ms "$width")))") settings=() ;;
    random-*)
      steps=$(python3 -c "print(int($seconds * 1e3 / $(step_ms "$width" "${random[@]}")))")
      settings=("${random[@]}") ;;
    pruned-*)
      # While the density falls, it passes values at which sparse products are slower than dense
      # ones. Estimate: half of the steps take the time of a dense step, half that of a sparse one.
      steps=$(python3 -c "print(int($seconds * 1e3 / (0.5 * $(step_ms "$width") + 0.5 * $(step_ms "$width" "${random[@]}"))))")
      settings=(pruning.method=magnitude "pruning.from_step=$((steps / 10))" "pruning.to_step=$((steps / 2))"
        "pruning.every=$((steps / 100 + 1))") ;;
  esac
  train_gpt "$width" "$steps" $((steps / 20 + 1)) "${settings[@]}"
  python3 - "$name" "$run/metrics.jsonl" <<'P'
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
