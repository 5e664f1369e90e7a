#!/bin/sh
# scripts/config-page.sh [PROGRAM]: writes the output of `espalier info --config-help` into docs/config.md.
set -e
cd "$(dirname "$0")/.."
help=$(mktemp)
"${1:-build/src/cli/espalier}" info --config-help >"$help"
# The help is the fenced block without a language.
awk -v help="$help" '
  /^```/ { if (block) { block = ""; print; next } block = $0; print
           if (block == "```") while ((getline line < help) > 0) print line
           next }
  block != "```" { print }' docs/config.md >docs/config.md.new
mv docs/config.md.new docs/config.md
rm "$help"
