#!/usr/bin/env bash
# Makes benchmarks/peers/.venv with PyTorch, numpy, h5py and DeepSpeed from PyPI. A second call changes nothing.
#
#   benchmarks/peers/setup.sh [--for-gpu]
#
# - PEERS_PYTHON names a python that has them: it is only checked, and nothing is installed.
# - PEERS_VENV names a folder other than benchmarks/peers/.venv.
# - Without --for-gpu it takes the smaller build of PyTorch for CPUs, where its index can be reached.
# - If only DeepSpeed cannot be installed, the exit code is 1, and scripts that need only PyTorch work.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${PEERS_VENV:-$here/.venv}
python=${PEERS_PYTHON:-$venv/bin/python}
check() { "$python" -c 'import h5py, numpy, torch; print("torch", torch.__version__, "numpy", numpy.__version__, "h5py", h5py.__version__)'; }
deepspeed() {
  "$python" -c 'from importlib.metadata import version; print("deepspeed", version("deepspeed"))' || return
  [ -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || {
    echo "DeepSpeed compiles an extension at its first start: Python.h is missing; on Debian: apt-get install python3-dev" >&2
    return 1
  }
}

if [ -n "${PEERS_PYTHON:-}" ]; then check && deepspeed; exit; fi
if [ -x "$python" ] && check 2>/dev/null && deepspeed 2>/dev/null; then exit; fi

pip=("$python" -m pip install --quiet --disable-pip-version-check)
if ! [ -x "$python" ]; then
  python3 -m venv "$venv" || {
    rm -rf "$venv"
    echo "python3 -m venv failed (its reason is above); on Debian: apt-get install python3-venv" >&2
    exit 1
  }
fi
fetch() { "${pip[@]}" "$@" || { echo "pip could not get ${*: -1} from the package index (PyPI): is there a network?" >&2; exit 1; }; }
fetch --upgrade pip
if ! "$python" -c 'import torch' 2>/dev/null; then
  [ "${1:-}" = --for-gpu ] ||
    "${pip[@]}" --retries 1 --timeout 20 --index-url https://download.pytorch.org/whl/cpu torch 2>/dev/null ||
    echo "no index of PyTorch's builds for CPUs: taking the one of PyPI" >&2
  fetch torch
fi
fetch numpy
fetch h5py
# Its setup reads the installed torch. Operators are compiled at their first use: of those, runs on CPUs use
# one, for messages through shared memory.
fetch setuptools
fetch wheel
DS_BUILD_OPS=0 fetch --no-build-isolation deepspeed
check
deepspeed
