#!/bin/sh
# package_test.sh ROOT BUILD: another project can use the installed package. Installs it, builds the example with
# it, and runs the example, which must prune.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$2" --prefix "$folder/installed" >"$folder/log"
cmake -G Ninja -S "$1/examples/spirals" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$folder/installed" >>"$folder/log"
cmake --build "$folder/build" >>"$folder/log" || { cat "$folder/log"; exit 1; }
"$folder/build/spirals" | tee "$folder/out"
"$folder/installed/bin/espalier" info >/dev/null
kept=$(awk 'END { print $6 }' "$folder/out")
all=$(awk 'END { print $8 }' "$folder/out")
[ "$kept" -lt $((all / 5)) ] || { echo "not pruned: $kept of $all kept"; exit 1; }
