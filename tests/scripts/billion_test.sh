#!/bin/sh
# billion_test.sh ROOT PROGRAM: examples/billion/run.sh --small: a signal stops 2 stages, 2 x 2 ranks go on, and the
# weights are exported.
set -eu
program=$2
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
cat "$root"/docs/*.md >"$scratch/text.txt"
matches() { printf '%s\n' "$1" | grep -q "$2"; }
export OUT="$scratch/runs" TEXT="$scratch/text.txt" PROGRAM="$program"

run "$root/examples/billion/run.sh" --small
expect "the example succeeds" [ "$code" = 0 ]
expect "the signal stops the first run" contains "$output" "by a signal"
expect "4 ranks resume from the checkpoint of 2" contains "$output" "resumed from $OUT/2-stages/checkpoints/step-"
expect "they are 2 stages and 2 replicas" contains "$output" "2 pipeline stages x 2 replicas"
expect "they take the other steps" contains "$output" "ended after step 30"
expect "weights are exported" contains "$("$program" inspect "$OUT/weights.h5")" "blocks.5.mlp.contract.weight"
table=$(printf '%s\n' "$output" | sed -n '/^== Both runs/,$p')
for line in 'Tokens/s  *[0-9]' 'Model state per parameter  *[0-9.]* B' 'All-reduce per step  *none  *[0-9]' \
  'Peak memory of the ranks  *0\.[0-9]* GB  *0\.' 'Rank 0 sends in a step  *0\.[0-9]* GB  *0\.' \
  'Loss of the first step  *[0-9.]*  *[0-9.]*' 'Loss of the last step  *[0-9.]*  *[0-9.]*'; do
  expect "the table has: $line" matches "$table" "$line"
done
falls=$(printf '%s\n' "$table" | awk '/^Loss of the first/ { first = $6 } /^Loss of the last/ { print $7 < first }')
expect "the loss falls" [ "$falls" = 1 ]

run "$root/examples/billion/run.sh" --large
expect "another option: usage" [ "$code" = 2 ]
finish
