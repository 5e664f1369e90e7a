#!/bin/sh
# gpu_test.sh ROOT: benchmarks/gpu.sh run with a bundle of stand-ins: without a device, steps that need one say
# so; with one, what fails, hangs or prints nonsense is recorded and the rest goes on; cuBLASLt is looked for.
set -eu
. "$(dirname "$0")/common.sh"
bundle="$scratch/bundle"
results="$scratch/results"
mkdir -p "$bundle/bin" "$bundle/gpu" "$bundle/peers" "$bundle/lib"
cp "$root"/benchmarks/gpu/*.py "$bundle/gpu/"
cp "$root/benchmarks/gpu/with" "$bundle/with"
echo test-version >"$bundle/version"
: >"$bundle/cublas"

program() { { echo '#!/bin/sh' && cat; } >"$bundle/bin/$1" && chmod +x "$bundle/bin/$1"; }
# Trains nothing: a summary and metrics where run.out says, at 1,000 tokens/s.
program espalier <<'STANDIN'
if [ "$1" = info ]; then
  echo "{\"backends\": [\"cpu-portable\"$(cat "$(dirname "$0")/device")]}"
  exit 0
fi
for word; do case $word in run.out=*) out=${word#run.out=} ;; esac; done
out=${out#\"} out=${out%\"}
mkdir -p "$out"
printf '{"loss": %s, "tokens_per_s": 1000}\n' 3 2 1 >"$out/metrics.jsonl"
echo '{"parameters": 8, "model_state_bytes": 20, "model_state_bytes_per_parameter": 2.5, "memory": {}}' >"$out/summary.json"
STANDIN
program mpirun <<'STANDIN'
while [ "${1##*/}" != espalier ]; do shift; done
exec "$@"
STANDIN
program cuda_kernels_test <<'STANDIN'
echo '[       OK ] Groups/DeviceKernels.agree_with_the_reference/math (5 ms)'
STANDIN
program cuda_run_test <<'STANDIN'
echo '[  FAILED  ] DTypes/DeviceRuns.ResumeIsNoBreak/fp32 (5 ms)'
echo 'the losses differ'
exit 1
STANDIN
program cuda_equality_test <<'STANDIN'
sleep 60 & wait
STANDIN
program kernels_benchmark <<'STANDIN'
for word; do case $word in --benchmark_out=*) out=${word#--benchmark_out=} ;; esac; done
echo '{"benchmarks": [{"name": "layernorm/bf16", "real_time": 1, "%bound": 91.5, "TFLOP/s": 3.5}]}' >"$out"
STANDIN
program sparse_benchmark <<'STANDIN'
for word; do case $word in --benchmark_out=*) out=${word#--benchmark_out=} ;; esac; done
echo '{"benchmarks": [{"name": "spmm", "error_occurred": true, "error_message": "differs"}]}' >"$out"
STANDIN

# status STEP: of the last run, and why.
status() {
  python3 - "$results/results.jsonl" "$1" <<'PYTHON'
import json, sys
lines = {line["step"]: line for line in map(json.loads, open(sys.argv[1]))}
line = lines.get(sys.argv[2], {"status": "absent"})
print(line["status"], line.get("why", ""))
PYTHON
}
gpu() { run env PYTHONDONTWRITEBYTECODE=1 "$@" "$root/benchmarks/gpu.sh" run "$bundle" "$results"; }

# Without a device.
: >"$bundle/bin/device"
gpu STEPS="cpu cpu-2-ranks kernels codecs memcheck train-124m-dense"
expect "a run without a device is no failure" [ "$code" = 0 ]
expect "the CPU trains" contains "$(status cpu)" "passed"
expect "ranks train" contains "$(status cpu-2-ranks)" "passed"
for step in kernels codecs memcheck train-124m-dense; do
  expect "$step needs a device" contains "$(status $step)" "skipped no GPU answers"
done
expect "steps that were not asked for are left out" contains "$(status gemms)" "absent"
expect "nothing is measured" lacks "$(cat "$results/summary.md")" "tokens/s"

# With one.
echo ', "cuda"' >"$bundle/bin/device"
gpu STEPS="kernel-tests run-tests kernels attention figure-1 blocks train-124m-dense train-124m-masked"
expect "a failed step fails the run" [ "$code" = 1 ]
expect "tests pass" contains "$(status kernel-tests)" "passed"
expect "tests fail, and say why" contains "$(status run-tests)" "failed exit code 1: the losses differ"
expect "a benchmark is read" contains "$(cat "$results/summary.md")" "| layernorm/bf16 | 91.50"
expect "attention is read" contains "$(cat "$results/summary.md")" "| layernorm/bf16 | - | 3.50 |"
expect "a wrong result is a failure" contains "$(status figure-1)" "failed spmm: differs"
expect "a program that is not there is a failure" contains "$(status blocks)" "failed"
expect "speeds are compared" contains "$(cat "$results/summary.md")" "| 124m | masked | 1000 | - | 1.00 | 2.50 |"
expect "logs are kept" contains "$(cat "$results/logs.txt")" "the losses differ"

# Time.
gpu STEPS="equality-tests kernels" TOTAL_S=4
expect "a step that hangs is stopped" contains "$(status equality-tests)" "timed out"
expect "what comes later finds no time" contains "$(status kernels)" "skipped no time was left"
expect "a step that hangs fails the run" [ "$code" = 1 ]

# Bad calls.
run "$root/benchmarks/gpu.sh" run "$scratch" "$results"
expect "a folder that is no bundle is refused" contains "$output" "is no bundle"
run "$root/benchmarks/gpu.sh" bake
expect "usage" [ "$code" = 2 ]
gpu STEPS=everything
expect "unknown steps are named" contains "$output" "no such steps: everything"
echo libcublasLt.so.none >"$bundle/cublas"
run "$bundle/with" sh -c 'echo "<$LD_LIBRARY_PATH>"'
expect "no cuBLASLt: programs start" contains "$output" "<$bundle/lib"
touch "$scratch/libcublasLt.so.none"
run env CUBLAS_DIR="$scratch" "$bundle/with" sh -c 'echo "$LD_LIBRARY_PATH"'
expect "it is found where CUBLAS_DIR says" contains "$output" "$bundle/lib:$scratch"
finish
