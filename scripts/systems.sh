#!/usr/bin/env bash
# scripts/systems.sh [SYSTEM…]: tries this checkout's last commit on other systems (default: all but ubuntu2404,
# whose keyring Debian 12 does not have).
#
#   debian12, debian13, ubuntu2404   quickstart.sh and test.sh, as a new user runs them
#   mpich      Debian 12 with MPICH instead of Open MPI: tests of ranks, and jobs of Slurm by PMI2
#   aarch64    Debian 12's cross compiler: unit tests under qemu-user, of a CPU without SVE and of one with it
#
# Each system is a folder below build-systems/ that debootstrap fills with a minimal installation, and in
# which commands run as root with an empty environment. The folder is made anew in each call; ESPALIER_KEEP=1
# keeps it afterwards, with the build. A system that cannot be made counts as failed. A system takes half an
# hour on two cores; its log is build-systems/SYSTEM.log.
#
# Needs root, debootstrap and a network. Debian's packages come from $ESPALIER_MIRROR, else from
# the mirror of this machine. The last line is "N passed, N failed", and above it are the rows for
# the table of docs/running.md.
set -euo pipefail
cd "$(dirname "$0")/.."

default_systems=(debian12 debian13 mpich aarch64)
all_systems=("${default_systems[@]}" ubuntu2404)
work=$PWD/build-systems
self=scripts/systems.sh

fail() {
  echo "$self: $*" >&2
  exit 1
}

# in_folder FOLDER COMMAND: runs a shell command in the folder's system, in its checkout if there is one. When
# the command ends, all processes that it started end too.
in_folder() {
  # shellcheck disable=SC2016  # the inner shell expands
  unshare --mount --pid --fork --kill-child sh -euc '
    mount --rbind "$1" "$1" # a mount point, as the root of a system is: programs may make namespaces
    mount -t proc proc "$1/proc"
    mount --rbind --make-rslave /sys "$1/sys"
    mount --bind /dev "$1/dev"
    mount -t tmpfs -o mode=1777 shm "$1/dev/shm"
    cd /
    exec env -i HOME=/root TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      chroot "$1" /bin/bash -euo pipefail -c "cd /root/espalier 2>/dev/null || cd /root; $2"' sh "$1" "$2"
}

# The mirror of Debian that this machine uses.
mirror_here() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' '
}

