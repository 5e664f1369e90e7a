#!/usr/bin/env bash
# The reference loss: PyTorch, case A for 2,000 steps on a text by characters, dense and pruned to 90 % at
# step 500, seeds 1, 2, 3. Prints a line of JSON per run; val_loss is that of the first 100 batches of the
# last 10 % of the text.
#
#   benchmarks/peers/quality.sh --data TEXT          (about 80 s per run on 2 cores)
#
# PEERS_PYTHON names a python other than that of setup.sh; SEEDS and STEPS change the runs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PEERS_PYTHON:-$here/.venv/bin/python}
[ "${1:-}" = --data ] && [ -r "${2:-}" ] || { echo "usage: quality.sh --data TEXT" >&2; exit 2; }
[ -x "$python" ] || { echo "quality.sh: no $python; run setup.sh or set PEERS_PYTHON" >&2; exit 1; }

for seed in ${SEEDS:-1 2 3}; do
  for prune_at in -1 500; do
    nice "$python" "$here/gpt.py" --data "$2" --layers 4 --heads 4 --width 128 --context 64 --batch 12 \
      --steps "${STEPS:-2000}" --lr 1e-3 --min-lr 1e-4 --warmup 100 --beta2 0.99 --weight-decay 0.1 \
      --prune-at "$prune_at" --sparsity 0.9 --seed "$seed" --threads 2 --eval --json
  done
done
