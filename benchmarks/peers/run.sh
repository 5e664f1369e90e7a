#!/usr/bin/env bash
# Training speed of PyTorch on this machine: a line of text and a line of JSON for each case.
#
#   benchmarks/peers/run.sh --data TEXT [--only A|B]
#
# A = 4 layers, 4 heads, 128 wide, context 64, 12 sequences; B = 6, 6, 384, 256, 8; vocabulary: the
# characters of TEXT. Each runs as one process of 2 threads and as DDP of 2 ranks of 1 thread. PEERS_PYTHON
# names a python other than that of setup.sh; A_STEPS and B_STEPS set the number of steps.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PEERS_PYTHON:-$here/.venv/bin/python}
data="" only=""
while [ $# -gt 0 ]; do
  case $1 in
    --data) data=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    *) echo "usage: run.sh --data TEXT [--only A|B]" >&2; exit 2 ;;
  esac
done
[ -r "$data" ] || { echo "run.sh: --data must name a text file" >&2; exit 2; }
[ -x "$python" ] || { echo "run.sh: no $python; run setup.sh or set PEERS_PYTHON" >&2; exit 1; }

one_process() { "$python" "$here/gpt.py" --data "$data" --json --threads 2 "$@"; }
two_ranks() {
  OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --standalone --nproc-per-node 2 \
    "$here/gpt.py" --data "$data" --json --threads 1 "$@"
}

# report NAME COMMAND…: prints the results of a case, or its failure, and continues.
failed=0
report() {
  local name=$1 line; shift
  if line=$("$@" 2>"$log" | grep '^{'); then
    printf '%-26s %10s tokens/s\n' "$name" "$(sed 's/.*"tokens_per_s": \([0-9.]*\).*/\1/' <<<"$line")"
    echo "$line"
  else
    printf '%-26s     failed: %s\n' "$name" "$(tail -n 1 "$log")"; failed=1
  fi
}

cases() {
  local name=$1 dtype; shift
  for dtype in fp32 bf16; do
    report "$name eager $dtype 1x2" one_process "$@" --dtype $dtype
    report "$name compile $dtype 1x2" one_process "$@" --dtype $dtype --compile
    report "$name ddp $dtype 2x1" two_ranks "$@" --dtype $dtype
  done
}

log=$(mktemp); trap 'rm -f "$log"' EXIT
[ "$only" = B ] || cases A --layers 4 --heads 4 --width 128 --context 64 --batch 12 --steps "${A_STEPS:-60}"
[ "$only" = A ] || cases B --layers 6 --heads 6 --width 384 --context 256 --batch 8 --steps "${B_STEPS:-10}"
exit $failed
