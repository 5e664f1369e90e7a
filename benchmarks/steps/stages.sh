#!/usr/bin/env bash
# Does a pruned model need fewer pipeline stages (SAMO's argument)? Its state is smaller, so it fits
# fewer stages, with fewer bubbles and messages. One global batch, RANKS ranks and one memory budget
# per rank; parallel.pipeline = "auto" takes as few stages as fit. Choose a budget between the needs
# of the dense model in one stage and in RANKS stages.
#
#   benchmarks/steps/stages.sh TEXT [RANKS [BUDGET]]     2, 260MiB; needs build/src/cli/espalier
#
# Prints, dense and 90 % pruned, the stages, tokens/s, and the parts of a step of rank 0 in ms:
# compute, bubble (predicted by the schedule from the measured times), point-to-point (waiting beyond
# that), collective, update. Values are medians of the second half of STEPS steps (40); ROUNDS rounds
# (3), alternating. Run it on an idle machine.
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
ranks=${2:-2}
budget=${3:-260MiB}
launcher=(scripts/mpirun.sh "$ranks")

# measure ROUND NAME KEY=VALUE…
measure() {
  local number=$1 name=$2
  shift 2
  train model.layers=6 model.heads=6 model.width=384 model.context=256 model.tie_embeddings=false \
    train.global_batch=16 train.micro_batch=1 train.dtype=bf16 "train.steps=${STEPS:-40}" \
    train.eval_every=0 train.eval_batches=1 train.checkpoint_every=-1 parallel.pipeline=auto \
    "train.memory_budget=$budget" "$@"
  python3 - "$number" "$name" "$run" <<'P'
import json, statistics, sys
number, name, run = sys.argv[1:]
rows = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
rows = rows[len(rows) // 2:]
summary = json.load(open(f"{run}/summary.json"))
median = lambda key: statistics.median(row[key] for row in rows)
pipeline = summary.get("pipeline")
bubble = 0.0
if pipeline:
    bubble = 1e3 * pipeline["predicted"]["makespan"] * pipeline["predicted"]["idle_share"]
print(f"round={number} run={name} stages={summary['grid']['pipeline']} replicas={summary['grid']['data']} "
      f"tokens_per_s={median('tokens_per_s'):.0f} step_ms={median('step_ms'):.1f} compute_ms={median('compute_ms'):.1f} "
      f"bubble_ms={bubble:.1f} p2p_ms={max(median('wait_ms') - bubble, 0):.1f} "
      f"collective_ms={median('collective_ms'):.1f} update_ms={median('update_ms'):.1f} "
      f"p2p_bytes={median('p2p_bytes'):.0f} allreduce_bytes={median('allreduce_bytes'):.0f} "
      f"rank_peak_mib={max(rank['all']['peak'] for rank in summary['memory']['ranks']) / 2**20:.1f}", flush=True)
P
}

for round in $(seq "${ROUNDS:-3}"); do
  measure "$round" dense pruning.method=none
  measure "$round" pruned pruning.method=random pruning.at_step=0 pruning.sparsity=0.9 \
    sparse.storage=sparse
done
