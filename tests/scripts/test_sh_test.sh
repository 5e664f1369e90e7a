#!/bin/sh
# test.sh with a fake build and ctest: its counts, its exit code, and that only .ci/run makes warnings errors.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
copy=$scratch/checkout
mkdir -p "$copy/scripts" "$copy/build/Testing/Temporary" "$copy/.ci"
cp "$root/test.sh" "$copy/"
cp "$root/.ci/run" "$copy/.ci/"
export SCRATCH="$scratch"
unset ESPALIER_WERROR ESPALIER_CPU_TABLES ESPALIER_BENCHMARKS  # .ci/run, which runs this test, exports them
printf '#!/bin/sh\n' >"$copy/scripts/install-packages.sh"
chmod +x "$copy/scripts/install-packages.sh"
: >"$copy/build/Testing/Temporary/LastTest.log"
fake cmake <<'EOS'
echo "$*" >>"$SCRATCH/cmake-calls"
exit "$(cat "$SCRATCH/cmake-code")"
EOS
fake ctest <<'EOS'
echo "$*" >"$SCRATCH/ctest-call"
while [ "$1" != --output-junit ]; do shift; done
cp "$SCRATCH/results" "$2"
exit "$(cat "$SCRATCH/ctest-code")"
EOS
echo 0 >"$scratch/cmake-code"
start() { # CTEST_CODE [OPTION], results from standard input
  echo "$1" >"$scratch/ctest-code"
  shift
  cat >"$scratch/results"
  run "$copy/test.sh" "$@"
  last=$(echo "$output" | tail -n 1)
}
good='	<testcase name="good" classname="good" time="1" status="run">'

start 0 <<EOS
$good
$good
EOS
expect "all pass: count" [ "$last" = "2 passed, 0 failed" ]
expect "all pass: exit code" [ "$code" = 0 ]
expect "slow tests are left out" contains "$(cat "$scratch/ctest-call")" "-LE slow"

expect "warnings are no errors" contains "$(cat "$scratch/cmake-calls")" "-DESPALIER_WERROR=OFF"

rm "$scratch/cmake-calls"
run env STEPS=tests "$copy/.ci/run"
expect ".ci/run: success" [ "$code" = 0 ]
expect ".ci/run: its counts" [ "$(echo "$output" | tail -n 1)" = "2 passed, 0 failed" ]
expect ".ci/run: warnings are errors" contains "$(cat "$scratch/cmake-calls")" "-DESPALIER_WERROR=ON"

start 0 --slow <<EOS
$good
EOS
expect "--slow: success" [ "$code" = 0 ]
expect "--slow: nothing is left out" lacks "$(cat "$scratch/ctest-call")" "-LE"

echo '[  SKIPPED ] Suite.Name (3 ms)' >"$copy/build/Testing/Temporary/LastTest.log"
start 8 <<EOS
$good
	<testcase name="wrong" classname="wrong" time="1" status="fail">
	<testcase name="absent" classname="absent" time="0" status="notrun">
		<skipped message="Unable to find executable"/>
	<testcase name="elsewhere" classname="elsewhere" time="0" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
	<testcase name="off" classname="off" time="0" status="disabled">
EOS
expect "mixed: count" [ "$last" = "1 passed, 2 failed" ]
expect "mixed: exit code" [ "$code" = 1 ]
expect "mixed: failures by name" contains "$output" "Failed:
  wrong
  absent (could not start)"
expect "mixed: skipped by name" contains "$output" "Skipped:
  elsewhere
  off"
expect "mixed: skipped inside a program" contains "$output" "Suite.Name"

start 0 </dev/null
expect "no test ran: a failure" [ "$last" = "0 passed, 1 failed" ]
expect "no test ran: exit code" [ "$code" = 1 ]

start 8 <<EOS
$good
EOS
expect "ctest itself failed" [ "$last" = "1 passed, 1 failed" ]

echo 1 >"$scratch/cmake-code"
start 0 <<EOS
$good
EOS
expect "no build: count" [ "$last" = "0 passed, 1 failed" ]
expect "no build: exit code" [ "$code" != 0 ]
finish
