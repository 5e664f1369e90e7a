#!/usr/bin/env bash
# Dense, sparse and PyTorch training steps on one machine, alternating in one run: tokens/s and ratios.
#   benchmarks/step.sh TEXT [ROUNDS]      needs ./build/espalier and benchmarks/peers/setup.sh (or PEERS_PYTHON)
# Cases: A = 4 layers/4 heads/128 wide/context 64/batch 12, B = 6/6/384/256/8; fp32 and bf16; Espalier as one
# process with 2 threads and as two ranks with 1 thread; PyTorch's fastest variants of each precision.
set -euo pipefail
cd "$(dirname "$0")/.."
text=$(realpath "$1")
rounds=${2:-3}
python=${PEERS_PYTHON:-benchmarks/peers/.venv/bin/python}
program=${ESPALIER:-build/src/cli/espalier}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

shape() { case $1 in
  A) echo "4 4 128 64 12 300 300" ;;
  B) echo "6 6 384 256 8 16 12" ;;
esac; }

# espalier CASE DTYPE RANKS SPARSITY → median tokens/s of the second half of the steps
espalier() {
  read -r layers heads width context batch steps _ <<<"$(shape "$1")"
  local prune=()
  [ "$4" = 0 ] || prune=(--set pruning.method=magnitude --set "pruning.sparsity=$4" --set pruning.at_step=0)
  local launch=()
  [ "$3" = 1 ] || launch=(scripts/mpirun.sh "$3")
  "${launch[@]}" "$program" train configs/shakespeare-char.toml --resume none --out "$work/run" \
    --set "data.train=[\"$text\"]" --set "model.layers=$layers" --set "model.heads=$heads" \
    --set "model.width=$width" --set "model.context=$context" --set "train.global_batch=$batch" \
    --set "train.steps=$steps" --set "train.dtype=$2" --set "run.threads=$((2 / $3))" \
    --set train.eval_every=0 --set train.eval_batches=1 --set optimizer.warmup_steps=10 \
    --set run.trace=false "${prune[@]}" >/dev/null 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  "$python" -c "
import json, statistics, sys
rows = [json.loads(line)['tokens_per_s'] for line in open(sys.argv[1])]
print(round(statistics.median(rows[len(rows) // 2:]), 1))" "$work/run/metrics.jsonl"
}

# peer CASE DTYPE RANKS → median tokens/s
peer() {
  read -r layers heads width context batch _ steps <<<"$(shape "$1")"
  local command=("$python")
  [ "$3" = 1 ] || command=("$python" -m torch.distributed.run --nproc-per-node "$3")
  "${command[@]}" benchmarks/peers/gpt.py --layers "$layers" --heads "$heads" --width "$width" \
    --context "$context" --batch "$batch" --steps "$steps" --dtype "$2" --threads $((2 / $3)) \
    --data "$text" --json 2>/dev/null |
    "$python" -c "import json,sys; print(json.loads([l for l in sys.stdin if l.startswith('{')][-1])['tokens_per_s'])"
}

for round in $(seq "$rounds"); do
  for case in ${CASES:-A B}; do
    for dtype in ${DTYPES:-fp32 bf16}; do
      for ranks in 1 2; do
        dense=$(espalier "$case" "$dtype" "$ranks" 0)
        sparse=$(espalier "$case" "$dtype" "$ranks" 0.9)
        rival=$(peer "$case" "$dtype" "$ranks")
        echo "round=$round case=$case dtype=$dtype ranks=$ranks dense=$dense sparse=$sparse pytorch=$rival"
      done
    done
  done
done | tee "$work/lines"

"$python" - "$work/lines" <<'P'
import collections, statistics, sys
rows = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    row = dict(item.split("=") for item in line.split())
    for name in ("dense", "sparse", "pytorch"):
        rows[row["case"], row["dtype"]][name, row["ranks"]].append(float(row[name]))
print("\n| case | dense 1x2 | dense 2x1 | PyTorch 1x2 | PyTorch 2x1 | dense / PyTorch, best of each | sparse step / dense step (1x2, 2x1) |")
print("|---|---|---|---|---|---|---|")
for (case, dtype), cell in sorted(rows.items()):
    m = {key: statistics.median(values) for key, values in cell.items()}
    best = max(m["dense", "1"], m["dense", "2"]) / max(m["pytorch", "1"], m["pytorch", "2"])
    print(f"| {case} {dtype} | {m['dense','1']:.0f} | {m['dense','2']:.0f} | {m['pytorch','1']:.0f} | {m['pytorch','2']:.0f} "
          f"| {best:.2f} | {m['dense','1']/m['sparse','1']:.3f}, {m['dense','2']/m['sparse','2']:.3f} |")
P
