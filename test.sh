#!/usr/bin/env bash
# test.sh [--slow]: installs missing packages, builds the program and the tests, and runs the tests
# (--slow: the slow ones too). The last line is "N passed, N failed"; exit code 0 when none failed.
# Skipped tests are listed and count as neither. Kernels of other CPUs are built and tested with --slow and by
# .ci/run; tests of GPU code that need no GPU with --slow, and where nvcc is on PATH.
set -euo pipefail
cd "$(dirname "$0")"

build=build
selection=(-LE slow)
packages=--tests
tables=native emulated=OFF
case "${1-}" in
"") ;;
--slow) selection=() packages=--slow tables=all emulated=ON ;;
*)
  echo "usage: $0 [--slow]" >&2
  exit 2
  ;;
esac

# An error before the tests are counted is a failure.
trap 'echo "0 passed, 1 failed"' EXIT

scripts/install-packages.sh $packages
# With a CUDA toolkit the CUDA backend is compiled too; its tests skip on machines without a GPU, where
# one architecture (H100) with few optimizations shows that it compiles, in less time.
if ! nvidia-smi -L >/dev/null 2>&1; then
  ! command -v nvcc >/dev/null || echo "No GPU here: CUDA kernels in $build are slow, for tests only (docs/gpu.md)"
  export CUDAARCHS=${CUDAARCHS:-90a-real} CUDAFLAGS=${CUDAFLAGS:--Xcicc=-O1 -Xptxas=-O1}
fi
cmake --preset release -DESPALIER_TESTS=ON -DESPALIER_CUDA=AUTO \
  "-DESPALIER_CPU_TABLES=${ESPALIER_CPU_TABLES:-$tables}" -DESPALIER_EMULATED_GPU=$emulated \
  "-DESPALIER_BENCHMARKS=${ESPALIER_BENCHMARKS:-OFF}" "-DESPALIER_WERROR=${ESPALIER_WERROR:-OFF}"
cmake --build $build

results=$PWD/$build/test-results.xml
rm -f "$results"
code=0
# One more than the cores: tests of ranks wait for each other.
ctest --test-dir $build -j "$(($(nproc) + 1))" --output-on-failure --output-junit "$results" "${selection[@]}" || code=$?

# Each test is one <testcase ... status="run|fail|disabled|notrun">. "notrun" with a message SKIP_... is a
# test that skipped itself; any other "notrun" is a test that could not start, which is a failure.
counts=$(awk '
  /<testcase / {
    name = $0
    sub(/.*<testcase name="/, "", name)
    sub(/".*/, "", name)
    if (/status="run"/) ++passed
    if (/status="fail"/) { ++failed; broken = broken "  " name "\n" }
    if (/status="disabled"/) skipped = skipped "  " name "\n"
    not_run = /status="notrun"/
  }
  not_run && /<skipped message=/ {
    if (/message="SKIP_/) skipped = skipped "  " name "\n"
    else { ++failed; broken = broken "  " name " (could not start)\n" }
    not_run = 0
  }
  END {
    if (skipped) printf "Skipped:\n%s", skipped > "/dev/stderr"
    if (broken) printf "Failed:\n%s", broken > "/dev/stderr"
    print passed + 0, failed + 0
  }' "$results")
inner=$(grep -hE '^\[  SKIPPED \] [^ ]+( \(.*\))?$' $build/Testing/Temporary/LastTest.log | sort -u || true)
if [ -n "$inner" ]; then
  printf 'Skipped within programs:\n%s\n' "$inner"
fi

read -r passed failed <<<"$counts"
if [ "$passed" = 0 ] || { [ $code != 0 ] && [ "$failed" = 0 ]; }; then
  failed=$((failed + 1))  # no test ran, or ctest itself failed
fi
trap - EXIT
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
