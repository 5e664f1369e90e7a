#!/usr/bin/env bash
# Which loss does Espalier reach? nanoGPT's CPU setting (case A, 2,000 steps), dense and pruned to 90 %
# at step 500, seeds 1, 2, 3: the runs of benchmarks/peers/quality.sh. Prints a line of JSON per run.
#
#   benchmarks/quality/quality.sh TEXT        needs build/src/cli/espalier
#
# DTYPES, SEEDS and TIES choose the runs; SET adds settings to all.
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"

for dtype in ${DTYPES:-fp32 bf16}; do
  for tied in ${TIES:-false}; do
    for seed in ${SEEDS:-1 2 3}; do
      for prune_at in -1 500; do
        pruning=(pruning.method=none)
        [ "$prune_at" = -1 ] || pruning=(pruning.method=magnitude "pruning.at_step=$prune_at")
        train train.parametrization=standard "model.tie_embeddings=$tied" "train.seed=$seed" "train.dtype=$dtype" "${pruning[@]}"
        awk -v head="{\"dtype\": \"$dtype\", \"tied\": $tied, \"seed\": $seed, \"prune_at\": $prune_at" '
          /"(final_val_loss|tokens_per_s|sparsity|model_state_bytes_per_parameter|allreduce_bytes_per_step)"/ {
            gsub(/^ +|,$/, ""); head = head ", " $0 }
          END { print head "}" }' "$run/summary.json"
      done
    done
  done
done
