#!/usr/bin/env bash
# Measures a fixed small set of ratios and compares them with earlier ones: steps of a dense and a
# 90 % sparse GPT, SpMM, SDDMM, a sum over two ranks, and the write of a checkpoint.
#
#   benchmarks/track.sh [--dry]      at most three minutes on an idle machine; --dry writes no result
#
# Builds the programs in build/. Appends a line for each metric to benchmarks/results/track.jsonl:
# commit, date, machine, metric, ratio. Prints the metrics that moved by more than 10 % from the median
# of the earlier lines of this class of machine (CPU model and number of cores).
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release -DESPALIER_BENCHMARKS=ON >/dev/null
cmake --build build --target espalier breakdown_benchmark sparse_benchmark allreduce_benchmark >/dev/null
exec env PYTHONDONTWRITEBYTECODE=1 python3 benchmarks/track.py "$@"
