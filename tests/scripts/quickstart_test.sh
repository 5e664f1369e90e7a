#!/bin/sh
# quickstart.sh with fake packages, build and program: the steps that it takes and skips.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
copy=$scratch/checkout
mkdir -p "$copy/build/src/cli" "$copy/scripts" "$copy/data"
cp "$root/quickstart.sh" "$copy/"
export SCRATCH="$scratch"

# Each stand-in appends its name and arguments to the file "calls".
stand_in=$scratch/stand-in
cat >"$stand_in" <<'EOS'
#!/bin/sh
echo "$(basename "$0" .sh) $*" >>"$SCRATCH/calls"
EOS
chmod +x "$stand_in"
for file in "$copy/scripts/install-packages.sh" "$copy/scripts/make-text.sh" "$copy/scripts/mpirun.sh" \
  "$copy/build/src/cli/espalier" "$scratch/bin/cmake"; do
  cp "$stand_in" "$file"
done
cat >>"$copy/scripts/make-text.sh" <<'EOS'
echo text >"$1"
EOS
cat >>"$copy/scripts/mpirun.sh" <<'EOS'
out=$6
mkdir -p "$out/checkpoints"
touch "$out/checkpoints/step-000100.h5" "$out/checkpoints/step-000200.h5"
case $out in *.trial) speed=2100.5 ;; *) speed=1000.5 ;; esac
printf '{\n  "tokens_per_s": %s,\n  "steps": 700,\n  "finished": true\n}\n' $speed >"$out/summary.json"
EOS
start() {
  : >"$scratch/calls"
  run "$copy/quickstart.sh"
  calls=$(cat "$scratch/calls")
}

start
expect "first call: success" [ "$code" = 0 ]
expect "first call: the program alone is configured" contains "$calls" \
  "cmake --preset release -DESPALIER_TESTS=OFF -DESPALIER_BENCHMARKS=OFF -DESPALIER_CPU_TABLES=native"
expect "first call: text" contains "$calls" "make-text data/text.txt"
for kind in dense sparse; do
  expect "first call: trains $kind" contains "$calls" \
    "mpirun 2 build/src/cli/espalier train configs/quickstart-$kind.toml --out runs/quickstart-$kind --resume auto"
done
expect "first call: the sparse network has the time of the dense one" contains "$calls" \
  "runs/quickstart-sparse --resume auto --set train.steps=1469"
expect "first call: the trial leaves nothing" [ ! -e "$copy/runs/quickstart-sparse.trial" ]
expect "first call: report" contains "$calls" \
  "espalier report runs/quickstart-dense runs/quickstart-sparse -o runs/report.html"
expect "first call: samples from the newest checkpoint" contains "$calls" \
  "espalier sample runs/quickstart-sparse/checkpoints/step-000200.h5"

touch "$copy/build/CMakeCache.txt"
start
expect "second call: success" [ "$code" = 0 ]
expect "second call: does not train" lacks "$calls" "mpirun"
expect "second call: text is kept" lacks "$calls" "make-text"
expect "second call: settings of the build stay" lacks "$calls" "--preset"
expect "second call: reports" contains "$calls" "espalier report"

printf '{\n  "finished": false\n}\n' >"$copy/runs/quickstart-dense/summary.json"
rm "$copy/runs/quickstart-sparse/summary.json"
start
expect "interrupted runs continue: dense" contains "$calls" "quickstart-dense --resume auto"
expect "interrupted runs continue: sparse" contains "$calls" \
  "quickstart-sparse --resume auto --set train.steps=1469"

echo 'exit 1' >"$copy/scripts/install-packages.sh"
start
expect "without packages: stops" [ "$code" = 1 ]
expect "without packages: does nothing else" [ -z "$calls" ]

run "$copy/quickstart.sh" --fast
expect "unknown option: usage" [ "$code" = 2 ]
finish
