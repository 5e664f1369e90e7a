#!/bin/sh
# scripts/systems.sh with a fake debootstrap: a system that cannot be made, or whose commands fail, is a failure.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
copy=$scratch/checkout
mkdir -p "$copy/scripts"
cp "$root/scripts/systems.sh" "$copy/scripts/"
export SCRATCH="$scratch"
fake id <<'EOS'
cat "$SCRATCH/uid"
EOS
fake debootstrap <<'EOS'
echo "$*" >>"$SCRATCH/calls"
[ -e "$SCRATCH/makes" ] || { echo "E: no mirror"; exit 1; }
for argument; do case $argument in /*) folder=$argument && break ;; esac; done
mkdir -p "$folder/etc/apt/apt.conf.d" "$folder/proc" "$folder/sys" "$folder/dev/shm"
EOS
fake git <<'EOS'
for folder; do :; done
mkdir -p "$folder"
EOS
fake unshare <<'EOS'
echo "unshare $*" >>"$SCRATCH/calls"
case $* in *quickstart*) exit "$(cat "$SCRATCH/quickstart-code")" ;; esac
echo '{"compiler": "14.2.0", "gemm": "oneDNN 3.7.2", "mpi": "Open MPI v5.0.7", "hdf5": "HDF5 1.14.5", "git": "abc"}'
EOS
echo 0 >"$scratch/uid"
last() { echo "$output" | tail -n 1; }

run "$copy/scripts/systems.sh" debian13
expect "no folder: a failure" [ "$code" = 1 ]
expect "no folder: count" [ "$(last)" = "0 passed, 1 failed" ]
expect "no folder: the reason" contains "$output" "E: no mirror"

touch "$scratch/makes"
echo 1 >"$scratch/quickstart-code"
run "$copy/scripts/systems.sh" debian13
expect "quickstart fails: count" [ "$(last)" = "0 passed, 1 failed" ]
expect "quickstart fails: the system's name" contains "$output" "Failed: debian13"
expect "quickstart fails: test.sh does not run" lacks "$(cat "$scratch/calls")" "test.sh"

echo 0 >"$scratch/quickstart-code"
run "$copy/scripts/systems.sh" debian13 debian12
expect "all pass: exit code" [ "$code" = 0 ]
expect "all pass: count" [ "$(last)" = "2 passed, 0 failed" ]
expect "all pass: Debian 13" contains "$(cat "$scratch/calls")" "minbase trixie "
expect "all pass: both README commands" contains "$(cat "$scratch/calls")" "./test.sh"
expect "all pass: the row" contains "$output" "| debian13 | GCC 14.2.0 | oneDNN 3.7.2 | Open MPI v5.0.7 | HDF5 1.14.5 | abc | "
expect "all pass: folders are removed" [ ! -e "$copy/build-systems/debian13" ]

run "$copy/scripts/systems.sh" debian99
expect "unknown system: exit code" [ "$code" = 1 ]
expect "unknown system: the list" contains "$output" "debian12 debian13"

echo 1000 >"$scratch/uid"
run "$copy/scripts/systems.sh" debian13
expect "no root: message" contains "$output" "needs root"
expect "no root: exit code" [ "$code" = 1 ]
finish
