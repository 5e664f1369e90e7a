#!/usr/bin/env bash
# scripts/nightly.sh: the checks that are too slow for .ci/run.
#
#   tests       all tests (test.sh --slow)
#   random      tests that draw their cases, with 20 seeds that depend on the date
#   sanitizers  address, undefined behaviour and threads over all fast tests
#   coverage    lines that fast tests run, by folder: docs/coverage.md
#
# STEPS="random coverage" selects steps. Takes hours on two cores. The last line is "N passed, N failed"
# and counts steps.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=${STEPS:-tests random sanitizers coverage}
passed=0 failed=0 broken=""

# The seeds depend on the date. The printed command repeats a failure.
random_tests() {
  local first=$(($(date +%s) / 86400 * 100))
  export ESPALIER_RANDOM=$first:$((first + 20))
  echo "ESPALIER_RANDOM=$ESPALIER_RANDOM ctest --test-dir build -R '\.random_'"
  ctest --test-dir build --output-on-failure -R '\.random_' --timeout 3600
}

coverage() {
  cmake --preset coverage
  cmake --build build-coverage
  find build-coverage -name '*.gcda' -delete
  # A test that times out under instrumentation still counts for the lines that it ran.
  ctest --test-dir build-coverage -j "$(nproc)" -LE slow --timeout 3600 || true
  scripts/coverage_table.py build-coverage docs/coverage.md
}

for step in $steps; do
  printf '\n== %s (%d:%02d)\n' "$step" $((SECONDS / 3600)) $((SECONDS / 60 % 60))
  code=0
  case $step in
    tests) ESPALIER_BENCHMARKS=ON ./test.sh --slow || code=$? ;;
    random) (random_tests) || code=$? ;;
    sanitizers) { scripts/sanitize.sh all && scripts/sanitize.sh threads; } || code=$? ;;
    coverage) coverage || code=$? ;;
    *) echo "$0: no step $step: tests, random, sanitizers, coverage" >&2; exit 2 ;;
  esac
  if [ $code = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) broken="$broken $step"; fi
done
[ -z "$broken" ] || echo "Failed:$broken"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
