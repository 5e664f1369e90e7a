#!/usr/bin/env bash
# How does training scale on one machine? 1, 2 and 4 ranks of one thread each: replicas, stages and a
# grid of both, with one global batch (strong) and, for replicas, with one batch a rank (weak), dense
# and 90 % pruned.
#
#   benchmarks/steps/scaling.sh TEXT [ROUNDS]     3 rounds; needs build/src/cli/espalier
#
# Prints tokens/s (median step of the second half of STEPS steps, 16; median over the rounds, which
# alternate), the speed-up over one rank, and the share of the machine's own speed-up. That is the
# speed-up of as many independent runs of one rank at once: they share only the machine's cores,
# memory bandwidth and clock. Communication, bubbles and undivided work take the rest to 100 %. More
# ranks than cores cannot be faster than as many ranks as cores.
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
rounds=${2:-3}

# settings NAME=VALUE… as --set options into the array `options`.
settings() {
  options=()
  local setting
  for setting in "$@"; do options+=(--set "$setting"); done
}
common=(model.layers=8 model.heads=8 model.width=512 model.context=256 model.tie_embeddings=false
  train.dtype=bf16 "train.steps=${STEPS:-16}" train.eval_every=0 train.eval_batches=1
  train.checkpoint_every=-1 train.micro_batch=2 run.threads=1 parallel.schedule=zb-v)
declare -A kinds=([dense]="pruning.method=none"
  [sparse]="pruning.method=random pruning.at_step=0 pruning.sparsity=0.9 sparse.storage=sparse")

# start OUT RANKS KIND KEY=VALUE…: one run in the background.
start() {
  local out=$1 ranks=$2 kind=$3
  shift 3
  # shellcheck disable=SC2086  # several words
  settings "${common[@]}" ${kinds[$kind]} "$@"
  local launch=()
  [ "$ranks" = 1 ] || launch=(scripts/mpirun.sh "$ranks")
  "${launch[@]}" "$program" train configs/shakespeare-char.toml --resume none --out "$out" \
    --set "data.train=[\"$text\"]" --set run.trace=false "${options[@]}" >"$out.log" 2>&1 &
}

# report ROUND KIND NAME OUT…: the sum of the runs' tokens/s.
report() {
  python3 - "$@" <<'P'
import json, statistics, sys
number, kind, name, *runs = sys.argv[1:]
total = 0
for run in runs:
    rows = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    total += statistics.median(row["tokens_per_s"] for row in rows[len(rows) // 2:])
print(json.dumps({"round": int(number), "kind": kind, "run": name, "tokens_per_s": round(total, 1)}), flush=True)
P
}

# measure ROUND KIND NAME RANKS KEY=VALUE…
measure() {
  local number=$1 kind=$2 name=$3 ranks=$4
  shift 4
  start "$work/one" "$ranks" "$kind" "$@"
  wait $! || { cat "$work/one.log" >&2; exit 1; }
  report "$number" "$kind" "$name" "$work/one"
}

# copies ROUND KIND N: N runs of one rank at once.
copies() {
  local number=$1 kind=$2 n=$3 i all=()
  for i in $(seq "$n"); do
    start "$work/copy$i" 1 "$kind" train.global_batch=16
    all+=("$work/copy$i")
  done
  wait
  report "$number" "$kind" "$n independent runs" "${all[@]}"
}

for round in $(seq "$rounds"); do
  for kind in dense sparse; do
    measure "$round" $kind "1 rank" 1 train.global_batch=16
    copies "$round" $kind 2
    measure "$round" $kind "2 replicas, strong" 2 train.global_batch=16
    measure "$round" $kind "2 replicas, weak" 2 train.global_batch=32
    measure "$round" $kind "2 stages, strong" 2 train.global_batch=16 parallel.pipeline=2
    copies "$round" $kind 4
    measure "$round" $kind "4 replicas, strong" 4 train.global_batch=16
    measure "$round" $kind "4 replicas, weak" 4 train.global_batch=64
    measure "$round" $kind "4 stages, strong" 4 train.global_batch=16 parallel.pipeline=4
    measure "$round" $kind "2 stages x 2 replicas, strong" 4 train.global_batch=16 parallel.pipeline=2
  done
done | tee "${RAW:-$work/raw.jsonl}"

python3 - "${RAW:-$work/raw.jsonl}" <<'P'
import json, statistics, sys
speeds = {}
for line in map(json.loads, open(sys.argv[1])):
    speeds.setdefault((line["kind"], line["run"]), []).append(line["tokens_per_s"])
speeds = {key: statistics.median(values) for key, values in speeds.items()}
print(f"\n{'':8}{'':32}{'tokens/s':>10}{'x 1 rank':>10}{'% of the machine':>18}")
for (kind, run), speed in speeds.items():
    machine = speeds.get((kind, f"{run.split()[0]} independent runs")) if not run.startswith("2 stages x") \
        else speeds.get((kind, "4 independent runs"))
    share = "" if machine is None or "independent" in run else f"{100 * speed / machine:.0f}"
    print(f"{kind:8}{run:32}{speed:10.0f}{speed / speeds[kind, '1 rank']:10.2f}{share:>18}")
P
