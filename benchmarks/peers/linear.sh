#!/usr/bin/env bash
# Forward and backward of a linear layer, one thread: Espalier, PyTorch dense, SparseProp, torch.sparse.
#
#   benchmarks/peers/linear.sh [ROUNDS]      3 rounds, systems alternating; needs ./build with benchmarks
#
# Needs a python with torch and sparseprop (benchmarks/peers/setup.sh installs only torch): PEERS_PYTHON,
# or benchmarks/peers/.venv.
#
# SHAPES="768x768 …" (outputs x inputs), TOKENS (2048) and DENSITIES ("0.2 0.1 0.05") choose. Milliseconds
# are medians over the rounds of the fastest call of a round (Espalier: the mean call). The ratios are
# SparseProp / Espalier and dense PyTorch / Espalier.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
python=${PEERS_PYTHON:-benchmarks/peers/.venv/bin/python}
build=${BUILD:-build}
tokens=${TOKENS:-2048}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for round in $(seq "$rounds"); do
  for shape in ${SHAPES:-768x768 3072x768 768x3072 2048x2048}; do
    for density in ${DENSITIES:-0.2 0.1 0.05}; do
      size="${shape%x*}/${shape#*x}/$tokens"
      OMP_NUM_THREADS=1 "$build/benchmarks/linear_benchmark" --benchmark_format=json \
        --benchmark_filter="^(sparse/fp32/$density|dense/fp32/1)/$size/" 2>/dev/null >"$work/ours"
      OMP_NUM_THREADS=1 "$python" benchmarks/peers/linear.py --shape "$shape" --rows "$tokens" \
        --density "$density" >"$work/theirs"
      "$python" - "$shape" "$density" "$round" "$work/ours" "$work/theirs" <<'P'
import json, sys
shape, density, number, ours, theirs = sys.argv[1:]
row = {"round": number, "shape": shape, "density": density}
for one in json.load(open(ours))["benchmarks"]:
    row["espalier-" + one["name"].split("/")[0]] = one["real_time"]
for line in open(theirs):
    one = json.loads(line)
    row[one["system"]] = one["min_s"] * 1e3
print(json.dumps(row), flush=True)
P
    done
  done
done | tee "$work/rows"

"$python" - "$work/rows" <<'P'
import collections, json, statistics, sys
cells = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    row = json.loads(line)
    for name, value in row.items():
        if isinstance(value, float):
            cells[row["shape"], row["density"]][name].append(value)
names = sorted({name for cell in cells.values() for name in cell})
print("\n| shape | density | " + " | ".join(n + " ms" for n in names) + " | SparseProp / ours | PyTorch dense / ours |")
print("|---" * (len(names) + 4) + "|")
for (shape, density), cell in cells.items():
    m = {name: statistics.median(values) for name, values in cell.items()}
    print(f"| {shape} | {density} | " + " | ".join(f"{m[n]:.2f}" if n in m else "-" for n in names)
          + f" | {m['sparseprop'] / m['espalier-sparse']:.2f} | {m['dense'] / m['espalier-sparse']:.2f} |")
P
