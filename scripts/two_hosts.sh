#!/usr/bin/env bash
# Runs a program on two hosts that are namespaces of this machine, with a slow link between them.
#
#   scripts/two_hosts.sh [--rate 1gbit|200mbit|…|none] [--ranks-per-host K] mpirun   PROGRAM   [ARGS…]
#   scripts/two_hosts.sh [--rate …]                    [--ranks-per-host K] torchrun SCRIPT.py [ARGS…]
#
# - A host is a network namespace. A pair of virtual interfaces (link0 in each) joins the two, and a token
#   bucket on both ends limits each direction to RATE bits per second. Rate "none" (default): no limit.
# - Ranks of different hosts use TCP over the link. Host A has ranks 0 to K-1 (default K = 1) and the first
#   half of the cores, host B the rest.
# - "torchrun" starts the ranks with the environment that torchrun would set; PEERS_PYTHON names the python.
# - The last line of standard output has the bytes that each host sent, counted at the interfaces:
#
#   link rate=200mbit ranks=2 seconds=9.31 bytes_a=64210930 bytes_b=64208118 exit=0
#
# (Frames as the kernel counts them: up to 64 KiB with one header of 66 bytes; acknowledgements included.)
# Exit code: that of the program; 77: not possible on this machine (a message states the reason); 128 + n:
# ended by signal n.
#
# Interfaces and processes live in unnamed namespaces, which the kernel removes with their last process. The
# processes die with this script, however it ends. Concurrent calls do not affect each other. Needs root, or a
# kernel that lets users make namespaces; ip and tc (Debian: iproute2), unshare and nsenter (util-linux).
set -euo pipefail
self=$(realpath "$0")

usage() {
  echo "usage: $0 [--rate RATE|none] [--ranks-per-host K] mpirun|torchrun PROGRAM [ARGS...]" >&2
  exit 2
}
skip() {
  echo "$0: skipped: $*" >&2
  exit 77
}

rate=none
per_host=1
while [ $# -gt 0 ]; do
  case $1 in
    --rate) rate=${2-}; shift 2 || usage ;;
    --ranks-per-host) per_host=${2-}; shift 2 || usage ;;
    *) break ;;
  esac
