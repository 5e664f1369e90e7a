#!/bin/sh
# scripts/two_hosts.sh: the link has the given rate and counts its bytes; no process or interface remains after
# success, failure, SIGTERM and SIGKILL. Exit code 77 (skipped) where namespaces cannot be made.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
script=$root/scripts/two_hosts.sh
export SPACES="$scratch/spaces" PEERS_PYTHON=python3

run "$script" --rate fast mpirun true
expect "an unknown rate: exit code" [ "$code" = 2 ]
expect "an unknown rate: usage" contains "$output" "usage:"
run "$script" --rate
expect "no rate: usage" contains "$output" "usage:"
run "$script" ssh true
expect "an unknown launcher: usage" contains "$output" "usage:"

fake unshare <<'EOS'
echo "unshare failed: Operation not permitted" >&2
exit 1
EOS
run "$script" torchrun x.py
expect "no rights: exit code" [ "$code" = 77 ]
why="skipped: no rights to make namespaces: unshare failed: Operation not permitted"
expect "no rights: why" contains "$output" "$why"
rm "$scratch/bin/unshare"

# A rank records its namespace. Then it sends 4 MB to rank 1; or exits with code 3 when all ranks have started
# (rank 0 sleeps); or sleeps.
cat >"$scratch/rank.py" <<'EOS'
import os, socket, sys, time
def launcher_says(torch, mpi):
    return int(os.environ.get(torch) or os.environ[mpi])
rank = launcher_says("RANK", "OMPI_COMM_WORLD_RANK")
with open(os.environ["SPACES"], "a") as f:
    f.write(os.readlink("/proc/self/ns/net") + "\n")
if sys.argv[1] == "sleep" or (sys.argv[1] == "fail" and rank == 0):
    time.sleep(60)
elif sys.argv[1] == "fail":
    while len(open(os.environ["SPACES"]).readlines()) < launcher_says("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        time.sleep(0.01)
    sys.exit(3)
elif rank == 1:
    peer = socket.create_server(("10.77.0.2", 4000)).accept()[0]
    while peer.recv(1 << 16):
        pass
else:
    while True:
        try:
            peer = socket.create_connection(("10.77.0.2", 4000))
            break
        except OSError:
            time.sleep(0.01)
    begin = time.time()
    peer.sendall(bytes(4_000_000))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)  # the end of the other side, which has read all
    print("took", time.time() - begin)
EOS

# Namespaces of the ranks that still have processes. The kernel ends processes shortly after their first.
left() { readlink /proc/[0-9]*/ns/net | grep -F -f "$SPACES" || true; }
gone() {
  [ "$(sort -u "$SPACES" | wc -l)" = 2 ] || return 1
  for _ in $(seq 50); do
    [ -n "$(left)" ] || return 0
    sleep 0.1
  done
  left
  return 1
}
start() { # [OPTIONS] COMMAND...
  : >"$SPACES"
  run "$script" "$@"
  link=$(echo "$output" | tail -n 1)
}
field() { echo "$link" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
between() { awk -v low="$1" -v x="$2" -v high="$3" 'BEGIN { exit !(x >= low && x <= high) }'; }

# Upper bounds are wide, because TCP retransmits on a busy machine.
start --rate 100mbit torchrun "$scratch/rank.py" send
if [ "$code" = 77 ]; then
  echo "$output"
  [ "$failures" = 0 ] && exit 77
  finish
fi
expect "torchrun: exit code" [ "$code" = 0 ]
# 12.5 MB/s after a first burst of 72 KiB.
expect "torchrun: shaped" between 0.295 "$(echo "$output" | sed -n 's/^took //p')" 20
expect "torchrun: the line" contains "$link" "link rate=100mbit ranks=2 seconds="
expect "torchrun: bytes of A" between 4000000 "$(field bytes_a)" 5000000
expect "torchrun: bytes of B" between 100 "$(field bytes_b)" 500000
expect "torchrun: code in the line" [ "$(field exit)" = 0 ]
expect "torchrun: nothing left" gone
expect "torchrun: no interface out here" lacks "$(cat /proc/net/dev)" "link0"

start --ranks-per-host 2 torchrun "$scratch/rank.py" fail
expect "failure: exit code" [ "$code" = 3 ]
expect "failure: code in the line" contains "$link" "exit=3"
expect "failure: nothing left" gone

if command -v mpirun >/dev/null; then
  start --rate 200mbit mpirun python3 "$scratch/rank.py" send
  expect "mpirun: exit code" [ "$code" = 0 ]
  expect "mpirun: bytes of A" between 4000000 "$(field bytes_a)" 5000000
  expect "mpirun: nothing left" gone
  start mpirun python3 "$scratch/rank.py" fail
  expect "mpirun, failure: exit code" [ "$code" = 3 ]
  expect "mpirun, failure: nothing left" gone
  # With equal host names Open MPI would assume one host, and crash in its first long message.
  start --ranks-per-host 2 mpirun cat /proc/sys/kernel/hostname
  names=$(echo "$output" | grep -v '^link ' | sort | uniq -c | awk '{ print $1 }' | tr '\n' ' ')
  expect "mpirun, two ranks a host: two names" [ "$names" = "2 2 " ]
fi

# Two concurrent calls: each has its own hosts, with the same names and addresses.
for call in 1 2; do
  "$script" --rate 100mbit torchrun "$scratch/rank.py" send >"$scratch/both$call" 2>&1 &
done
wait
for call in 1 2; do
  output=$(cat "$scratch/both$call")
  link=$(echo "$output" | tail -n 1)
  expect "two at a time: bytes of call $call" between 4000000 "$(field bytes_a)" 5000000
done

for signal in TERM:143 KILL:137; do
  : >"$SPACES"
  "$script" torchrun "$scratch/rank.py" sleep &
  call=$!
  for _ in $(seq 300); do
    [ "$(wc -l <"$SPACES")" != 2 ] || break
    sleep 0.1
  done
  expect "$signal: it runs" [ -n "$(left)" ]
  kill "-${signal%:*}" $call
  code=0
  wait $call || code=$?
  expect "$signal: exit code" [ "$code" = "${signal#*:}" ]
  expect "$signal: nothing left" gone
done
finish
