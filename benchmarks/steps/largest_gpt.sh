#!/usr/bin/env bash
# The largest GPT that trains within a memory budget, dense and 90 % sparse: bf16, AdamW, recompute full,
# one sequence of 64 bytes at a time: 16-bit weights and gradients, low halves of the master copy, two
# moments in fp32 (dense32, sparse32) or 8 bits (dense8, sparse8). Sparse: random masks from the start,
# storage sparse. The script finds
# the largest width (in steps of 64, one head each) whose plan fits, and trains it. Prints a table, and per
# model a line of JSON: the plan beside the bytes that the arena and the system counted.
#
#   benchmarks/steps/largest_gpt.sh [BUDGET [STEPS]]        16GiB, 3 steps; 0 steps: plans only
#
# Needs build/src/cli/espalier, python3, and as much free memory as the budget. WAYS="dense8 sparse8" chooses;
# LAYERS sets the depth (24). A sparse model takes minutes to draw its masks.
set -euo pipefail
export OMP_WAIT_POLICY=passive  # bytes are measured, not time
budget=${1:-16GiB}
steps=${2:-3}
cd "$(dirname "$0")/../.."
program=$(realpath "${ESPALIER:-build/src/cli/espalier}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -c "
import random
random.seed(1)
words = 'pear apple quince plum wall branch pruned by hand'.split()
print(' '.join(random.choice(words) for _ in range(4000)))" >text.txt

cat >base.toml <<TOML
[model]
kind = "gpt"
layers = ${LAYERS:-24}
context = 64
[data]
kind = "bytes"
train = ["text.txt"]
[train]
steps = $((steps > 0 ? steps : 1))
global_batch = 1
dtype = "bf16"
recompute = "full"
memory_budget = "$budget"
eval_batches = 1
checkpoint_every = -1
[optimizer]
lr = 1e-5
min_lr = 1e-5
warmup_steps = 0
[parallel]
check_every = 0
[run]
out = "run"
trace = false
TOML
# shellcheck disable=SC2034  # `settings` reads them by name
dense32=()
dense8=(--set optimizer.state_bits=8)
sparse32=(--set 'pruning.method="random"' --set 'pruning.scope="layer"' --set 'sparse.storage="sparse"')
# shellcheck disable=SC2034
sparse8=("${sparse32[@]}" "${dense8[@]}")

settings() {  # WAY HEADS -> the program's arguments
  local -n of=$1
  printf '%s\n' base.toml --set "model.heads=$2" --set "model.width=$((64 * $2))" "${of[@]}"
}
fits() {
  mapfile -t arguments < <(settings "$1" "$2")
  "$program" train "${arguments[@]}" --dry-run --json >plan.json
  python3 -c "import json, sys; sys.exit(not json.load(open('plan.json'))['fits'])"
}

echo "| way | width | parameters | kept | plan: state, process | arena peak | peak RSS | s a step |"
echo "|---|---|---|---|---|---|---|---|"
for way in ${WAYS:-dense32 sparse32 dense8 sparse8}; do
  low=1 high=2
  while fits "$way" "$high"; do low=$high high=$((2 * high)); done
  while ((high - low > 1)); do
    middle=$(((low + high) / 2))
    if fits "$way" "$middle"; then low=$middle; else high=$middle; fi
  done
  fits "$way" "$low"
  rm -rf run
  if ((steps > 0)); then
    mapfile -t arguments < <(settings "$way" "$low")
    "$program" train "${arguments[@]}" --resume none >"$way.log" 2>&1 || { cat "$way.log" >&2; exit 1; }
  fi
  python3 - "$way" "$((64 * low))" <<'PYTHON' | tee -a rows
import json, os, sys
way, width = sys.argv[1:]
plan = json.load(open('plan.json'))
GiB = 2.0 ** 30
state = plan.get('pruned', plan['dense'])['model_state']
row = {'way': way, 'width': int(width), 'parameters': plan['parameters'],
       'kept': plan.get('kept_parameters', plan['parameters']), 'planned_state': state,
       'planned_process': plan['process']}
arena = rss = seconds = '-'
if os.path.exists('run/summary.json'):
    summary = json.load(open('run/summary.json'))
    assert summary['parameters'] == row['parameters'] and summary['finished']
    rank = summary['memory']['ranks'][0]
    lines = [json.loads(line) for line in open('run/metrics.jsonl')]
    row.update(state=summary['model_state_bytes'], arena_peak=rank['all']['peak'], peak_rss=rank['peak_rss'],
               losses=[line['loss'] for line in lines if 'loss' in line],
               seconds=[line['step_ms'] / 1000 for line in lines if 'step_ms' in line])
    arena, rss = f"{row['arena_peak'] / GiB:.2f} GiB", f"{row['peak_rss'] / GiB:.2f} GiB"
    seconds = f"{min(row['seconds']):.1f}"
print(f"| {way} | {width} | {row['parameters'] / 1e9:.3f} G | {row['kept'] / 1e9:.3f} G "
      f"| {state / GiB:.2f}, {row['planned_process'] / GiB:.2f} GiB | {arena} | {rss} | {seconds} |")
print(json.dumps(row))
PYTHON
done
python3 - <<'PYTHON'
import json
rows = {row['way']: row for row in (json.loads(line) for line in open('rows') if line.startswith('{'))}
for bits in (32, 8):
    if f'dense{bits}' in rows and f'sparse{bits}' in rows:
        ratio = rows[f'sparse{bits}']['parameters'] / rows[f'dense{bits}']['parameters']
        print(f"sparse{bits} / dense{bits}: {ratio:.2f} x the parameters")
PYTHON
