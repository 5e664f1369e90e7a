#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS] [TARGET...]: runs libFuzzer on targets of tests/fuzz (all), SECONDS each
# (60), from the committed corpus. Exit code 1: a finding. Its input is then a file TARGET-* of
# build-fuzz/findings; the program fuzz_TARGET with that file as its argument repeats it. With the
# repair, move the file to the target's folder of tests/fuzz/corpus.
#
# Inputs that reach new code are kept in build-fuzz/corpus: a later call starts from them, too.
# Needs clang 16 and libFuzzer (scripts/install-packages.sh --ci).
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=60
if [[ ${1-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for file in tests/fuzz/*_target.cpp; do
    name=${file##*/}
    targets+=("${name%_target.cpp}")
  done
fi

cmake --preset fuzz >build-fuzz.log || { cat build-fuzz.log >&2; exit 1; }
rm -f build-fuzz.log
cmake --build build-fuzz --target "${targets[@]/#/fuzz_}"

# An input of 16 kB may take 10 s of a machine that does nothing else (sanitizers make a second
# several) and allocate 64 MiB at once.
# Leaks of HDF5's library are left out (tests/fuzz/fuzz.cpp). Fake stack frames, which find uses of
# locals after return, halve the speed. Call stacks of allocations cost a tenth; the program alone,
# with the finding as its argument, shows them.
export ASAN_OPTIONS=detect_stack_use_after_return=0:malloc_context_size=0
# run_directory rewrites files, and ext4 writes a file that was truncated to disk when it is closed.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm
failed=""
mkdir -p build-fuzz/findings
for target in "${targets[@]}"; do
  new=build-fuzz/corpus/$target
  mkdir -p "$new"
  log=build-fuzz/findings/$target.log
  echo "== $target"
  if build-fuzz/tests/fuzz/fuzz_"$target" -max_total_time="$seconds" -max_len=16384 -timeout=10 \
    -malloc_limit_mb=64 -rss_limit_mb=1024 -artifact_prefix=build-fuzz/findings/"$target"- \
    -print_final_stats=1 "$new" tests/fuzz/corpus/"$target" >"$log" 2>&1; then
    grep -aE 'number_of_executed_units|average_exec_per_sec|peak_rss_mb' "$log"
  else
    tail -n 40 "$log" >&2
    failed="$failed $target"
  fi
done
[ -z "$failed" ] || { echo "Findings:$failed" >&2; exit 1; }
