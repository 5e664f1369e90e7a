#!/usr/bin/env bash
# compare.sh [--preset cpu-small|cpu-10m|gpu-124m|tiny] [--link 1gbit] [--seeds 3] …: trains the same
# network by Espalier, PyTorch DDP and DeepSpeed, dense and pruned, and writes one table
# (docs/comparison.md); --help lists all options. Builds Espalier, and makes a text and a Python
# environment with the peers (benchmarks/peers/setup.sh), where they are missing.
set -euo pipefail
command -v python3 >/dev/null || { echo "$0: python3 is missing; on Debian: apt-get install python3 python3-venv python3-dev" >&2; exit 1; }
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$(dirname "$(realpath "$0")")/benchmarks/compare/main.py" "$@"
