#!/usr/bin/env bash
# SAMO's argument, measured: the state of a pruned model is smaller, so it takes fewer pipeline stages, so fewer bubbles
# and messages. One global batch, RANKS ranks, one memory budget a rank; parallel.pipeline = "auto" takes as few stages
# as fit. The budget lies between what the dense model needs in one stage and in RANKS.
#   benchmarks/steps/stages.sh TEXT [RANKS [BUDGET]]     2, 260MiB; needs ./build and a machine left alone
# Prints for dense and 90 % pruned: stages, tokens/s, and where a step of rank 0 goes, in ms: compute, bubble (what the
# schedule predicts with the measured times), point-to-point (waiting beyond that), collective, update. Medians of the
# second half of STEPS steps (40), ROUNDS rounds (3) in turns.
set -euo pipefail
cd "$(dirname "$0")/../.."
text=$(realpath "$1")
ranks=${2:-2}
budget=${3:-260MiB}
program=${ESPALIER:-build/src/cli/espalier}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# train NAME settings…
train() {
  local name=$1
  shift
  local settings=()
  for setting in "$@"; do settings+=(--set "$setting"); done
  scripts/mpirun.sh "$ranks" "$program" train configs/shakespeare-char.toml --resume none --out "$work/$name" \
    --set "data.train=[\"$text\"]" --set model.layers=6 --set model.heads=6 --set model.width=384 --set model.context=256 \
    --set model.tie_embeddings=false --set train.global_batch=16 --set train.micro_batch=1 --set train.dtype=bf16 \
    --set "train.steps=${STEPS:-40}" --set train.eval_every=0 --set train.eval_batches=1 --set train.checkpoint_every=-1 \
    --set run.trace=false --set parallel.pipeline=auto --set "train.memory_budget=$budget" "${settings[@]}" \
    >/dev/null 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
}

for round in $(seq "${ROUNDS:-3}"); do
  train dense pruning.method=none
  train pruned pruning.method=random pruning.at_step=0 pruning.sparsity=0.9 sparse.storage=sparse
  for name in dense pruned; do
    python3 - "$round" "$name" "$work/$name" <<'P'
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
  done
done
