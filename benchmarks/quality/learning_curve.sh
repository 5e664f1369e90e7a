#!/usr/bin/env bash
# How well src/train/codec_choice/learning_curve.h predicts real validation losses: trains small networks of different rates,
# schedules, optimizers, widths and precisions, then predicts from the first part of each curve what comes later.
#   benchmarks/quality/learning_curve.sh TEXT [RUNS_DIR]     needs ./build; about 2 minutes; curves in RUNS_DIR are used again
# Prints Markdown: errors beside those of the last value and of a straight line, and how often the truth lies within
# the stated deviations.
set -euo pipefail
cd "$(dirname "$0")/../.."
text=$(realpath "$1")
runs=${2:-$(mktemp -d)}
program=${ESPALIER:-build/src/cli/espalier}
mkdir -p "$runs"

train() {  # NAME OVERRIDES...
  local name=$1 arguments=()
  shift
  [ ! -s "$runs/$name/summary.json" ] || return 0
  for override in "$@"; do
    arguments+=(--set "$override")
  done
  "$program" train configs/shakespeare-char.toml --resume none --out "$runs/$name" --set "data.train=[\"$text\"]" \
    --set model.layers=2 --set model.width=64 --set model.context=32 --set train.steps=600 --set train.eval_every=10 \
    --set train.eval_batches=20 --set train.checkpoint_every=-1 --set optimizer.warmup_steps=20 \
    --set run.trace=false "${arguments[@]}" >/dev/null 2>"$runs/log" || { cat "$runs/log" >&2; exit 1; }
}

flat=optimizer.schedule=constant
for seed in 1 2; do
  train "adamw-$seed" "$flat" train.seed=$seed
done
train adamw-slow "$flat" optimizer.lr=1e-4
train adamw-fast "$flat" optimizer.lr=5e-3
train adamw-cosine
train adamw-bf16 "$flat" train.dtype=bf16
train adamw-small-batch "$flat" train.global_batch=4
train adamw-wide "$flat" model.width=128
train sgd "$flat" optimizer.kind=sgd optimizer.lr=0.1
train sgd-fast "$flat" optimizer.kind=sgd optimizer.lr=0.5
train sparse-early pruning.method=random pruning.at_step=0 "$flat"
train deep "$flat" model.layers=6 train.eval_batches=10

build/benchmarks/learning_curve_benchmark "$runs"/*/metrics.jsonl
