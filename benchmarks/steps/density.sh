#!/usr/bin/env bash
# At which density does each storage beat dense training? Training steps of case B (6 layers, 6 heads,
# 384 wide, context 256, batch 8) with random masks of decreasing density, storages alternating; one
# process, all cores.
#
#   benchmarks/steps/density.sh TEXT [ROUNDS [SVG]]      2 rounds; needs build/src/cli/espalier
#
# Prints a line per run, then a table; draws the curves into SVG. PYTORCH_FP32 and PYTORCH_BF16
# (tokens/s) add lines for comparison.
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
rounds=${2:-2}
svg=${3:-}

# tokens_per_s DTYPE STORAGE DENSITY
tokens_per_s() {
  local pruning=(pruning.method=random pruning.at_step=0 "sparse.storage=$2"
    "pruning.sparsity=$(python3 -c "print(round(1 - $3, 4))")")
  [ "$3" != 1 ] || pruning=()
  train model.layers=6 model.heads=6 model.width=384 model.context=256 train.global_batch=8 \
    "train.steps=${STEPS:-12}" "train.dtype=$1" train.eval_every=0 train.eval_batches=1 \
    optimizer.warmup_steps=10 "${pruning[@]}"
  median tokens_per_s
}

for round in $(seq "$rounds"); do
  for dtype in fp32 bf16; do
    rate=$(tokens_per_s "$dtype" dense 1)
    echo "round=$round dtype=$dtype storage=unpruned density=1 tokens_per_s=$rate"
    for density in 0.5 0.4 0.3 0.2 0.1 0.05 0.02 0.01; do
      for storage in dense expanded sparse; do
        rate=$(tokens_per_s "$dtype" "$storage" "$density")
        echo "round=$round dtype=$dtype storage=$storage density=$density tokens_per_s=$rate"
      done
    done
  done
done | tee "$work/lines"

python3 benchmarks/quality/plot.py density "$work/lines" "$svg" \
  ${PYTORCH_FP32:+"fp32 PyTorch=$PYTORCH_FP32"} ${PYTORCH_BF16:+"bf16 PyTorch=$PYTORCH_BF16"}
