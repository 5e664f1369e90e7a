#!/usr/bin/env bash
# Does a wide pruned GPT fall from its first step? Trains 20 steps of one of 2 layers, WIDTH wide, 90 %
# random masks, without warm-up, with a constant rate; prints the losses of each parametrization.
#
#   benchmarks/quality/wide_start.sh TEXT [WIDTH]     4096; needs build/src/cli/espalier
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
width=${2:-4096}

for way in "standard 1e-4" "standard 1e-3" "supar-lr 1e-4" "supar-lr:128 1e-3"; do
  read -r parametrization lr <<<"$way"
  train data.kind=bytes model.tie_embeddings=false model.layers=2 "model.width=$width" \
    "model.heads=$((width / 64))" train.steps=20 train.global_batch=4 train.dtype=bf16 \
    train.eval_every=0 train.eval_batches=1 train.checkpoint_every=-1 optimizer.warmup_steps=0 \
    "optimizer.lr=$lr" "optimizer.min_lr=$lr" pruning.method=random pruning.scope=layer \
    sparse.storage=sparse "train.parametrization=$parametrization"
  python3 - "$run/metrics.jsonl" "$parametrization, lr $lr" <<'P'
import json, sys
losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
print(f"{sys.argv[2]}:", *(f"{loss:.2f}" for loss in losses))
P
done
