#!/usr/bin/env bash
# Tests and times the CUDA backend on a machine with a GPU, from a bundle packed on a machine without one.
#
#   benchmarks/gpu.sh pack [OUT]            OUT: a folder to make (default build-gpu/bundle); beside it OUT.tar.xz
#   benchmarks/gpu.sh run BUNDLE RESULTS    BUNDLE: that folder, or OUT.tar.xz; RESULTS: a folder for three files
#
# pack has the requirements of the CUDA build (CMake preset cuda). It builds for ARCHITECTURES (default
# 90a-real) in BUILD (default build-gpu), collects programs, tests, benchmarks, the shared libraries that a
# bare machine lacks, mpirun with its plugins and the peer's scripts, and prints the sizes. The bundle lacks
# libc, the driver, cuBLASLt, cuSPARSE and cuDNN: programs load them on the target from CUBLAS_DIR, the
# system's folders, a CUDA toolkit or Python's nvidia packages.
#
# run needs python3, and PyTorch for the peer; no other file of the repository, and no network. It takes at
# most TOTAL_S (9 minutes), and each step at most its own limit. A failed or impossible step is recorded, and
# the rest continues. Because all steps take longer than one call, STEPS names a group (first, second, third,
# fourth, rest) or single steps (gpu/plan.py). The exit code is 0 if no step failed. Results: summary.md,
# results.jsonl and logs.txt, complete after each step.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

die() { echo "$0: $*" >&2; exit 1; }
usage() { sed -n 2,6p "$0" >&2; exit 2; }

programs="src/cli/espalier tests/cuda/cuda_tests tests/cuda/cuda_whole_run_tests
  benchmarks/kernels_benchmark benchmarks/sparse_benchmark benchmarks/block_benchmark benchmarks/codec_benchmark
  benchmarks/breakdown_benchmark"

# Libraries that every machine with a driver has: libc and its parts, the driver.
leave_out='^(linux-vdso|ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|nsl|cuda))\.so'

# copy_libraries FILE…: copies the libraries that they need, directly or not, into $out/lib.
copy_libraries() {
  ldd "$@" 2>/dev/null | awk '/=> \//{ print $1, $3 }' | sort -u | while read -r name path; do
    [[ $name =~ $leave_out ]] || [ -e "$out/lib/$name" ] || install -m 755 "$(readlink -f "$path")" "$out/lib/$name"
  done
  if ldd "$@" 2>/dev/null | grep 'not found' >&2; then die "libraries are missing here"; fi
}

# mpirun finds its plugins and texts below OPAL_PREFIX, at their paths below /usr.
copy_mpi() {
  local mpirun plugins data
  mpirun=$(readlink -f "$(command -v mpirun)") || die "mpirun is missing; on Debian: apt-get install openmpi-bin"
  plugins=$(ompi_info --path pkglibdir | sed 's/.*: *//')
  data=$(ompi_info --path pkgdatadir | sed 's/.*: *//')
  install -m 755 "$mpirun" "$out/bin/mpirun"
  mkdir -p "$out/${plugins#/usr/}" "$out/${data#/usr/}"
  # Copies the plugins for shared memory. Plugins for networks need libraries of drivers.
  local plugin
  for plugin in "$plugins"/mca_*.so; do
    case ${plugin##*/} in
      *ofi* | *openib* | *psm* | *ucx* | *slurm* | *flux* | *jsm* | *memheap* | *scoll* | *spml* | *sshmem* | \
        *_io_* | *fcoll* | *fbtl* | *_fs_* | *sharedfp* | *gridengine* | *simulator* | *monitoring*) ;;
      *) install -m 644 "$plugin" "$out/${plugins#/usr/}/" ;;
    esac
  done
  cp "$data"/*.txt "$out/${data#/usr/}/"
  copy_libraries "$out/bin/mpirun" "$out/${plugins#/usr/}"/*.so
}

pack() {
  local build=${BUILD:-$here/../build-gpu} names=() files=() name
  out=$(realpath -m "${1:-$here/../build-gpu/bundle}")
  [ ! -e "$out" ] || [ -e "$out/with" ] || die "$out exists and is not a bundle: name another folder"
  for name in $programs; do names+=("${name##*/}") files+=("$build/$name"); done
  cmake --preset cuda -S "$here/.." -B "$build" "-DCMAKE_CUDA_ARCHITECTURES=${ARCHITECTURES:-90a-real}" >&2
  cmake --build "$build" --target "${names[@]}" -- "-j${JOBS:-2}" >&2
  rm -rf "$out" "$out.tar.xz"
  mkdir -p "$out/bin" "$out/lib" "$out/peers" "$out/gpu"
  install -m 755 "${files[@]}" "$out/bin/"
  copy_libraries "$out/bin/"*
  copy_mpi
  find "$out/bin" "$out/lib" -type f -exec strip --strip-unneeded {} + 2>/dev/null
  cp "$here/gpu/"*.py "$out/gpu/"
  cp "$here/peers/gpt.py" "$here/peers/gpu_attention.py" "$here/peers/gpu_step.py" "$out/peers/"
  install -m 755 "$here/gpu.sh" "$out/gpu.sh"
  install -m 755 "$here/gpu/with" "$out/with"
  # The name under which the programs load cuBLASLt.
  grep -ao 'libcublasLt\.so\.[0-9]*' "$build/src/cli/espalier" | sort | tail -n 1 >"$out/cublas"
  git -C "$here" describe --always --dirty >"$out/version" 2>/dev/null || echo unknown >"$out/version"
  # The programs share most of their code: with all of them in one dictionary the size halves.
  tar -C "$(dirname "$out")" -c "$(basename "$out")" | xz -T1 --lzma2=preset=3,dict=256MiB >"$out.tar.xz"
  check_size
}

# At most 64 MiB are sent to the machine: the working tree (without ignored files) and the bundle.
check_size() {
  local bundle tree
  bundle=$(stat -c %s "$out.tar.xz")
  tree=$(cd "$here/.." && git ls-files -z --cached --others --exclude-standard 2>/dev/null |
    xargs -0r stat -c %s -- 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }') || true
  echo "$out: $(du -sm "$out" | cut -f1) MiB; $out.tar.xz: $(mib "$bundle") MiB, working tree: $(mib "$tree") MiB" \
    "(together at most 64)"
  [ $((bundle + tree)) -le $((64 << 20)) ] || die "larger than 64 MiB: pack fewer architectures"
}
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f", bytes / 2^20 }'; }

run() {
  local bundle=$1 results=$2
  command -v python3 >/dev/null || die "python3 is missing"
  if [ -f "$bundle" ]; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    xz -dc "$bundle" 2>/dev/null | tar -x -C "$unpacked" ||
      python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$bundle" "$unpacked"
    bundle=$(dirname "$(find "$unpacked" -maxdepth 2 -name with)")
  fi
  [ -x "$bundle/with" ] || die "$bundle is not a bundle of \`$0 pack\`"
  mkdir -p "$results"
  python3 "$bundle/gpu/steps.py" "$bundle" "$results"
}

case "${1:-} $#" in
  "pack 1" | "pack 2") pack "${2:-}" ;;
  "run 3") run "$2" "$3" ;;
  *) usage ;;
esac