done
[[ $# -ge 2 && $1 =~ ^(mpirun|torchrun)$ ]] || usage
[[ $per_host =~ ^[1-9][0-9]*$ && $rate =~ ^(none|[0-9]+[kmg]bit)$ ]] || usage

# ---- Outside: starts this script again in new namespaces, whose processes all end with this one.
if [ -z "${TWO_HOSTS_INSIDE:-}" ]; then
  for tool in ip tc unshare nsenter setpriv taskset "$1"; do
    [ "$tool" = torchrun ] || command -v "$tool" >/dev/null || skip "$tool is missing"
  done
  namespaces=(--net --mount --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" = 0 ] || namespaces=(--map-root-user "${namespaces[@]}")
  why=$(unshare "${namespaces[@]}" true 2>&1) || skip "no rights to make namespaces: $why"

  TWO_HOSTS_INSIDE=1 setpriv --pdeathsig KILL unshare "${namespaces[@]}" \
    "$self" --rate "$rate" --ranks-per-host "$per_host" "$@" <&0 &
  inside=$!
  # --kill-child: when unshare ends, its child ends, and with that first process all others.
  for signal in HUP:1 INT:2 TERM:15; do
    # shellcheck disable=SC2064  # expands $inside now
    trap "exec 2>/dev/null; kill -KILL $inside; wait $inside || true; exit $((128 + ${signal#*:}))" "${signal%:*}"
  done
  wait $inside
  exit # with its code
fi
unset TWO_HOSTS_INSIDE

# ---- Inside, as process 1 of host A. Host B is the namespace of a sleeping process.
mount -t tmpfs tmpfs /dev/shm # private: process numbers, which name its files, start from 1 here
# Open MPI treats ranks with one host name as ranks of one host, so host B gets another name.
unshare --net --uts sh -c 'echo host-b >/proc/sys/kernel/hostname; exec sleep infinity' &
other=$!
until [ "$(nsenter --target $other --uts cat /proc/sys/kernel/hostname)" = host-b ]; do sleep 0.01; done
on_b() { nsenter --target $other --net --uts "$@"; }

net=10.77.0
why=$({ ip link add link0 type veth peer name link0 netns $other; } 2>&1) || skip "no veth interfaces: $why"
ip link set lo up && ip addr add $net.1/24 dev link0 && ip link set link0 up
on_b ip link set lo up && on_b ip addr add $net.2/24 dev link0 && on_b ip link set link0 up
if [ "$rate" != none ]; then
  shape=(tc qdisc replace dev link0 root tbf rate "$rate" burst 72kb latency 20ms)
  why=$({ "${shape[@]}" && on_b "${shape[@]}"; } 2>&1) || skip "no token bucket in this kernel: $why"
fi

# Each host gets half of the available cores; with one core both share it.
cores=()
IFS=, read -ra ranges <<<"$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
for range in "${ranges[@]}"; do
  for ((core = ${range%-*}; core <= ${range#*-}; ++core)); do cores+=("$core"); done
done
half=$(((${#cores[@]} + 1) / 2))
list() { local IFS=,; echo "$*"; }
cores_a=$(list "${cores[@]:0:half}")
cores_b=$(list "${cores[@]:${#cores[@]}-half}")
threads=$((half / per_host > 1 ? half / per_host : 1))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}

run_mpirun() {
  # mpirun starts its helper on the other host by "agent HOST COMMAND LINE". Hosts have names, not addresses,
  # which Open MPI 5.0.7 takes for other hosts than those that report.
  cat >/dev/shm/agent <<AGENT
#!/bin/sh
shift
exec taskset -c $cores_b nsenter --target $other --net --uts sh -c "\$*"
AGENT
  chmod +x /dev/shm/agent
  local flags=(-H "$(hostname):$per_host,host-b:$per_host" --map-by slot --bind-to none --oversubscribe
    --mca plm_rsh_agent /dev/shm/agent --mca orte_tmpdir_base /dev/shm --mca pml ob1
    --mca btl "tcp,self,vader" --mca btl_vader_single_copy_mechanism none --mca smsc ^cma
    --mca btl_tcp_if_include "$net.0/24" --mca oob_tcp_if_include "$net.0/24")
  # Waiting ranks yield their core only if there are more ranks than cores.
  [ "$per_host" -le "$half" ] || flags+=(--mca mpi_yield_when_idle 1)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  # shellcheck disable=SC2086  # the flags are several words
  taskset -c "$cores_a" mpirun "${flags[@]}" ${ESPALIER_MPIRUN_FLAGS:-} "$@"
}

run_torchrun() {
  local python=${PEERS_PYTHON:-$(dirname "$self")/../benchmarks/peers/.venv/bin/python} rank
  command -v "$python" >/dev/null || python=python3
  export MASTER_ADDR=$net.1 MASTER_PORT=29500 WORLD_SIZE=$((2 * per_host)) LOCAL_WORLD_SIZE=$per_host
  export GLOO_SOCKET_IFNAME=link0 TP_SOCKET_IFNAME=link0
  local running=() ended command
  for ((rank = 0; rank < WORLD_SIZE; ++rank)); do
    command=(env "RANK=$rank" "LOCAL_RANK=$((rank % per_host))" "$python" "$@")
    if ((rank < per_host)); then
      taskset -c "$cores_a" "${command[@]}" &
    else
      taskset -c "$cores_b" nsenter --target "$other" --net "${command[@]}" &
    fi
    running[$!]=$!
  done
  while [ ${#running[@]} -gt 0 ]; do
    wait -n -p ended "${running[@]}" || return # the first failure ends all: they die with this process
    unset "running[$ended]"
  done
}

# sent PROCESS: bytes sent through link0 by the host of PROCESS.
sent() { awk -F '[: ]+' '$2 == "link0" { print $11 }' "/proc/$1/net/dev"; }

before_a=$(sent self) before_b=$(sent $other) start=$EPOCHREALTIME
launcher=$1
shift
code=0
case $launcher in
  mpirun) run_mpirun "$@" || code=$? ;;
  torchrun) run_torchrun "$@" || code=$? ;;
esac
seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }')
echo "link rate=$rate ranks=$((2 * per_host)) seconds=$seconds bytes_a=$(($(sent self) - before_a))" \
  "bytes_b=$(($(sent $other) - before_b)) exit=$code"
exit $code
