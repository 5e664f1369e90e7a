#!/usr/bin/env python3
"""track.py [--dry]: the measurements of benchmarks/track.sh; needs the programs in build/.

Each metric is a speed divided by that of a reference in the same process, so that the machine's clock and
load cancel:

  step-dense, step-sparse   tokens/s over the rate of a dense product of 1,024^3, tokens a GFLOP
  spmm, sddmm               time of the dense product of the shape over that of the sparse one
  all-reduce                time of MPI_Sendrecv of the bytes plus the additions, over that of the sum
  checkpoint                time of a plain write of the bytes over that of the checkpoint

Each round measures all metrics once; the value of a metric is the median of its rounds.
"""
import collections
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/track.jsonl"
ROUNDS, MOVED = 3, 0.10
QUIET = {**os.environ, "OMP_WAIT_POLICY": "passive", "ESPALIER_TEST": "train.checkpoint_background=false"}


def call(*command, **more):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, env=QUIET, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def rows(program, pattern):
    """{name: counters} of a program of Google Benchmark."""
    out = call(f"build/benchmarks/{program}", f"--benchmark_filter={pattern}", "--benchmark_format=json")
    found = json.loads(out[out.index("{"):])["benchmarks"]
    for row in found:
        if row.get("error_occurred"):
            sys.exit(f"{row['name']}: {row['error_message']}")
    return {row["name"]: row for row in found}


def steps():
    for name, row in rows("breakdown_benchmark", "^step/B/fp32/(dense|sparse)/threads:1").items():
        yield f"step-{name.split('/')[3]}", row["tokens/s"] / row["peak_GF/s"]


def products():
    for name, row in rows("sparse_benchmark", "^(spmm|sddmm)/0.1/bitmap/fp32/2048/2048/512").items():
        yield name.split("/")[0], row["ratio"]


def sums():
    out = call("scripts/mpirun.sh", 2, "build/benchmarks/allreduce_benchmark", 8, 15)
    found = re.search(r"^HostBuckets.*\s(\d+)$", out, re.M)  # the first array: fp32
    yield "all-reduce", float(found.group(1)) / 100


def checkpoint():
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("a tree, pruned flat; " * 4000)
        settings = {"model.kind": "gpt", "model.layers": 4, "model.heads": 4, "model.width": 512, "model.context": 32,
                    "data.kind": "bytes", "data.train": [str(folder / "text.txt")], "train.steps": 2, "train.checkpoint_every": 1,
                    "train.global_batch": 1, "train.eval_every": 0, "train.eval_batches": 1, "optimizer.warmup_steps": 0,
                    "run.trace": True}
        (folder / "empty.toml").write_text("")
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        call("build/src/cli/espalier", "train", folder / "empty.toml", "--resume", "none", "--out", folder / "run", *options)
        file = max((folder / "run/checkpoints").glob("*.h5"))
        trace = json.loads((folder / "run/trace.json").read_text())
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        ours = [event["dur"] / 1e6 for event in events if event.get("name") == "checkpoint"]  # seconds
        if not ours:
            sys.exit("trace.json has no span named checkpoint")
        data = file.read_bytes()
        begin = time.monotonic()
        with open(folder / "plain", "wb") as plain:
            plain.write(data)
            plain.flush()
            os.fsync(plain.fileno())
        yield "checkpoint", (time.monotonic() - begin) / statistics.median(ours)


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", text, re.M)
    return f"{model.group(1) if model else 'unknown'}, {len(os.sched_getaffinity(0))} cores"


def main():
    if sys.argv[1:] not in ([], ["--dry"]):
        sys.exit(__doc__)
    begin, values = time.monotonic(), collections.defaultdict(list)
    for _ in range(ROUNDS):
        for measure in (steps, products, sums, checkpoint):
            for metric, ratio in measure():
                values[metric].append(ratio)
    earlier = collections.defaultdict(list)
    if RESULTS.exists():
        for line in map(json.loads, RESULTS.read_text().splitlines()):
            if line["machine"] == machine():
                earlier[line["metric"]].append(line["ratio"])
    commit = call("git", "describe", "--always", "--dirty").strip()
    lines, moved = [], []
    print(f"{'metric':14}{'ratio':>9}{'before':>9}{'change':>9}   rounds")
    for metric, found in values.items():
        ratio = statistics.median(found)
        before = statistics.median(earlier[metric]) if earlier[metric] else None
        change = ratio / before - 1 if before else 0.0
        if abs(change) > MOVED:
            moved.append(f"{metric} {change:+.0%}")
        compared = f"{before:9.3f}{change:+9.1%}" if before else f"{'-':>9}{'-':>9}"
        print(f"{metric:14}{ratio:9.3f}{compared}   {' '.join(f'{one:.3f}' for one in found)}")
        lines.append(json.dumps({"commit": commit, "date": str(datetime.date.today()), "machine": machine(),
                                 "metric": metric, "ratio": round(ratio, 4)}))
    if "--dry" not in sys.argv:
        with RESULTS.open("a") as out:
            out.write("\n".join(lines) + "\n")
    print(f"{time.monotonic() - begin:.0f} s; moved by more than {MOVED:.0%}: {', '.join(moved) or 'nothing'}")


if __name__ == "__main__":
    main()
