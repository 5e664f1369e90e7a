#!/usr/bin/env bash
# A pipeline of 2 stages on 2 cores beside DeepSpeed's pipeline engine, alternating in one run: GPT of
# 6 layers, 384 wide, context 256, 4 micro-batches of 4 sequences, one thread per rank.
#
#   benchmarks/peers/pipeline.sh TEXT [ROUNDS [PYTHON]]     3, python3; PYTHON has torch and deepspeed
#
# DTYPES (bf16 fp32) and SCHEDULES (1f1b zb-v message-driven async) choose. Prints lines
# system=… tokens_per_s=….
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
rounds=${2:-3}
python=${3:-python3}
launcher=(scripts/mpirun.sh 2)

# espalier NAME DTYPE KEY=VALUE…
espalier() {
  local name=$1 dtype=$2 ms
  shift 2
  train data.kind=bytes model.layers=6 model.heads=6 model.width=384 model.context=256 \
    model.tie_embeddings=false train.global_batch=16 train.micro_batch=4 "train.dtype=$dtype" \
    train.steps=12 train.eval_every=6 train.eval_batches=1 train.checkpoint_every=-1 run.threads=1 \
    parallel.pipeline=2 "$@"
  ms=$(median step_ms)
  echo "system=espalier-$name dtype=$dtype stages=2" \
    "tokens_per_s=$(awk "BEGIN { printf \"%.0f\", 16 * 256 / $ms * 1e3 }") step_ms=$ms"
}

for round in $(seq "$rounds"); do
  for dtype in ${DTYPES:-bf16 fp32}; do
    echo "# round $round"
    for schedule in ${SCHEDULES:-1f1b zb-v message-driven async}; do
      espalier "$schedule" "$dtype" "parallel.schedule=$schedule"
    done
    espalier 1f1b-90 "$dtype" parallel.schedule=1f1b pruning.method=random pruning.at_step=0 \
      sparse.storage=sparse
    OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --nproc-per-node 2 \
      benchmarks/peers/deepspeed_pipeline.py --data "$text" --dtype "$dtype" 2>"$work/log" |
      grep "^system=" || { tail -5 "$work/log" >&2; exit 1; }
  done
done
