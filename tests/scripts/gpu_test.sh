#!/bin/sh
# gpu_test.sh ROOT: benchmarks/gpu.sh run with a bundle of stand-ins. Without a device, steps that need one are
# skipped with a reason. With one, a step that fails, hangs or prints nonsense is recorded and the rest continues. A
# killed call keeps the results of finished steps. cuBLASLt and cuDNN are found.
set -eu
# shellcheck source=tests/scripts/common.sh
. "$(dirname "$0")/common.sh"
bundle="$scratch/bundle"
results="$scratch/results"
mkdir -p "$bundle/bin" "$bundle/gpu" "$bundle/peers" "$bundle/lib"
cp "$root"/benchmarks/gpu/*.py "$bundle/gpu/"
cp "$root/benchmarks/gpu/with" "$bundle/with"
echo test-version >"$bundle/version"
: >"$bundle/cublas"

program() { { echo '#!/bin/sh' && cat; } >"$bundle/bin/$1" && chmod +x "$bundle/bin/$1"; }
# Writes a summary and metrics into run.out, at 1,000 tokens/s, without training. Plans fit up to 11 heads. Prints to
# standard error after its output, as real programs may.
program espalier <<'STANDIN'
if [ "$1" = info ]; then
  [ ! -e "$(dirname "$0")/mute" ] || { echo "no {"; exit 0; }
  echo "{\"backends\": [\"cpu-portable\"$(cat "$(dirname "$0")/device")],"
  echo " \"devices\": [\"NVIDIA H100 80GB HBM3 (79.1 GiB)\"], \"device_free_bytes\": [8589934592]}"
  echo "a library says {something}" >&2
  exit 0
fi
dry=
for word; do
  case $word in
    run.out=*) out=${word#run.out=} ;;
    model.heads=*) heads=${word#model.heads=} ;;
    train.memory_budget=*) budget=${word#train.memory_budget=} ;;
    --dry-run) dry=1 ;;
  esac
done
out=${out#\"} out=${out%\"}
if [ -n "$dry" ]; then
  [ "$budget" = '"7516192768B"' ] || { echo "a budget of $budget" >&2; exit 1; }
  [ "$heads" -le 11 ] && fits=true || fits=false
  echo "{\"parameters\": ${heads}000000000, \"kept_parameters\": ${heads}00000000, \"process\": 2147483648,"
  echo " \"pinned\": {\"all\": 0}, \"fits\": $fits}"
  echo "and more" >&2
  exit 0
fi
mkdir -p "$out"
printf '{"loss": %s, "tokens_per_s": 1000, "step_ms": 500}\n' 3 2 1 >"$out/metrics.jsonl"
echo '{"parameters": 124439808, "model_state_bytes": 20, "model_state_bytes_per_parameter": 2.5,' >"$out/summary.json"
echo ' "memory": {"ranks": [{"all": {"peak": 1073741824}}]}}' >>"$out/summary.json"
STANDIN
program mpirun <<'STANDIN'
while [ "${1##*/}" != espalier ]; do shift; done
exec "$@"
STANDIN
program cuda_tests <<'STANDIN'
case "$*" in
*DeviceRuns*)
  echo '[  SKIPPED ] DTypes/DeviceRuns.HoldWhatWasPlanned/0 (0 ms)'
  echo '[  FAILED  ] DTypes/DeviceRuns.ResumeIsNoBreak/0, where GetParam() = "fp32" (5 ms)'
  echo 'the losses differ'
  exit 1
  ;;
esac
echo '[       OK ] Groups/KernelCases.agree_with_the_reference/math (5 ms)'
case "$*" in *block*) sleep 60 & wait ;; esac
STANDIN
program cuda_whole_run_tests <<'STANDIN'
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

