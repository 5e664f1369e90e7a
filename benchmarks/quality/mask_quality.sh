#!/usr/bin/env bash
# What do pruning methods cost in loss? nanoGPT's CPU setting (configs/shakespeare-char.toml, untied
# head) at 90 % sparsity and equal steps, with masks chosen once, gradually, or moving during
# training. Prints a line of JSON per run, and a table of the final validation losses.
#
#   benchmarks/quality/mask_quality.sh TEXT [STEPS [SEED...]]     2000 steps, seeds 1 2 3
#
# Needs build/src/cli/espalier. WAYS chooses among the names below; SET adds settings to all runs.
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
steps=${2:-2000}
seeds=("${@:3}")
[ $# -gt 2 ] || seeds=(1 2 3)

share() { echo $((steps * $1 / 100)); }  # percent of the steps
declare -A ways=(
  [dense]="method=none"
  [one-shot]="method=magnitude at_step=$(share 25)"
  [gradual]="method=magnitude from_step=$(share 20) to_step=$(share 80) every=$(share 2)"
  [gradual-late]="method=magnitude from_step=$(share 30) to_step=$(share 80) every=$(share 2)"
  [rigl]="method=rigl every=$(share 5)"
  [rigl-one-shot]="method=rigl at_step=$(share 25) every=$(share 5)"
  [rigl-gradual]="method=rigl:0.1 from_step=$(share 20) to_step=$(share 80) every=$(share 2)"
  [set]="method=set every=$(share 5)"
  [random]="method=rigl:0"
)
order=(dense one-shot gradual gradual-late rigl rigl-one-shot rigl-gradual set random)

loss_of() { awk -F': ' '/"final_val_loss"/ { sub(",", "", $2); print $2 }' "$1"; }

table="| way | $(printf 'seed %s | ' "${seeds[@]}")mean |"$'\n'"|---$(printf '|---%.0s' "${seeds[@]}")|---|"
for way in ${WAYS:-${order[@]}}; do
  settings=()
  for setting in ${ways[$way]}; do settings+=("pruning.$setting"); done
  row="| $way |"
  losses=()
  for seed in "${seeds[@]}"; do
    train train.parametrization=standard model.tie_embeddings=false "train.steps=$steps" "train.seed=$seed" "${settings[@]}"
    loss=$(loss_of "$run/summary.json")
    losses+=("$loss")
    row+=$(printf ' %.4f |' "$loss")
    echo "{\"way\": \"$way\", \"settings\": \"${ways[$way]}\", \"steps\": $steps, \"seed\": $seed, \"final_val_loss\": $loss}"
  done
  mean=$(printf '%s\n' "${losses[@]}" | awk '{ sum += $1 } END { printf "%.4f", sum / NR }')
  table+=$'\n'"$row $mean |"
done
echo "$table"
