#!/usr/bin/env bash
# How well does src/train/codec_choice/learning_curve.h predict real validation losses? Trains small
# networks with different rates, schedules, optimizers, widths and precisions, then predicts the later
# part of each curve from its first part.
#
#   benchmarks/quality/learning_curve.sh TEXT [RUNS_DIR]     about 2 minutes; needs ./build with
#                                                            benchmarks; reuses curves in RUNS_DIR
#
# Prints Markdown: errors beside those of the last value and of a straight line, and how often the
# true loss lies within the stated deviations.
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
runs=${2:-$work/runs}
mkdir -p "$runs"

# curve NAME KEY=VALUE…
curve() {
  run=$runs/$1
  [ -s "$run/summary.json" ] || train model.layers=2 model.width=64 model.context=32 train.steps=600 \
    train.eval_every=10 train.eval_batches=20 train.checkpoint_every=-1 optimizer.warmup_steps=20 "${@:2}"
}

flat=optimizer.schedule=constant
for seed in 1 2; do
  curve "adamw-$seed" "$flat" train.seed=$seed
done
curve adamw-slow "$flat" optimizer.lr=1e-4
curve adamw-fast "$flat" optimizer.lr=5e-3
curve adamw-cosine
curve adamw-bf16 "$flat" train.dtype=bf16
curve adamw-small-batch "$flat" train.global_batch=4
curve adamw-wide "$flat" model.width=128
curve sgd "$flat" optimizer.kind=sgd optimizer.lr=0.1
curve sgd-fast "$flat" optimizer.kind=sgd optimizer.lr=0.5
curve sparse-early pruning.method=random pruning.at_step=0 "$flat"
curve deep "$flat" model.layers=6 train.eval_batches=10

build/benchmarks/learning_curve_benchmark "$runs"/*/metrics.jsonl
