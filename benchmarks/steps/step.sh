#!/usr/bin/env bash
# Training steps of Espalier, dense and sparse, and of PyTorch on one machine: tokens/s and ratios.
#
#   benchmarks/steps/step.sh TEXT [ROUNDS]      3 rounds, systems alternating; needs
#       build/src/cli/espalier, and benchmarks/peers/setup.sh or PEERS_PYTHON
#
# Cases: A = 4 layers/4 heads/128 wide/context 64/batch 12, B = 6/6/384/256/8, C = 12/12/768/512/4, and
# L: the shape of B as a Llama with 2 heads of keys and values and an MLP of 1,024; in fp32
# and bf16; as one process with 2 threads and as two ranks with 1 thread. Espalier dense, and at 90 %
# and 95 % random sparsity (STORAGE, default sparse); PyTorch eager and compiled (L: also with joined
# products). CASES, DTYPES and RANKS choose among them.
# shellcheck source=benchmarks/training.sh
. "$(dirname "$0")/../training.sh"
rounds=${2:-3}
python=${PEERS_PYTHON:-benchmarks/peers/.venv/bin/python}

# layers heads width context batch, steps of Espalier and of PyTorch
shape() { case $1 in
  A) echo "4 4 128 64 12 300 300" ;;
  B | L) echo "6 6 384 256 8 16 12" ;;
  C) echo "12 12 768 512 4 6 4" ;;
esac; }

# espalier CASE DTYPE RANKS SPARSITY: tokens/s
espalier() {
  read -r layers heads width context batch steps _ <<<"$(shape "$1")"
  local pruning=() family=()
  [ "$1" != L ] || family=(model.kind=decoder model.family=llama model.kv_heads=2 model.mlp_width=1024)
  [ "$4" = 0 ] || pruning=(pruning.method=random "pruning.sparsity=$4" pruning.at_step=0
    "sparse.storage=${STORAGE:-sparse}")
  launcher=()
  [ "$3" = 1 ] || launcher=(scripts/mpirun.sh "$3")
  train "model.layers=$layers" "model.heads=$heads" "model.width=$width" "model.context=$context" \
    "train.global_batch=$batch" "train.steps=$steps" "train.dtype=$2" "run.threads=$((2 / $3))" \
    train.eval_every=0 train.eval_batches=1 optimizer.warmup_steps=10 "${family[@]}" "${pruning[@]}"
  median tokens_per_s
}

# peer CASE DTYPE RANKS [--compile]: tokens/s
peer() {
  read -r layers heads width context batch _ steps <<<"$(shape "$1")"
  local command=("$python") family=()
  [ "$1" != L ] || family=(--family llama --kv-heads 2 --mlp-width 1024)
  [ "$3" = 1 ] || command=("$python" -m torch.distributed.run --nproc-per-node "$3")
  "${command[@]}" benchmarks/peers/gpt.py --layers "$layers" --heads "$heads" --width "$width" \
    --context "$context" --batch "$batch" --steps "$steps" --dtype "$2" --threads $((2 / $3)) \
    --data "$text" --json "${family[@]}" "${@:4}" 2>/dev/null |
    "$python" -c "import json,sys; print(json.loads([l for l in sys.stdin if l.startswith('{')][-1])['tokens_per_s'])"
}

for round in $(seq "$rounds"); do
  for case in ${CASES:-A B C}; do
    for dtype in ${DTYPES:-fp32 bf16}; do
      for ranks in ${RANKS:-1 2}; do
        line="round=$round case=$case dtype=$dtype ranks=$ranks"
        line+=" dense=$(espalier "$case" "$dtype" "$ranks" 0)"
        line+=" sparse90=$(espalier "$case" "$dtype" "$ranks" 0.9)"
        line+=" sparse95=$(espalier "$case" "$dtype" "$ranks" 0.95)"
        line+=" eager=$(peer "$case" "$dtype" "$ranks")"
        [ "$ranks" != 1 ] || line+=" compiled=$(peer "$case" "$dtype" "$ranks" --compile)"
        if [ "$case$ranks" = L1 ]; then
          line+=" fused=$(peer L "$dtype" 1 --fused) compiled_fused=$(peer L "$dtype" 1 --fused --compile)"
        fi
        echo "$line"
      done
    done
  done
done | tee "$work/lines"

"$python" - "$work/lines" <<'P'
import collections, statistics, sys
cells = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    row = dict(item.split("=") for item in line.split())
    for name in ("dense", "sparse90", "sparse95", "eager", "compiled", "fused", "compiled_fused"):
        if name in row:
            cells[row["case"], row["dtype"]][name, row["ranks"]].append(float(row[name]))
print("\nTokens/s: medians, the faster of one process and two ranks; PyTorch: the fastest of its variants.")
print("| case | dense | 90 % | 95 % | PyTorch | dense / PyTorch | 90 % / PyTorch | 95 % / PyTorch | 90 % / dense |")
print("|---|---|---|---|---|---|---|---|---|")
for (case, dtype), cell in sorted(cells.items()):
    best = collections.defaultdict(float)
    for (name, _), values in cell.items():
        name = name if name in ("dense", "sparse90", "sparse95") else "pytorch"
        best[name] = max(best[name], statistics.median(values))
    d, s, t, p = (best[name] for name in ("dense", "sparse90", "sparse95", "pytorch"))
    print(f"| {case} {dtype} | {d:.0f} | {s:.0f} | {t:.0f} | {p:.0f} | {d / p:.2f} | {s / p:.2f} | {t / p:.2f} | {s / d:.2f} |")
P
