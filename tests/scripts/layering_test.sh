#!/bin/sh
# tests/layering_test.py on small generated trees: accepts a correct one, finds each kind of mistake.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
tree=$scratch/tree
reset() {
  rm -rf "$tree"
  mkdir -p "$tree/src/core" "$tree/src/kernels/cpu/dense" "$tree/src/model" "$tree/parallel" "$tree/io/config"
  for header in src/core/error.h src/kernels/kernels.h src/kernels/cpu/dense/product.h io/config/config.h io/tokens.h; do
    printf '#pragma once\nint array[] = {1, 2};\n' >"$tree/$header"
  done
  echo '#include "src/kernels/cpu/dense/product.h"' >"$tree/src/kernels/backends.cpp"
  printf '#include <vector>\n#include "src/core/error.h"\n  #  include "io/config/config.h"\n' >"$tree/src/model/gpt.cpp"
}
check() { run python3 "$root/tests/layering_test.py" "$tree"; }
refuses() { # WHAT, WORDS OF THE MESSAGE
  check
  expect "$1: refused" [ "$code" != 0 ]
  expect "$1: named" contains "$(echo "$output" | tr -s '\n ' ' ')" "$2"
}

reset
check
expect "good tree: accepted" [ "$code" = 0 ]
expect "good tree: counted" contains "$output" "3 includes"

reset
echo '#include "src/model/gpt.h"' >>"$tree/src/core/error.h"
echo '#pragma once' >"$tree/src/model/gpt.h"
refuses "upwards" "src/core/error.h includes \"src/model/gpt.h\": src/core must not see src/model"

reset
echo '#include "io/tokens.h"' >>"$tree/src/model/gpt.cpp"
refuses "another header of io" "src/model must not see io"

reset
echo '#include "src/kernels/cpu/dense/product.h"' >>"$tree/src/model/gpt.cpp"
refuses "private header" "private to one backend"

reset
echo '#include "error.h"' >>"$tree/src/core/error.cpp"
refuses "path not from the root" "no path from the root"

reset
echo 'int x;' >"$tree/parallel/grid.h"
refuses "no pragma" "parallel/grid.h has no #pragma once"

reset
mkdir "$tree/parallel/wire"
echo '#include "parallel/wire/wire.h"' >"$tree/parallel/grid.cpp"
printf '#pragma once\n#include "parallel/choice/bits.h"\n' >"$tree/parallel/wire/wire.h"
mkdir "$tree/parallel/choice"
echo '#pragma once' >"$tree/parallel/choice/bits.h"
refuses "folders of a layer" "parallel/wire/wire.h includes \"parallel/choice/bits.h\": parallel/wire must not see choice"

reset
echo '#include "src/kernels/kernels.h"' >>"$tree/src/kernels/cpu/dense/product.h"
echo '#include "src/kernels/cpu/dense/product.h"' >"$tree/src/kernels/kernels.cpp"
refuses "circle" "a circle of files: src/kernels/cpu/dense/product -> src/kernels/kernels -> src/kernels/cpu/dense/product"

reset
yes '// a line; with [brackets' | head -n 801 >"$tree/parallel/long.cpp"
refuses "long file" "parallel/long.cpp has 801 lines"

rm -rf "$tree"
mkdir "$tree"
refuses "no source at all" "is ROOT the checkout?"
finish
