#!/usr/bin/env bash
# Training over a slow link between two hosts, Espalier and PyTorch DDP alternating: tokens/s, bytes, loss.
#
#   benchmarks/links/link.sh TEXT [ROUNDS [LINES]]     3 rounds; appends its lines to the file LINES
#
# Needs build/src/cli/espalier, and PyTorch by benchmarks/peers/setup.sh or PEERS_PYTHON. GPT of 6 layers,
# 384 wide, context 256, characters of TEXT, 2 ranks of one core, 4 sequences each, bf16, no dropout;
# scripts/two_hosts.sh shapes the link. RATES (none 1gbit 200mbit 100mbit), STEPS (20) and ONLY (a regular
# expression of contenders' names) choose. Each line is one run:
#
#   round= rate= contender= tokens_per_s= slowest= fastest= bytes_a_step= link_bytes= train_loss= val_loss=
#
# - tokens_per_s, slowest, fastest: median and extremes of the steps after the first fifth
# - bytes_a_step: sent by rank 0 in such a step; DDP: counted at the interface, Espalier: at its transport
# - link_bytes: sent by the first host in the whole run, counted at the interface
# - train_loss, val_loss: after STEPS steps
#
# Exit code 77: no such link on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."

# name | espalier or ddp | settings of Espalier, or options of benchmarks/peers/ddp_link.py
sparse="pruning.method=random pruning.at_step=0 pruning.sparsity=0.9 sparse.storage=sparse"
feedback="parallel.error_feedback=true"
contenders=(
  "dense            | espalier |"
  "sparse-90        | espalier | $sparse"
  "dense+maxmin:4   | espalier | parallel.codec=maxmin:4"
  "dense+sign       | espalier | $feedback parallel.codec=sign"
  "sparse+maxmin:4  | espalier | $sparse parallel.codec=maxmin:4"
  "sparse+maxmin:2  | espalier | $sparse parallel.codec=maxmin:2"
  "sparse+sign      | espalier | $sparse $feedback parallel.codec=sign"
  "ddp              | ddp      | --hook none"
  "ddp-fp16         | ddp      | --hook fp16"
  "ddp-bf16         | ddp      | --hook bf16"
  "ddp-powersgd-1   | ddp      | --hook powersgd --matrix-rank 1"
  "ddp-powersgd-4   | ddp      | --hook powersgd --matrix-rank 4"
)

[[ $# -ge 1 && -r $1 ]] || { echo "usage: $0 TEXT [ROUNDS [LINES]]" >&2; exit 2; }
text=$(realpath "$1")
rounds=${2:-3}
lines=$(realpath -m "${3:-/dev/null}")
steps=${STEPS:-20}
program=${ESPALIER:-build/src/cli/espalier}
export PEERS_PYTHON=${PEERS_PYTHON:-benchmarks/peers/.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# espalier RATE SETTINGS…
espalier() {
  local rate=$1 set=() setting
  shift
  for setting in "$@"; do set+=(--set "$setting"); done
  rm -rf "$work/run"
  scripts/two_hosts.sh --rate "$rate" mpirun "$program" train configs/gpt-6x384.toml --resume none --out "$work/run" \
    --set "data.train=[\"$text\"]" --set model.tie_embeddings=false --set model.dropout=0 --set train.global_batch=8 \
    --set train.micro_batch=0 --set train.dtype=bf16 --set "train.steps=$steps" --set train.eval_every=0 \
    --set train.eval_batches=10 --set train.checkpoint_every=-1 --set optimizer.warmup_steps=20 --set run.threads=1 \
    --set run.trace=false --set pruning.method=none --set pruning.from_step=-1 --set pruning.to_step=-1 \
    --set pruning.every=0 "${set[@]}"
}

ddp() {
  local rate=$1
  shift
  scripts/two_hosts.sh --rate "$rate" torchrun benchmarks/peers/ddp_link.py --data "$text" --steps "$steps" "$@"
}

# result KIND: the line of results of the contender that just ran in $work.
result() {
  python3 - "$work" "$1" <<'P'
import json, pathlib, statistics, sys
work, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
output = work.joinpath("output").read_text().splitlines()
if kind == "ddp":
    found = json.loads(next(line for line in output if line.startswith("{")))
else:
    rows = [json.loads(line) for line in work.joinpath("run/metrics.jsonl").read_text().splitlines()]
    steady = rows[min(max(3, len(rows) // 5), len(rows) - 1):]
    speed = [row["tokens_per_s"] for row in steady]
    found = {"tokens_per_s": statistics.median(speed), "slowest": min(speed), "fastest": max(speed),
             "bytes_a_step": statistics.median(row["comm_bytes_sent"] for row in steady),
             "train_loss": rows[-1]["loss"],
             "val_loss": json.loads(work.joinpath("run/summary.json").read_text())["final_val_loss"]}
link = dict(item.split("=") for item in output[-1].split()[1:])
print(f"tokens_per_s={found['tokens_per_s']:.0f} slowest={found['slowest']:.0f} fastest={found['fastest']:.0f} "
      f"bytes_a_step={found['bytes_a_step']:.0f} link_bytes={link['bytes_a']} train_loss={found['train_loss']:.4f} "
      f"val_loss={found['val_loss']:.4f}")
P
}

for round in $(seq "$rounds"); do
  for rate in ${RATES:-none 1gbit 200mbit 100mbit}; do
    for contender in "${contenders[@]}"; do
      IFS='|' read -r name kind options <<<"$contender"
      name=${name// /} kind=${kind// /}
      [[ $name =~ ${ONLY:-.} ]] || continue
      code=0
      # shellcheck disable=SC2086  # the options are several words
      "$kind" "$rate" $options >"$work/output" 2>"$work/log" || code=$?
      [ $code = 0 ] || { tail -n 20 "$work/log" >&2; echo "$0: $name at rate $rate failed" >&2; exit $code; }
      echo "round=$round rate=$rate contender=$name $(result "$kind")"
    done
  done
done | tee -a "$lines" "$work/lines"

python3 benchmarks/links/link_table.py "$work/lines"
