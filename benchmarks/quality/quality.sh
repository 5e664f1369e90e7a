#!/usr/bin/env bash
# The loss that is reached: Espalier at nanoGPT's CPU setting (case A, 2,000 steps), dense and pruned to 90 % at
# step 500, seeds 1, 2, 3: the runs of benchmarks/peers/quality.sh. Prints one line of JSON a run.
#
#   benchmarks/quality/quality.sh TEXT        needs build/src/cli/espalier; DTYPES, SEEDS, TIES and SET change the list
set -euo pipefail
cd "$(dirname "$0")/../.."
text=$(realpath "$1")
program=${ESPALIER:-build/src/cli/espalier}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for dtype in ${DTYPES:-fp32 bf16}; do
  for tied in ${TIES:-false}; do
    for seed in ${SEEDS:-1 2 3}; do
      for prune_at in -1 500; do
        prune=(--set pruning.method=none)
        [ "$prune_at" = -1 ] || prune=(--set pruning.method=magnitude --set "pruning.at_step=$prune_at")
        # shellcheck disable=SC2086
        "$program" train configs/shakespeare-char.toml --resume none --out "$work/run" \
          --set "data.train=[\"$text\"]" --set "model.tie_embeddings=$tied" --set "train.seed=$seed" \
          --set "train.dtype=$dtype" "${prune[@]}" ${SET:-} 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
        awk -v head="{\"dtype\": \"$dtype\", \"tied\": $tied, \"seed\": $seed, \"prune_at\": $prune_at" '
          /"(final_val_loss|tokens_per_s|sparsity|model_state_bytes_per_parameter|allreduce_bytes_per_step)"/ {
            gsub(/^ +|,$/, ""); head = head ", " $0 }
          END { print head "}" }' "$work/run/summary.json"
      done
    done
  done
done
