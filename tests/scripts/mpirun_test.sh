#!/bin/sh
# scripts/mpirun.sh with stand-ins for launchers: the one that it calls, with which words and variables.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
script=$root/scripts/mpirun.sh
unset ESPALIER_MPIRUN ESPALIER_MPIRUN_FLAGS

for name in mpirun mpiexec.other srun; do
  fake $name <<'EOS'
echo "${0##*/} $*"
echo "yield $OMPI_MCA_mpi_yield_when_idle bind $OMPI_MCA_hwloc_base_binding_policy $PRTE_MCA_hwloc_default_binding_policy $I_MPI_PIN"
exit 7
EOS
done

run "$script" 2
expect "no program: usage" [ "$code" = 2 ]

run "$script" 1 program "two words" x
expect "the launcher's exit code" [ "$code" = 7 ]
expect "mpirun by default" contains "$output" "mpirun -n 1 program two words x"
expect "no binding in any MPI, no yielding while cores suffice" contains "$output" "yield 0 bind none none 0"

run "$script" 100000 program
expect "ranks beyond the cores yield" contains "$output" "yield 1"

ESPALIER_MPIRUN=mpiexec.other ESPALIER_MPIRUN_FLAGS="-a b" run "$script" 2 program
expect "another launcher, with flags" contains "$output" "mpiexec.other -n 2 -a b program"

ESPALIER_MPIRUN=absent-launcher run "$script" 2 program
expect "a missing launcher: exit code 1" [ "$code" = 1 ]
expect "a missing launcher is named" contains "$output" "absent-launcher is missing"

ESPALIER_MPIRUN=srun run "$script" 2 program
expect "srun: its own words" contains "$output" "srun -n 2 --overlap --overcommit --cpu-bind=none --kill-on-bad-exit=1 program"

finish