# make_debian FOLDER SUITE: a minimal Debian with its updates.
make_debian() {
  local mirror=${ESPALIER_MIRROR:-$(mirror_here)}
  mirror=${mirror:-http://deb.debian.org/debian}
  make_system "$1" "$2" "$mirror" "$2"
  echo "deb $mirror $2 main
deb $mirror $2-updates main
deb ${mirror%/}-security $2-security main" >"$1/etc/apt/sources.list"
}

# make_ubuntu FOLDER SUITE. Debian's debootstrap knows only old suites of Ubuntu: gutsy's steps fit later ones.
make_ubuntu() {
  local mirror=http://archive.ubuntu.com/ubuntu keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  [ -e $keyring ] || fail "$keyring is missing; Debian 13 and Ubuntu have it in ubuntu-keyring"
  make_system "$1" "$2" $mirror gutsy --keyring=$keyring
  echo "deb $mirror $2 main universe
deb $mirror $2-updates main universe
deb $mirror $2-security main universe" >"$1/etc/apt/sources.list"
}

# make_system FOLDER SUITE MIRROR STEPS [OPTION…]: fills FOLDER by debootstrap. It gets the apt settings and the
# certificates of this machine, and a clone of the checkout in /root/espalier.
make_system() {
  local folder=$1
  rm -rf --one-file-system "$folder"
  debootstrap --variant=minbase "${@:5}" "$2" "$folder" "$3" "$4"
  apt-config dump | grep -E '^Acquire::(http|https|Check|Retries)' >"$folder/etc/apt/apt.conf.d/90host" || true
  cp /etc/resolv.conf /etc/hosts "$folder/etc/"
  mkdir -p "$folder/etc/ssl/certs"
  [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
  git clone -q . "$folder/root/espalier"
}

# row SYSTEM PROGRAM: the row of docs/running.md, with the versions that the program reports.
row() {
  in_folder "$work/$1" "$2 info --json" | python3 -c '
import datetime, json, sys
info = json.load(sys.stdin)
print("|", " | ".join([sys.argv[1], "GCC " + info["compiler"], info["gemm"], info["mpi"], info["hdf5"],
                       info["git"], str(datetime.date.today()), "passed"]), "|")' "$1" >"$work/$1.row"
}

# The README's two commands.
readme_on() { # SYSTEM
  in_folder "$work/$1" './quickstart.sh'
  in_folder "$work/$1" './test.sh'
  row "$1" build/src/cli/espalier
}

debian12() {
  make_debian "$work/debian12" bookworm
  readme_on debian12
}
debian13() {
  make_debian "$work/debian13" trixie
  readme_on debian13
}
ubuntu2404() {
  make_ubuntu "$work/ubuntu2404" noble
  readme_on ubuntu2404
}

mpich() {
  make_debian "$work/mpich" bookworm
  in_folder "$work/mpich" 'export ESPALIER_MPI=mpich
    scripts/install-packages.sh --slow
    cmake --preset release -DESPALIER_BENCHMARKS=OFF -DESPALIER_CPU_TABLES=native
    cmake --build build
    ctest --test-dir build --output-on-failure --no-tests=error -LE slow -L mpi
    ctest --test-dir build --output-on-failure --no-tests=error -LE "slow|mpi" -R "^(parallel|cli)[.]" -j "$(nproc)"
    python3 tests/scripts/slurm_test.py . "$PWD/build/src/cli/espalier"'
  row mpich build/src/cli/espalier
}

aarch64() {
  make_debian "$work/aarch64" bookworm
  in_folder "$work/aarch64" 'dpkg --add-architecture arm64
    apt-get -q update
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q install -y --no-install-recommends g++-aarch64-linux-gnu cmake ninja-build pkg-config qemu-user-static \
      git ca-certificates nlohmann-json3-dev libcli11-dev lib{dnnl,openmpi,hdf5,tomlplusplus,fmt,xxhash,pcre2}-dev:arm64 \
      lib{utf8proc,sentencepiece,gtest,gmock}-dev:arm64
    cmake --preset release --toolchain cmake/aarch64.cmake -DESPALIER_BENCHMARKS=OFF
    cmake --build build --target espalier {core,kernels,sparse,io,pruning,optim,model,parallel}_tests
    for cpu in neoverse-n1 max; do
      export QEMU_CPU=$cpu OMP_NUM_THREADS=2
      for folder in core kernels sparse io pruning optim model parallel; do
        # qemu-user does not limit the memory of a program, as one test needs, and cannot map 1 TB, as another.
        qemu-aarch64-static build/tests/${folder}_tests --gtest_brief=1 --gtest_filter=-RankLife.*:*RankDeath.*:$(
          )FuzzIndex.HugeCountsWithFewBytesAllocateNothing:Fingerprint.OfALargeFileTakesNoTime
      done
    done'
  row aarch64 'qemu-aarch64-static build/src/cli/espalier'
}

if [ "${1-}" = --one ]; then # a process of its own, so that the first command that fails ends the system
  "$2"
  exit
fi

systems=("$@")
[ $# -gt 0 ] || systems=("${default_systems[@]}")
for system in "${systems[@]}"; do
  [[ " ${all_systems[*]} " == *" $system "* ]] || fail "no system $system: ${all_systems[*]}"
done
[ "$(id -u)" = 0 ] || fail "needs root, to make the folders of other systems"
command -v debootstrap >/dev/null || fail "debootstrap is missing; on Debian: apt-get install debootstrap"

mkdir -p "$work"
passed=0 failed=0
for system in "${systems[@]}"; do
  printf '== %s (%d:%02d), log: %s\n' "$system" $((SECONDS / 3600)) $((SECONDS / 60 % 60)) "build-systems/$system.log"
  rm -f "$work/$system.row"
  if "$self" --one "$system" >"$work/$system.log" 2>&1 </dev/null; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    tail -n 30 "$work/$system.log" >&2
    echo "Failed: $system" >&2
  fi
  [ -n "${ESPALIER_KEEP-}" ] || rm -rf --one-file-system "${work:?}/$system"
done
for system in "${systems[@]}"; do
  cat "$work/$system.row" 2>/dev/null || true
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
