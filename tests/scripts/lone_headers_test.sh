#!/bin/sh
# lone_headers_test.sh ROOT COMPILER INCLUDE_DIRS: every header of the layers compiles on its own, so that nobody
# depends on the order of #include lines. INCLUDE_DIRS are separated by semicolons.
set -eu
cd "$1"
# -Wno-psabi: headers with vectors are meant for sources compiled with AVX-512.
flags="-std=c++20 -fopenmp -fsyntax-only -Wall -Wextra -Werror -Wno-psabi -I$1"
# Those of kernels for GPUs, as the tests' harness compiles them (tests/simt).
flags="$flags -Itests/simt/include -DESPALIER_GPU=cuda_simt -Wno-unknown-pragmas"
# /usr/include is searched anyway; given as -isystem it would come before the compiler's own headers.
for directory in $(echo "$3" | tr ';' '\n' | grep -vx /usr/include); do flags="$flags -isystem $directory"; done
# A header is compiled as the only line of a source: given by itself, "#pragma once" would warn.
# shellcheck disable=SC2016  # expanded by the inner shell
find src sparse pruning parallel io -name '*.h' | sort | xargs -P "$(nproc)" -I '{}' sh -c '
  echo "#include \"$1\"" | $2 $3 -x c++ - || { echo "$1 does not compile alone"; exit 1; }' \
  sh '{}' "$2" "$flags"
