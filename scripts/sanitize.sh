#!/usr/bin/env bash
# scripts/sanitize.sh unit|all|threads: builds with sanitizers and runs tests. Exit code 0: all passed.
#
#   unit      address and undefined behaviour; fast tests of one process of the folders that handle raw
#             memory or read hostile files; in build-asan, with the kernels of this CPU only
#   all       address and undefined behaviour; every fast test; in build-asan, with all kernels
#   threads   data races, where ranks are threads or a thread works in the background; in build-tsan
set -euo pipefail
cd "$(dirname "$0")/.."

folders="core kernels sparse pruning io model parallel"
jobs=$(nproc)
# -O1 compiles in half the time of -O2; the checks cost more run time than the difference. Groups of
# sources compile faster than single ones.
flags=(-DESPALIER_BENCHMARKS=OFF -DESPALIER_UNITY=ON "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1"
  -DESPALIER_KERNEL_OPTIMIZATION=-O1)

case "${1-}" in
unit)
  cmake --preset asan "${flags[@]}" -DESPALIER_CPU_TABLES=native
  targets=() selection=""
  for folder in $folders; do
    [ -n "$(find "tests/$folder" -name '*_test.cpp' -print -quit 2>/dev/null)" ] || continue
    targets+=("${folder}_tests")
    selection="$selection${selection:+|}$folder"
  done
  cmake --build build-asan --target "${targets[@]}"
  export ESPALIER_CRASH_STATES=1  # of each operation; nightly visits more
  ctest --preset asan -j "$jobs" -R "^($selection)\\." -LE 'slow|mpi'
  ;;
all)
  cmake --preset asan "${flags[@]}" -DESPALIER_CPU_TABLES=all
  cmake --build build-asan
  ctest --preset asan -j "$jobs" -LE slow
  ;;
threads)
  cmake --preset tsan "${flags[@]}" -DESPALIER_CPU_TABLES=native
  cmake --build build-tsan --target core_tests io_tests parallel_tests simulation_tests train_tests espalier
  # GCC 12's sanitizer ends with "unexpected memory mapping" where the kernel places programs with more
  # than 28 random bits (vm.mmap_rnd_bits): without randomization its shadow memory always fits.
  setarch "$(uname -m)" --addr-no-randomize ctest --preset tsan -j "$jobs"
  ;;
*)
  sed -n 2,7p "$0" >&2
  exit 2
  ;;
esac
