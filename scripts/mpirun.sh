#!/bin/sh
# mpirun.sh N PROGRAM [ARGS…]: runs PROGRAM on N ranks of this machine, for tests and benchmarks.
# N may exceed the cores: ranks are not bound, and yield their core while they wait. Works as root in
# a container. The exit code is that of the first rank that failed.
#
# The launcher is $ESPALIER_MPIRUN, by default mpirun; it must belong to the MPI library of PROGRAM. In a job
# of Slurm it may be srun. Settings are variables, which launchers that do not know them ignore.
set -eu
if [ $# -lt 2 ]; then
  echo "usage: $0 N PROGRAM [ARGS...]" >&2
  exit 2
fi
ranks=$1
shift
launcher=${ESPALIER_MPIRUN:-mpirun}
if ! command -v "$launcher" >/dev/null; then
  echo "$0: $launcher is missing; on Debian: apt-get install openmpi-bin (or mpich)" >&2
  exit 1
fi

# Open MPI 4 and 5 (PRTE): as root, more ranks than cores, no binding. Waiting ranks yield their core
# only if there are more ranks than cores, because the process that takes it may keep it for
# milliseconds.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
if [ "$ranks" -gt "$(nproc)" ]; then yield=1; else yield=0; fi
export OMPI_MCA_mpi_yield_when_idle=$yield
# Messages go through shared memory alone. Reading the memory of another process directly (CMA) is
# forbidden in many containers, and slower on virtual machines (docs/collectives.md): the first variable
# ends it in Open MPI 4, the second in Open MPI 5.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma "OMPI_MCA_btl=${OMPI_MCA_btl-^tcp}"
# Intel MPI: no binding. Hydra (MPICH, Intel MPI) needs nothing else.
export I_MPI_PIN=0

# shellcheck disable=SC2086  # the flags are several words
case ${launcher##*/} in
srun*) exec "$launcher" -n "$ranks" --overlap --overcommit --cpu-bind=none --kill-on-bad-exit=1 ${ESPALIER_MPIRUN_FLAGS:-} "$@" ;;
*) exec "$launcher" -n "$ranks" ${ESPALIER_MPIRUN_FLAGS:-} "$@" ;;
esac
