#!/usr/bin/env bash
# Sourced by benchmark scripts that train on a text. Reads the text's path from the script's first
# argument (without one: prints the script's header, exit code 2), and changes to the root of the
# checkout. Variables for the script:
#
#   $text      absolute path of the text
#   $program   espalier; the environment variable ESPALIER names another one
#   $work      a scratch folder, removed at the end
#   $run       the run directory of `train`
#   launcher   words before the program, for example launcher=(scripts/mpirun.sh 2)
#
# SET="--set KEY=VALUE …" in the environment adds options to each training.
set -euo pipefail
[ -r "${1-}" ] || { sed '1d; /^# shellcheck/d; /^#/!Q; s/^# \{0,1\}//' "$0" >&2; exit 2; }
text=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=${ESPALIER:-build/src/cli/espalier}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run=$work/run
launcher=()

# train KEY=VALUE…: trains configs/shakespeare-char.toml with these settings into $run. Prints the
# log only if the run fails; the script then ends.
train() {
  local options=() setting
  for setting in "$@"; do options+=(--set "$setting"); done
  # shellcheck disable=SC2086  # SET holds several words
  "${launcher[@]}" "$program" train configs/shakespeare-char.toml --resume none --out "$run" \
    --set "data.train=[\"$text\"]" --set run.trace=false "${options[@]}" ${SET:-} >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
}

# median KEY: of the second half of the run's steps, to one decimal.
median() {
  python3 -c '
import json, statistics, sys
rows = [json.loads(line)[sys.argv[1]] for line in open(sys.argv[2])]
print(round(statistics.median(rows[len(rows) // 2:]), 1))' "$1" "$run/metrics.jsonl"
}
