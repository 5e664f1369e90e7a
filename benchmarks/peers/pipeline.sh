#!/usr/bin/env bash
# A pipeline of 2 stages on 2 cores, beside DeepSpeed's pipeline engine in the same run, in turns: GPT of 6 layers, 384
# wide, context 256, 4 micro-batches of 4 sequences, one thread a rank.
#   benchmarks/peers/pipeline.sh TEXT [ROUNDS [PYTHON]]     3, python3; PYTHON has torch and deepspeed
# DTYPES (bf16 fp32) and SCHEDULES (1f1b zb-v message-driven async) choose. Prints system=… tokens_per_s=… lines.
set -euo pipefail
cd "$(dirname "$0")/../.."
text=$(realpath "$1")
rounds=${2:-3}
python=${3:-python3}
program=${ESPALIER:-build/src/cli/espalier}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ours() {
  local dtype=$1 name=$2
  shift 2
  local settings=()
  for setting in "$@"; do settings+=(--set "$setting"); done
  scripts/mpirun.sh 2 "$program" train configs/shakespeare-char.toml --resume none --out "$work/run" \
    --set "data.train=[\"$text\"]" --set data.kind=bytes --set model.layers=6 --set model.heads=6 --set model.width=384 \
    --set model.context=256 --set model.tie_embeddings=false --set train.global_batch=16 --set train.micro_batch=4 \
    --set "train.dtype=$dtype" --set train.steps=12 --set train.eval_every=0 --set train.eval_batches=1 \
    --set train.checkpoint_every=-1 --set run.trace=false --set run.threads=1 --set parallel.pipeline=2 \
    --set parallel.drain_every=6 \
    "${settings[@]}" >/dev/null 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  python3 - "$name" "$dtype" "$work/run/metrics.jsonl" <<'P'
import json, statistics, sys
name, dtype, path = sys.argv[1:]
rows = [json.loads(line) for line in open(path)]
rows = rows[len(rows) // 2:]
ms = statistics.median(row["step_ms"] for row in rows)
print(f"system=espalier-{name} dtype={dtype} stages=2 tokens_per_s={16 * 256 / ms * 1e3:.0f} step_ms={ms:.1f}", flush=True)
P
}

for round in $(seq "$rounds"); do
  for dtype in ${DTYPES:-bf16 fp32}; do
    echo "# round $round"
    for schedule in ${SCHEDULES:-1f1b zb-v message-driven async}; do
      ours "$dtype" "$schedule" "parallel.schedule=$schedule"
    done
    ours "$dtype" 1f1b-90 parallel.schedule=1f1b pruning.method=random pruning.at_step=0 sparse.storage=sparse
    PYTHONPATH=benchmarks/peers OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --nproc-per-node 2 \
      benchmarks/peers/deepspeed_pipeline.py --data "$text" --dtype "$dtype" 2>"$work/log" | grep "^system=" ||
      { tail -5 "$work/log" >&2; exit 1; }
  done
done
