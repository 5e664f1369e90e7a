#!/bin/sh
# lone_headers_test.sh ROOT COMPILER INCLUDE_DIRS: every header of the layers compiles alone, so the order of
# #include lines does not matter. INCLUDE_DIRS are separated by semicolons.
set -eu
cd "$1"
# -Wno-psabi: headers with vectors belong to sources compiled with AVX-512.
flags="-std=c++20 -fopenmp -fsyntax-only -Wall -Wextra -Werror -Wno-psabi -I$1"
# Flags for headers of GPU kernels, as in tests/simt.
flags="$flags -Itests/simt/include -DESPALIER_GPU=cuda_simt -Wno-unknown-pragmas"
# Without /usr/include, which as -isystem would precede the compiler's own headers.
for directory in $(echo "$3" | tr ';' '\n' | grep -vx /usr/include); do flags="$flags -isystem $directory"; done
# Compiles a source that only includes the header; "#pragma once" in a main file would warn.
# shellcheck disable=SC2016  # expanded by the inner shell
find src sparse pruning parallel io -name '*.h' | sort | xargs -P "$(nproc)" -I '{}' sh -c '
  echo "#include \"$1\"" | $2 $3 -x c++ - || { echo "$1 does not compile alone"; exit 1; }' \
  sh '{}' "$2" "$flags"
