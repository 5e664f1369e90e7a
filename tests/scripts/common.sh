#!/bin/sh
# Sourced by the script tests: a scratch folder, stand-ins for programs, and counted checks.
export root="$1"
scratch=$(mktemp -d)
failures=0
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin"

# fake NAME: makes a program NAME from standard input; `run` finds it before all others.
fake() {
  { echo '#!/bin/sh' && cat; } >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}

# run COMMAND...: sets $output (both streams) and $code (the exit code).
run() {
  code=0
  output=$(PATH="$scratch/bin:$PATH" "$@" 2>&1 </dev/null) || code=$?
}

# expect TEXT CONDITION...: prints TEXT and counts a failure if the condition is false.
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