# status STEP: its status in the last run, and the reason.
status() {
  python3 - "$results/results.jsonl" "$1" <<'PYTHON'
import json, sys
lines = {line["step"]: line for line in map(json.loads, open(sys.argv[1]))}
line = lines.get(sys.argv[2], {"status": "absent"})
print(line["status"], line.get("why", ""))
PYTHON
}
# of STEP KEY: that entry of its results, as JSON.
of() {
  python3 - "$results/results.jsonl" "$1" "$2" <<'PYTHON'
import json, sys
lines = {line["step"]: line for line in map(json.loads, open(sys.argv[1]))}
print(json.dumps(lines[sys.argv[2]].get(sys.argv[3])))
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
expect "steps that STEPS does not name do not run" contains "$(status gemms)" "absent"
expect "no speed is reported" lacks "$(cat "$results/summary.md")" "tokens/s"
gpu STEPS="third codecs"
for step in facts cuda-2-ranks memcheck largest-gpt codecs; do
  expect "a group's steps, and others: $step" lacks "$(status $step)" "absent"
done
expect "steps of other groups do not run" contains "$(status kernels),$(status racecheck)" "absent ,absent"

# With one.
echo ', "cuda"' >"$bundle/bin/device"
gpu STEPS="kernel-tests run-tests kernels attention figure-1 blocks train-124m-dense train-124m-masked
  train-124m-sparse largest-gpt"
expect "a failed step fails the run" [ "$code" = 1 ]
expect "tests pass" contains "$(status kernel-tests)" "passed"
expect "a failed test program is a failure, with its last line" contains "$(status run-tests)" "failed exit code 1: the losses differ"
expect "failed tests with parameters are listed" contains "$(of run-tests failed)" '["DTypes/DeviceRuns.ResumeIsNoBreak/0"]'
expect "skipped tests are listed" contains "$(of run-tests skipped)" '["DTypes/DeviceRuns.HoldWhatWasPlanned/0"]'
expect "benchmark rows are in the summary" contains "$(cat "$results/summary.md")" "| layernorm/bf16 | 91.50"
expect "attention rows are in the summary" contains "$(cat "$results/summary.md")" "| layernorm/bf16 | - | 3.50 |"
expect "a wrong result is a failure" contains "$(status figure-1)" "failed spmm: differs"
expect "a missing program is a failure" contains "$(status blocks)" "failed"
# 1,000 tokens/s of 6 (124,439,808 - 786,432) + 12 12 768 1,024 flops each, of 989.5 TFLOP/s: 0.0864 %.
expect "speeds are compared with dense training" contains "$(cat "$results/summary.md")" "| 124m | masked | 1000 | 0.1 | 0.1 | - | 1.00 | 2.50 |"
expect "sparse products have no MFU" contains "$(cat "$results/summary.md")" "| 124m | sparse | 1000 | - | - | - | 1.00 |"
expect "the peak rate of the device is in the summary" contains "$(cat "$results/summary.md")" "dense bf16 of the device: 990 TFLOP/s"
expect "the largest model that fits takes its steps" contains "$(cat "$results/summary.md")" \
  "| expanded | 11.00 G | 1.10 G | 2.00 | 0.00 | 1.00 | 0.50 | 3.00, 2.00, 1.00 |"
expect "logs are kept" contains "$(cat "$results/logs.txt")" "the losses differ"

cat >"$scratch/peaks_test.py" <<'PYTHON'
import peaks
for name, tera in {"NVIDIA H100 PCIe": 756.5, "NVIDIA H100 NVL (1 GiB)": 835.5, "NVIDIA H100 80GB HBM3": 989.5,
                   "NVIDIA H200": 989.5, "NVIDIA H200 NVL": 835.5, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA B200": 2250,
                   "NVIDIA GH200 480GB": 989.5}.items():
    assert peaks.peak_flops(name) == tera * 1e12, name
assert peaks.peak_flops("NVIDIA GeForce GTX 1080") is None
assert peaks.flops_per_token(1_000_000 + 1024 * 64, 2, 64) == 6_000_000 + 12 * 2 * 64 * 1024
line = {"tokens_per_s": 1e5, "storage": "PyTorch", "parameters": 124439808}
shape = {"layers": 12, "width": 768}
assert abs(peaks.mfu(line, shape, "NVIDIA H100 80GB HBM3") - 0.08642) < 1e-4
assert peaks.mfu({**line, "storage": "dense, not deterministic"}, shape, "NVIDIA H200") is not None
assert peaks.mfu(line, shape, "") is None and peaks.mfu({**line, "storage": "block"}, shape, "NVIDIA H200") is None
PYTHON
run env PYTHONPATH="$root/benchmarks/gpu" PYTHONDONTWRITEBYTECODE=1 python3 "$scratch/peaks_test.py"
expect "peaks are found by the device's name" [ "$code" = 0 ]

cat >"$scratch/steps_test.py" <<'PYTHON'
import ctypes, json, time
import kinds, plan, steps

names = [step.name for group in plan.groups().values() for step in group] + ["facts"]
assert len(names) == len(set(names)) and not set(names) & set(plan.groups())
assert [step.name for step in steps.chosen(["blocks", "peer-124m"])] == ["facts", "peer-124m", "blocks"]
assert kinds.json_in('warning\n{"a": {"b": 1}}\nerror: {') == {"a": {"b": 1}}

# The fastest of PyTorch's ways is reported, in any order of results; attention of finished shapes is kept.
peer = kinds.Peer("peer", 9, "124m", 4, ("eager", "blocks"))
log = 'a warning\n{"way": "eager", "tokens_per_s": 5}\n{"way": "blocks", "tokens_per_s": 9}\n{"way": "mod'
found = peer.read(None, None, log, {})
assert found["way"] == "blocks" and found["tokens_per_s_of_ways"] == {"eager": 5, "blocks": 9}
assert "tokens_per_s" not in peer.read(None, 1, "no GPU", {})
attention = kinds.AttentionPeer("peer-attention", 9)

# Espalier and PyTorch have the same batch, a larger one on a device with more memory.
class Room:
    folder = scratch = steps.pathlib.Path(__file__).parent
    def __init__(self, free):
        self.device_free = free
    def command(self, *words):
        return [str(word) for word in words]
for free, batch in (0, 16), (80 * 2**30, 16), (139 * 2**30, 64):
    ours, theirs = kinds.Steps("ours", 9, "124m", "dense", 4).command(Room(free)), peer.command(Room(free))
    assert f"train.global_batch={batch}" in ours and f"train.micro_batch={batch}" in ours, ours
    assert theirs[theirs.index("--batch") + 1] == str(batch), theirs
assert attention.read(None, 0, '{"torch": "2", "rows": {"a": 1}}\n{"torch": "2", "rows": {"b": 2}}\n', {}) == {
    "torch": "2", "rows": {"a": 1, "b": 2}}

# The time of `prepare` is subtracted from the step's limit; the log of a step whose output is not understood is kept.
class Slow(kinds.Step):
    device = False
    def prepare(self, bundle, end):
        time.sleep(1)
    def command(self, bundle):
        return ["echo", "hello"]
    def read(self, bundle, code, log, state):
        raise KeyError("nothing")

line, log = steps.perform(Slow("slow", "", 100), steps.Bundle("/", "/tmp"), time.monotonic() + 3, {"no_device": ""})
assert 1 < line["limit_s"] <= 2 and line["status"] == "failed" and log == "hello\n", (line, log)

# DeviceMemory releases its context at the end of the step.
class Driver:
    def __init__(self):
        self.held = 0
    def cuInit(self, flags):
        return 0
    def cuDevicePrimaryCtxRetain(self, context, device):
        self.held += 1
        context._obj.value = 1
        return 0
    def cuDevicePrimaryCtxRelease_v2(self, device):
        self.held -= 1
    def cuCtxSetCurrent(self, context):
        pass
    def cuMemGetInfo_v2(self, free, total):
        total._obj.value, free._obj.value = 100, 90
driver = Driver()
ctypes.CDLL = lambda name: driver
with steps.DeviceMemory() as memory:
    assert driver.held == 1
assert driver.held == 0 and memory.peak == 0
with steps.DeviceMemory(False) as memory:
    assert driver.held == 0
assert memory.peak is None
PYTHON
run env PYTHONPATH="$root/benchmarks/gpu" PYTHONDONTWRITEBYTECODE=1 python3 "$scratch/steps_test.py"
expect "steps are chosen, prepared, read and watched" [ "$code" = 0 ]

# If the output of `espalier info` is not understood, nvidia-smi decides whether there is a device.
touch "$bundle/bin/mute"
fake nvidia-smi </dev/null
gpu STEPS="kernels"
expect "output that is not understood is a failure" contains "$(status facts)" "failed the output of espalier info"
expect "later steps still run" contains "$(status kernels)" "passed"
echo 'exit 9' | fake nvidia-smi
gpu STEPS="kernels"
expect "without a device later steps are skipped" contains "$(status kernels)" "skipped no GPU answers"
rm "$bundle/bin/mute" "$scratch/bin/nvidia-smi"

# compute-sanitizer runs one group of kernels at a time; the group of blocks hangs.
fake compute-sanitizer <<'STANDIN'
[ "$1 $2 $3 $4 $5 $6" = "--tool memcheck --report-api-errors no --error-exitcode 9" ] || exit 1
shift 6
"$@"
echo "========= ERROR SUMMARY: 2 errors"
exit 9
STANDIN
gpu STEPS="memcheck" TOTAL_S=8
expect "reports of finished groups are kept at the time limit" contains "$(of memcheck groups) $(of memcheck reports)" "1 2"
expect "the step counts as timed out" contains "$(status memcheck)" "timed out"
rm "$scratch/bin/compute-sanitizer"

# Time.
gpu STEPS="equality-tests kernels" TOTAL_S=8
expect "a step that hangs is stopped" contains "$(status equality-tests)" "timed out"
expect "a later step without time left is skipped" contains "$(status kernels)" "skipped no time was left"
expect "a step that hangs fails the run" [ "$code" = 1 ]
gpu STEPS="largest-gpt" TOTAL_S=60
expect "the largest model is skipped without enough time" contains "$(status largest-gpt)" "skipped no time was left"
program kernels_benchmark <<'STANDIN'
for word; do case $word in --benchmark_out=*) out=${word#--benchmark_out=} ;; esac; done
printf '{\n  "context": {\n    "caches": [\n      {\n      }\n    ]\n  },\n  "benchmarks": [\n' >"$out"
printf '    {\n      "name": "gelu",\n      "%%bound": 9\n    },\n    {\n      "name": "fill"\n    }' >>"$out"
sleep 60 & wait
STANDIN
gpu STEPS="kernels" TOTAL_S=8
expect "finished benchmark rows are kept at the time limit" contains "$(of kernels rows)" '{"gelu": {"%bound": 9}, "fill": {}}'
expect "the benchmark counts as timed out" contains "$(status kernels)" "timed out"
rm "$results/"*
STEPS="kernel-tests kernels" PYTHONDONTWRITEBYTECODE=1 python3 "$bundle/gpu/steps.py" "$bundle" "$results" >"$scratch/killed" 2>&1 &
killed=$!
for _ in $(seq 100); do grep -q '^kernel-tests .*passed' "$scratch/killed" || sleep 0.1; done
kill $killed
code=0
wait $killed || code=$?
expect "SIGTERM ends the call" [ "$code" = 143 ]
expect "a killed call keeps finished steps" contains "$(cat "$results/summary.md")" "| kernel-tests | the CPU's kernel cases and wire codes on cuda | passed |"

# Bad calls.
run "$root/benchmarks/gpu.sh" run "$scratch" "$results"
expect "a folder that is not a bundle is refused" contains "$output" "is not a bundle"
run "$root/benchmarks/gpu.sh" bake
expect "unknown subcommand: usage" [ "$code" = 2 ]
gpu STEPS=everything
expect "unknown steps are named" contains "$output" "no such steps: everything"
echo libcublasLt.so.none >"$bundle/cublas"
run "$bundle/with" sh -c 'echo "<$LD_LIBRARY_PATH>"'
expect "no cuBLASLt: programs start" contains "$output" "<$bundle/lib"
touch "$scratch/libcublasLt.so.none"
run env CUBLAS_DIR="$scratch" "$bundle/with" sh -c 'echo "$LD_LIBRARY_PATH"'
expect "cuBLASLt is found in CUBLAS_DIR" contains "$output" "$bundle/lib:$scratch"
mkdir "$scratch/cudnn"
touch "$scratch/cudnn/libcudnn.so.9"
run env CUBLAS_DIR="$scratch/cudnn" "$bundle/with" sh -c 'echo "$LD_LIBRARY_PATH"'
expect "cuDNN is found in CUBLAS_DIR" contains "$output" ":$scratch/cudnn"
finish
