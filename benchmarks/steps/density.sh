#!/usr/bin/env bash
# At which density does each storage beat dense training? Steps of case B (6 layers, 6 heads, 384 wide, context 256,
# batch 8) at random masks of decreasing density, storages in turns; one process, all cores.
#   benchmarks/steps/density.sh TEXT [ROUNDS [SVG]]      needs ./build/espalier; PYTORCH_FP32, PYTORCH_BF16 (tokens/s) add lines
# Prints a line a run, then a table, and draws the curve into SVG.
set -euo pipefail
cd "$(dirname "$0")/../.."
text=$(realpath "$1")
rounds=${2:-2}
svg=${3:-}
program=${ESPALIER:-build/src/cli/espalier}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run DTYPE STORAGE DENSITY → median tokens/s of the second half of the steps
run() {
  local prune=(--set pruning.method=random --set "pruning.sparsity=$(python3 -c "print(round(1 - $3, 4))")"
    --set pruning.at_step=0 --set "sparse.storage=$2")
  [ "$3" != 1 ] || prune=()
  "$program" train configs/shakespeare-char.toml --resume none --out "$work/run" \
    --set "data.train=[\"$text\"]" --set model.layers=6 --set model.heads=6 --set model.width=384 \
    --set model.context=256 --set train.global_batch=8 --set "train.steps=${STEPS:-12}" --set "train.dtype=$1" \
    --set train.eval_every=0 --set train.eval_batches=1 --set optimizer.warmup_steps=10 --set run.trace=false \
    "${prune[@]}" >/dev/null 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  python3 -c "
import json, statistics, sys
rows = [json.loads(line)['tokens_per_s'] for line in open(sys.argv[1])]
print(round(statistics.median(rows[len(rows) // 2:]), 1))" "$work/run/metrics.jsonl"
}

for round in $(seq "$rounds"); do
  for dtype in fp32 bf16; do
    echo "round=$round dtype=$dtype storage=unpruned density=1 tokens_per_s=$(run "$dtype" dense 1)"
    for density in 0.5 0.4 0.3 0.2 0.1 0.05 0.02 0.01; do
      for storage in dense expanded sparse; do
        echo "round=$round dtype=$dtype storage=$storage density=$density tokens_per_s=$(run "$dtype" "$storage" "$density")"
      done
    done
  done
done | tee "$work/lines"

python3 benchmarks/quality/plot.py density "$work/lines" "$svg" \
  ${PYTORCH_FP32:+"fp32 PyTorch=$PYTORCH_FP32"} ${PYTORCH_BF16:+"bf16 PyTorch=$PYTORCH_BF16"}
