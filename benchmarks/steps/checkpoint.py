#!/usr/bin/env python3
"""Checkpoints beside the training: the rate of writing, and the time that steps lose.

  benchmarks/steps/checkpoint.py rate [REPEATS]    GPT of 605 M parameters, 90 % pruned, 905 MB a file
  benchmarks/steps/checkpoint.py steps [REPEATS]   GPT of 10 M parameters, a checkpoint every EVERY steps

rate: trainings alternate with `dd conv=fsync` of as many bytes. Each writes a checkpoint in the background at
step 3, with and without a core that the training leaves idle, or while the run does nothing else; and one
at its end that the run waits for.
Seconds are from the birth of the temporary file to its rename (inode times), so they include the copy,
checksums, fsync and the training beside. "verified": seconds from the rename to the report on the console.

steps: alternating runs with and without checkpoints, on one core with one thread: the writer competes with
the training. Prints median and least step times, CPU seconds a step, and the times of copies and of
waits for the checkpoint before, which are in no step's time. EVERY=8 and STEPS=48 set the interval and steps.

Needs build/src/cli/espalier and ext4 (birth times). DIR (environment) is the folder of the files.
"""
import json
import os
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("ESPALIER", str(ROOT / "build/src/cli/espalier"))
COMMON = """
[data]
kind = "{kind}"
train = ["text.txt"]
[train]
steps = {steps}
global_batch = {batch}
dtype = "bf16"
eval_every = 0
eval_batches = 1
keep_checkpoints = 2
[optimizer]
warmup_steps = 2
{optimizer}
[pruning]
method = "random"
at_step = 0
sparsity = 0.9
[sparse]
storage = "sparse"
[run]
trace = true
"""


def write_inputs(model: str, **keys) -> None:
    words = "pear apple quince plum wall branch pruned by hand".split()
    generator = random.Random(1)
    text = " ".join(generator.choice(words) for _ in range(60_000))
    pathlib.Path("text.txt").write_text(text)
    pathlib.Path("c.toml").write_text(f"[model]\n{model}\n" + COMMON.format(**keys))


def train(*settings: str, before: tuple = ()) -> tuple:
    """Seconds of CPU, and the times at which lines of the console appeared."""
    shutil.rmtree("run", ignore_errors=True)
    command = [*before, PROGRAM, "train", "c.toml", "--out", "run", "--resume", "none"]
    for setting in settings:
        command += ["--set", setting]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = {}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
        for line in job.stderr:
            lines[line.strip()] = time.time()
    if job.returncode != 0:
        sys.exit("\n".join(lines))
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, lines


def written(step: int, lines: dict) -> tuple:
    """Bytes, seconds from birth to rename, and from rename to report."""
    name = f"run/checkpoints/step-{step:06}.h5"
    out = subprocess.run(["stat", "-c", "%s %.W %.Z", name], capture_output=True, text=True, check=True).stdout
    size, birth, rename = (float(field.replace(",", ".")) for field in out.split())
    return size, rename - birth, lines[f"checkpoint {name}"] - rename


def dd(size: float) -> float:
    blocks = max(round(size / (32 << 20)), 1)
    begin = time.time()
    subprocess.run(["dd", "if=/dev/zero", "of=dd.bin", "bs=32M", f"count={blocks}", "conv=fsync"],
                   check=True, stderr=subprocess.DEVNULL)
    seconds = time.time() - begin
    os.remove("dd.bin")
    return blocks * (32 << 20) / seconds


def spans(name: str) -> list:
    """Milliseconds, from trace.json."""
    events = json.loads(pathlib.Path("run/trace.json").read_text())["traceEvents"]
    return [event["dur"] / 1000 for event in events if event.get("name") == name]


def rate(repeats: int) -> None:
    write_inputs("layers = 12\nheads = 16\nwidth = 2048\ncontext = 64", kind="bytes", steps=8, batch=1,
                 optimizer="state_bits = 8")
    size = 905e6
    cores = len(os.sched_getaffinity(0))
    ways = {"a core is free": (max(cores - 1, 1), 8), "all cores compute": (cores, 8), "nothing computes": (cores, 3)}
    rows = []
    for _ in range(repeats):
        row = {"load": round(os.getloadavg()[0], 1), "dd": []}
        for way, (threads, last) in ways.items():
            row["dd"].append(round(dd(size) / 1e6))
            _, lines = train("train.checkpoint_every=3", f"train.steps={last}", f"run.threads={threads}",
                             "train.keep_checkpoints=9")
            size, seconds, verified = written(3, lines)
            row[way] = {"MB/s": round(size / seconds / 1e6), "s": round(seconds, 2), "verified": round(verified, 2),
                        "copy, ms": round(spans("copy for a checkpoint")[0])}
            if last > 3:
                size, seconds, _ = written(last, lines)
                row.setdefault("waiting", []).append(round(size / seconds / 1e6))
        rows.append(row | {"bytes": int(size)})
        print(json.dumps(rows[-1]), flush=True)
    speeds = {"dd": [speed for row in rows for speed in row["dd"]],
              "waiting": [speed for row in rows for speed in row["waiting"]]}
    speeds |= {way: [row[way]["MB/s"] for row in rows] for way in ways}
    for name, all_of in speeds.items():
        print(f"{name}: median {statistics.median(all_of)} MB/s, best {max(all_of)}, of dd's median "
              f"{statistics.median(all_of) / statistics.median(speeds['dd']):.2f}")


def steps(repeats: int) -> None:
    count = int(os.environ.get("STEPS", 32))
    every = int(os.environ.get("EVERY", 8))
    write_inputs("layers = 6\nheads = 6\nwidth = 384\ncontext = 256", kind="chars", steps=count, batch=2, optimizer="")
    rows = {0: [], every: []}
    cpus = {0: [], every: []}
    copies = []
    waits = []
    for _ in range(repeats):
        for interval, times in rows.items():
            cpu, _ = train(f"train.checkpoint_every={interval}", "run.threads=1",
                           before=("taskset", "-c", os.environ.get("CORE", "0")))
            metrics = [json.loads(line) for line in pathlib.Path("run/metrics.jsonl").read_text().splitlines()]
            times += [row["step_ms"] for row in metrics[1:]]
            cpus[interval].append(cpu / count)
            copies += spans("copy for a checkpoint")
            waits += spans("wait for a checkpoint")[:-1] if interval else []  # the last waits by design
    median, least, cpu = ([f(rows_of[key]) for key in (0, every)] for f, rows_of in
                          ((statistics.median, rows), (min, rows), (min, cpus)))
    mean = [statistics.mean(sorted(rows[key])[:len(rows[key]) * 9 // 10]) for key in (0, every)]
    for name, pair in (("median step, ms", median), ("least step, ms", least), ("mean of the fastest 90 %, ms", mean),
                       ("least CPU s a step", cpu)):
        print(f"{name}: without {pair[0]:.4g}, with {pair[1]:.4g}, ratio {pair[1] / pair[0]:.4f}")
    print(f"copy of {os.path.getsize(next(pathlib.Path('run/checkpoints').glob('*.h5'))) / 1e6:.1f} MB, ms: "
          f"median {statistics.median(copies):.1f}, least {min(copies):.1f}")
    print(f"waits for the checkpoint before, ms: {', '.join(f'{wait:.0f}' for wait in sorted(waits)) or 'none'}")


def main() -> None:
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode not in ("rate", "steps"):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(dir=os.environ.get("DIR")) as folder:
        os.chdir(folder)
        (rate if mode == "rate" else steps)(int(sys.argv[2]) if len(sys.argv) > 2 else 5)
        os.chdir("/")


main()
