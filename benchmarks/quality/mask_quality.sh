#!/usr/bin/env bash
# What a way to prune costs in loss: nanoGPT's CPU setting (configs/shakespeare-char.toml, untied head) at 90 %
# sparsity and equal steps, masks chosen once, gradually, or moving while training goes on. Prints a table of the
# final validation loss and, per run, a line of JSON.
#
#   benchmarks/quality/mask_quality.sh TEXT [STEPS [SEED...]]     2000 steps, seeds 1 2 3
#
# Needs build/src/cli/espalier. WAYS chooses among the names below, SET adds settings to all runs.
set -euo pipefail
[ -r "${1:-}" ] || { echo "usage: mask_quality.sh TEXT [STEPS [SEED...]]" >&2; exit 2; }
text=$(realpath "$1")
steps=${2:-2000}
shift $(($# < 2 ? $# : 2))
seeds=("$@")
[ $# -gt 0 ] || seeds=(1 2 3)
cd "$(dirname "$0")/../.."
program=${ESPALIER:-build/src/cli/espalier}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

share() { echo $((steps * $1 / 100)); }  # percent of the steps
declare -A ways=(
  [dense]="method=none"
  [one-shot]="method=magnitude at_step=$(share 25)"
  [gradual]="method=magnitude from_step=$(share 20) to_step=$(share 80) every=$(share 2)"
  [gradual-late]="method=magnitude from_step=$(share 30) to_step=$(share 80) every=$(share 2)"
  [rigl]="method=rigl every=$(share 5)"
  [rigl-one-shot]="method=rigl at_step=$(share 25) every=$(share 5)"
  [rigl-gradual]="method=rigl from_step=$(share 20) to_step=$(share 80) every=$(share 2) drop_fraction=0.1"
  [set]="method=set every=$(share 5)"
  [random]="method=rigl drop_fraction=0"
)
order=(dense one-shot gradual gradual-late rigl rigl-one-shot rigl-gradual set random)

loss_of() { awk -F': ' '/"final_val_loss"/ { sub(",", "", $2); print $2 }' "$1"; }

table="| way | $(printf 'seed %s | ' "${seeds[@]}")mean |"$'\n'"|---$(printf '|---%.0s' "${seeds[@]}")|---|"
for way in ${WAYS:-${order[@]}}; do
  settings=()
  for setting in ${ways[$way]}; do settings+=(--set "pruning.$setting"); done
  row="| $way |"
  losses=()
  for seed in "${seeds[@]}"; do
    # shellcheck disable=SC2086
    "$program" train configs/shakespeare-char.toml --resume none --out "$work/run" --set "data.train=[\"$text\"]" \
      --set model.tie_embeddings=false --set "train.steps=$steps" --set "train.seed=$seed" --set run.trace=false \
      "${settings[@]}" ${SET:-} 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
    loss=$(loss_of "$work/run/summary.json")
    losses+=("$loss")
    row+=$(printf ' %.4f |' "$loss")
    echo "{\"way\": \"$way\", \"settings\": \"${ways[$way]}\", \"steps\": $steps, \"seed\": $seed, \"final_val_loss\": $loss}"
  done
  mean=$(printf '%s\n' "${losses[@]}" | awk '{ sum += $1 } END { printf "%.4f", sum / NR }')
  table+=$'\n'"$row $mean |"
done
echo "$table"
