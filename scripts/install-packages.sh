#!/bin/sh
# install-packages.sh [--package|--tests|--slow|--ci]: installs missing Debian packages with apt, as root or
# by sudo. If none is missing, it needs neither root nor network. Without root and sudo it prints the command
# to run; exit code 1. --package adds those with which cpack makes packages, --tests those of the tests,
# --slow also those of slow tests (Slurm, cpack, Chromium), --ci those of the tests, of cpack and of .ci/run (Debian 12
# and Ubuntu 24.04 have its compiler and formatter). For Debian 12 and later, and Ubuntu 24.04 and later.
# ESPALIER_MPI=mpich takes MPICH instead of Open MPI.
set -eu

case ${ESPALIER_MPI:-openmpi} in
openmpi) mpi="libopenmpi-dev openmpi-bin libhdf5-openmpi-dev" ;;
mpich) mpi="libmpich-dev mpich libhdf5-mpich-dev" ;;
*)
  echo "$0: ESPALIER_MPI=$ESPALIER_MPI: set it to openmpi or mpich" >&2
  exit 2
  ;;
esac
program="g++ cmake ninja-build pkg-config libdnnl-dev $mpi
  libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev zlib1g-dev perl-doc git ca-certificates"
tests="libgtest-dev libgmock-dev libbenchmark-dev python3-h5py iproute2"
slow="slurmctld slurmd slurm-client chromium"
package="dpkg-dev file"
ci="clang-format-14 clang-16 libomp-16-dev libclang-rt-16-dev"

case "${1-}" in
"") wanted=$program ;;
--package) wanted="$program $package" ;;
--tests) wanted="$program $tests" ;;
--slow) wanted="$program $package $tests $slow" ;;
--ci) wanted="$program $package $tests $ci" ;;
*)
  echo "usage: $0 [--package|--tests|--slow|--ci]" >&2
  exit 2
  ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This system has no apt. Install what these Debian packages hold, then call this again:" >&2
  # shellcheck disable=SC2086  # a list
  echo " " $wanted >&2
  exit 1
fi

missing=""
for package in $wanted; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing="$missing $package"
done
missing=${missing# }
[ -n "$missing" ] || exit 0

line="apt-get update && apt-get install -y --no-install-recommends $missing"
if [ "$(id -u)" = 0 ]; then
  as_root=""
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
  as_root="sudo"
else
  echo "Packages are missing, and installing them needs root. Run this line as root, then call this again:" >&2
  echo "  $line" >&2
  exit 1
fi

echo "Installing: $missing"
run_apt() {
  # `env` comes after sudo, which drops variables. The log is shown only on failure.
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "apt-get $1 failed (its last lines are above): is there a network, and a free disk?" >&2
    echo "By hand: $line" >&2
    exit 1
  }
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run_apt update
# shellcheck disable=SC2086  # a list
run_apt install -y --no-install-recommends $missing
