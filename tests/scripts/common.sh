#!/bin/sh
# Sourced by the script tests: a scratch folder, stand-ins for programs, and checks that count.
export root="$1"
scratch=$(mktemp -d)
failures=0
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin"

# fake NAME: puts a program of that name, its text from standard input, before all others.
fake() {
  { echo '#!/bin/sh' && cat; } >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}

# run COMMAND...: its output (both streams) in $output, its exit code in $code; the stand-ins come first.
run() {
  code=0
  output=$(PATH="$scratch/bin:$PATH" "$@" 2>&1 </dev/null) || code=$?
}

# expect WHAT CONDITION...: counts and shows a condition that does not hold.
expect() {
  what=$1
  shift
  if ! "$@"; then
    failures=$((failures + 1))
    printf 'FAILED: %s\n  exit code %s, output:\n%s\n' "$what" "${code-}" "${output-}"
  fi
}
contains() { case $1 in *"$2"*) true ;; *) false ;; esac }
lacks() { ! contains "$1" "$2"; }

finish() { exit $((failures > 0)); }
