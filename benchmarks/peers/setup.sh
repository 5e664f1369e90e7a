#!/usr/bin/env bash
# Makes benchmarks/peers/.venv with PyTorch (CPU), numpy and h5py. Running it again changes nothing.
#
#   benchmarks/peers/setup.sh
#
# PEERS_PYTHON names a python that has them already: then it is only checked, and nothing is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PEERS_PYTHON:-$here/.venv/bin/python}
check() { "$python" -c 'import h5py, numpy, torch; print("torch", torch.__version__, "numpy", numpy.__version__, "h5py", h5py.__version__)'; }

if [ -n "${PEERS_PYTHON:-}" ]; then check; exit; fi
if [ -x "$python" ] && check 2>/dev/null; then exit; fi

python3 -m venv "$here/.venv"
"$python" -m pip install --quiet --upgrade pip
# The CPU index holds a much smaller wheel; not every network reaches it.
"$python" -m pip install --quiet --retries 1 --timeout 20 --index-url https://download.pytorch.org/whl/cpu torch ||
  "$python" -m pip install --quiet torch
"$python" -m pip install --quiet numpy h5py
check
