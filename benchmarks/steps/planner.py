#!/usr/bin/env python3
"""Predicted beside measured step times and memory on this machine, of configurations that calibration
does not contain: networks, widths, numbers of tokens, densities, storages, ranks, stages, schedules
and codecs.

    benchmarks/steps/planner.py TEXT ONE.toml TWO.toml [SEED]

ONE.toml, TWO.toml: machine files of `espalier plan --calibrate`, with 1 rank and with 2 under
mpirun. With LINK=1gbit (or another rate) all configurations have 2 ranks on two hosts with such a link
between them (scripts/two_hosts.sh), where TWO.toml was calibrated:

    scripts/two_hosts.sh --rate 1gbit mpirun build/src/cli/espalier plan --calibrate -o link.toml

Needs build/src/cli/espalier (ESPALIER names another). COUNT is the number of configurations (30), RUNS
the number of rounds (3). A round runs each configuration once. The time of a run is the median step of
its second half. The script prints a line of JSON for each configuration: `measured_ms` is the median run,
`spread_pct` the slowest run over the fastest. Then it prints the median and the worst error.

FASTEST=1 is for a machine that others use, too: `measured_ms` is the first decile of all steps but the
first three of each run, which takes SECONDS_EACH (2) seconds. Use machine files of `--calibrate --rounds
4` with it. Predicted and measured times are then those of the machine without other load, if each
configuration and each probe met it at least once: use many short runs, and many rounds.
"""
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("ESPALIER", str(ROOT / "build/src/cli/espalier"))
COUNT = int(os.environ.get("COUNT", "30"))
RUNS = int(os.environ.get("RUNS", "3"))
LINK = os.environ.get("LINK", "")
FASTEST = os.environ.get("FASTEST", "") == "1"
STEPS = 16
SECONDS = float(os.environ.get("SECONDS_EACH", "2"))
WARM_UP = 3


def draw(source):
    """A configuration, as settings of --set, and its ranks."""
    width = source.choice([192, 320, 384, 512, 640, 768])
    context = source.choice([64, 128, 192, 256, 512])
    micro = source.choice([1, 2, 3, 4])
    ranks = 2 if LINK else source.choice([1, 1, 2, 2])
    stages = source.choice([1, 2]) if ranks == 2 else 1
    micro_batches = source.choice([2, 4]) if stages == 2 else source.choice([1, 2])
    settings = {"model.layers": source.choice([2, 3, 4, 6]), "model.width": width,
                "model.heads": width // 64, "model.context": context, "model.tie_embeddings": False,
                "train.dtype": source.choice(["fp32", "bf16"]), "train.micro_batch": micro,
                "train.global_batch": micro * micro_batches * ranks // stages}
    if source.random() < 0.7:
        settings |= {"pruning.method": "random", "pruning.scope": "layer", "pruning.at_step": 0,
                     "pruning.sparsity": source.choice([0.75, 0.85, 0.9, 0.93, 0.96, 0.98]),
                     "sparse.storage": source.choice(["sparse", "sparse", "sparse", "expanded", "dense"])}
    else:
        settings["pruning.method"] = "none"
    if stages == 2:
        settings |= {"parallel.pipeline": 2,
                     "parallel.schedule": source.choice(["gpipe", "1f1b", "zb-v"])}
    elif ranks == 2:
        settings["parallel.codec"] = source.choice(["fp32", "fp32", "maxmin:8", "maxmin:4"])
    return settings, ranks


def words(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def measured(settings, ranks, steps, text, folder):
    """Milliseconds of steps; bytes of the arena of the rank that needs most; of its process outside it."""
    launch = [str(ROOT / "scripts/mpirun.sh"), str(ranks)] if ranks > 1 else []
    if LINK:
        launch = [str(ROOT / "scripts/two_hosts.sh"), "--rate", LINK, "mpirun"]
    extra = {"data.train": [text], "train.steps": steps, "train.eval_every": 0, "train.eval_batches": 1,
             "train.checkpoint_every": -1, "run.threads": 1, "run.trace": False,
             "optimizer.warmup_steps": 1}
    run = subprocess.run([*launch, PROGRAM, "train", str(ROOT / "configs/shakespeare-char.toml"), "--resume",
                          "none", "--out", folder, *words({**settings, **extra})], capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(run.stderr[-2000:])
    rows = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
    summary = json.load(open(f"{folder}/summary.json"))
    planned = summary["planned_peak"]
    return ([row["step_ms"] for row in rows], max(rank["all"]["peak"] for rank in summary["memory"]["ranks"]),
            planned["process"] - planned["all"])


def predicted(settings, ranks, machine):
    run = subprocess.run([PROGRAM, "plan", str(ROOT / "configs/shakespeare-char.toml"), "--machine", machine,
                          "--ranks", str(ranks), "--json", *words({**settings, "model.vocabulary": 65})],
                         capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(run.stderr[-2000:])
    return json.loads(run.stdout)["plans"][0]


def main():
    text, one, two = (os.path.abspath(path) for path in sys.argv[1:4])
    source = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    configurations = [draw(source) for _ in range(COUNT)]
    plans = [predicted(settings, ranks, one if ranks == 1 else two) for settings, ranks in configurations]
    runs = [[] for _ in range(COUNT)]
    with tempfile.TemporaryDirectory() as folder:
        for _, (number, (settings, ranks)) in itertools.product(range(RUNS), enumerate(configurations)):
            steps = max(STEPS, min(200, int(SECONDS * 1e3 / plans[number]["step_ms"]))) if FASTEST else STEPS
            runs[number].append(measured(settings, ranks, steps, text, f"{folder}/run"))
            shutil.rmtree(f"{folder}/run")
            print(f"configuration {number}: {statistics.median(runs[number][-1][0]):.2f} ms", file=sys.stderr)
    errors, memory_errors = [], []
    for (settings, ranks), plan, of in zip(configurations, plans, runs):
        steps = sorted(step for times, _, _ in of for step in times[WARM_UP:])
        medians = [statistics.median(times[len(times) // 2:]) for times, _, _ in of]
        step = steps[len(steps) // 10] if FASTEST else statistics.median(medians)
        _, memory, outside = of[0]
        errors.append(plan["step_ms"] / step - 1)
        memory_errors.append((plan["memory"] - outside) / memory - 1)
        print(json.dumps({"ranks": ranks, **settings, "measured_ms": round(step, 3),
                          "spread_pct": round(100 * (max(medians) / min(medians) - 1), 1),
                          "predicted_ms": round(plan["step_ms"], 3),
                          "error_pct": round(100 * errors[-1], 1),
                          "memory_error_pct": round(100 * memory_errors[-1], 2)}), flush=True)
    sizes = sorted(abs(error) for error in errors)
    print(f"median error {100 * statistics.median(sizes):.1f} %, worst {100 * sizes[-1]:.1f} %, "
          f"mean {100 * statistics.mean(errors):+.1f} %; memory: worst "
          f"{100 * max(abs(error) for error in memory_errors):.2f} %")


if __name__ == "__main__":
    main()
