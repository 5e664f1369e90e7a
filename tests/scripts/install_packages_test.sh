#!/bin/sh
# scripts/install-packages.sh with a fake package database: its calls of apt, and the user that makes them.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
script=$root/scripts/install-packages.sh
export SCRATCH="$scratch"

# The file "installed" lists the installed packages; "all" means every package.
fake dpkg-query <<'EOS'
for package; do :; done
grep -qx -e all -e "$package" "$SCRATCH/installed" && printf installed
EOS
fake apt-get <<'EOS'
echo "$*" >>"$SCRATCH/apt-calls"
exit "$(cat "$SCRATCH/apt-code")"
EOS
fake id <<'EOS'
cat "$SCRATCH/uid"
EOS
fake sudo <<'EOS'
[ -e "$SCRATCH/may-sudo" ] || exit 1
[ "$1" = -n ] && exit 0
echo sudo >>"$SCRATCH/apt-calls"
"$@"
EOS
reset() { # UID INSTALLED
  echo "$1" >"$scratch/uid"
  printf '%b' "$2" >"$scratch/installed"
  echo 0 >"$scratch/apt-code"
  rm -f "$scratch/may-sudo"
  : >"$scratch/apt-calls"
}

reset 1000 "all\n"
run "$script" --tests
expect "nothing missing: success" [ "$code" = 0 ]
expect "nothing missing: silent" [ -z "$output" ]
expect "nothing missing: apt is not called" [ ! -s "$scratch/apt-calls" ]

reset 1000 "g++\ncmake\n"
run "$script"
expect "no root: exit code 1" [ "$code" = 1 ]
expect "no root: the line to run" contains "$output" \
  "  apt-get update && apt-get install -y --no-install-recommends ninja-build "
expect "no root: installed packages are not named" lacks "$output" " cmake "
expect "no root: test packages are not named" lacks "$output" "libgtest-dev"
expect "no root: apt is not called" [ ! -s "$scratch/apt-calls" ]

reset 0 "all-but-some\n"
run "$script" --tests
expect "root: success" [ "$code" = 0 ]
expect "root: updates first" [ "$(head -n 1 "$scratch/apt-calls")" = "-q update" ]
expect "root: installs" contains "$(cat "$scratch/apt-calls")" "-q install -y --no-install-recommends g++ cmake"
expect "root: test packages too" contains "$(cat "$scratch/apt-calls")" "libgtest-dev"
expect "root: no packages of slow tests" lacks "$(cat "$scratch/apt-calls")" "slurmd"
expect "root: no formatter and no second compiler" lacks "$(cat "$scratch/apt-calls")" "clang"
expect "root: no sudo" lacks "$(cat "$scratch/apt-calls")" "sudo"

reset 0 "all-but-some\n"
run env ESPALIER_MPI=mpich "$script"
expect "MPICH: its packages" contains "$(cat "$scratch/apt-calls")" " libmpich-dev mpich libhdf5-mpich-dev "
expect "MPICH: none of Open MPI" lacks "$(cat "$scratch/apt-calls")" "openmpi"
run env ESPALIER_MPI=other "$script"
expect "another MPI: exit code 2" [ "$code" = 2 ]

reset 0 "all-but-some\n"
run "$script" --slow
expect "slow tests: test packages" contains "$(cat "$scratch/apt-calls")" "libgtest-dev"
expect "slow tests: Slurm" contains "$(cat "$scratch/apt-calls")" "slurmctld slurmd slurm-client"

reset 0 "all-but-some\n"
run "$script" --ci
expect "continuous integration: formatter" contains "$(cat "$scratch/apt-calls")" "clang-format-14"

reset 0 "g++\n"
run "$script" --package
expect "cpack's packages: success" [ "$code" = 0 ]
expect "cpack's packages" contains "$(cat "$scratch/apt-calls")" " perl-doc git ca-certificates dpkg-dev file"

reset 1000 ""
touch "$scratch/may-sudo"
run "$script"
expect "sudo: success" [ "$code" = 0 ]
expect "sudo: used" [ "$(head -n 1 "$scratch/apt-calls")" = sudo ]

reset 0 ""
echo 100 >"$scratch/apt-code"
run "$script"
expect "apt fails: exit code 1" [ "$code" = 1 ]
expect "apt fails: message" contains "$output" "apt-get update failed"
expect "apt fails: the line by hand" contains "$output" "By hand: apt-get update &&"

run "$script" --test
expect "unknown option: usage" [ "$code" = 2 ]
finish
