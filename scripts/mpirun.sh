#!/bin/sh
# mpirun.sh N PROGRAM [ARGS…]: runs PROGRAM on N ranks of this machine, for tests and benchmarks.
# N may exceed the cores: ranks are not bound, and yield their core while they wait. Works as root in
# a container. The exit code is that of the first rank that failed.
set -eu
if [ $# -lt 2 ]; then
  echo "usage: $0 N PROGRAM [ARGS...]" >&2
  exit 2
fi
ranks=$1
shift
if ! command -v mpirun >/dev/null; then
  echo "$0: mpirun is missing; on Debian: apt-get install openmpi-bin" >&2
  exit 1
fi
# Waiting ranks yield their core only if there are more ranks than cores, because the process that
# takes it may keep it for milliseconds.
if [ "$ranks" -gt "$(nproc)" ]; then yield=1; else yield=0; fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Messages go through shared memory alone. Reading the memory of another process directly (CMA) is
# forbidden in many containers, and slower on virtual machines (docs/collectives.md): the first variable
# ends it in Open MPI 4, the second in Open MPI 5.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma "OMPI_MCA_btl=${OMPI_MCA_btl-^tcp}"
# shellcheck disable=SC2086  # the flags are several words
exec mpirun -n "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle $yield \
  ${ESPALIER_MPIRUN_FLAGS:-} "$@"
