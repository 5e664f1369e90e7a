#!/usr/bin/env bash
# Sums over ranks on a slow link between two hosts: an MPI program once for each rate, every line with its rate.
#   benchmarks/links/link_allreduce.sh [PROGRAM [ARGS…]]     build/benchmarks/allreduce_benchmark 8 3
# RATES (none 1gbit 200mbit 100mbit) and RANKS_PER_HOST (1) choose. After the lines of a rate comes one with the bytes
# that each host sent (scripts/two_hosts.sh). A program that prints "name=value" lines stays machine-readable:
#   rate=100mbit codec=linear8 …
#   rate=100mbit link rate=100mbit ranks=2 seconds=… bytes_a=… bytes_b=… exit=0
# Exit code: the first program's that failed; 77: the link cannot be made on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- build/benchmarks/allreduce_benchmark 8 3

for rate in ${RATES:-none 1gbit 200mbit 100mbit}; do
  scripts/two_hosts.sh --rate "$rate" --ranks-per-host "${RANKS_PER_HOST:-1}" mpirun "$@" |
    sed -u "s/^/rate=$rate /"
done
