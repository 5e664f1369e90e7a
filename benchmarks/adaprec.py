#!/usr/bin/env python3
"""Validation loss over time on a slow link: fixed codecs beside those that choose (AdaPrec's poster, Oyama 2017).

nanoGPT's CPU setting (4 layers, 128 wide, context 64, 12 sequences, characters of TEXT), 2 ranks of one core on two
hosts (scripts/two_hosts.sh), dense, no error feedback, as in the poster. float: fp32; fp8: fp8-e5m2; table-1; fastest;
adaprec: a round every third of the steps, trials of 100 steps with each of fp32, fp8-e5m2, table:1. Time is that of
steps and, with adaprec, of its trials; evaluations for the curve are not counted.

  benchmarks/adaprec.py run OUT.jsonl TEXT [--rate 1gbit] [--steps 1200] [--seeds 1 2 3] [--program P]
  benchmarks/adaprec.py table OUT.jsonl [SVG]      Markdown; a chart of the first seed

Standard library only. `run` goes on where OUT.jsonl ends. Exit code 77: the link cannot be made on this machine.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import plot

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTENDERS = {"float": "fp32", "fp8": "fp8-e5m2", "table-1": "table:1", "fastest": "fastest", "adaprec": "adaprec"}
SETTING = {
    "model.kind": "gpt", "model.layers": 4, "model.heads": 4, "model.width": 128, "model.context": 64,
    "data.kind": "chars", "train.global_batch": 12, "train.eval_batches": 30, "train.checkpoint_every": -1,
    "run.threads": 1, "run.trace": False, "optimizer.lr": 1e-3, "optimizer.min_lr": 1e-4, "optimizer.warmup_steps": 100,
    "optimizer.clip": 1.0, "optimizer.weight_decay": 0.1, "optimizer.beta2": 0.99,
    "parallel.codec_candidates": ["fp32", "fp8-e5m2", "table:1"], "parallel.codec_trial": 100,
}


def curve(rows):
    """[minutes of training, validation loss], and choices of rounds."""
    seconds, points = 0.0, []
    for row in rows:
        seconds += (row["step_ms"] + row.get("trial_ms", 0)) / 1e3
        if "val_loss" in row:
            points.append([seconds / 60, row["val_loss"]])
    return points


def train(name, seed, arguments):
    settings = {**SETTING, "train.steps": arguments.steps, "train.eval_every": arguments.steps // 20, "train.seed": seed,
                "data.train": [arguments.text], "parallel.codec": CONTENDERS[name],
                "parallel.codec_every": arguments.steps // 3}
    with tempfile.TemporaryDirectory() as out:
        run = pathlib.Path(out) / "run"
        config = pathlib.Path(out) / "empty.toml"
        config.write_text("")
        command = [str(ROOT / "scripts/two_hosts.sh"), "--rate", arguments.rate, "mpirun", arguments.program, "train",
                   str(config), "--resume", "none", "--out", str(run)]
        for key, value in settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            sys.exit(done.returncode)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        log = run / "adaprec.jsonl"
        choices = [json.loads(line)["chosen"] for line in log.read_text().splitlines()] if log.exists() else []
        return {"name": name, "seed": seed, "rate": arguments.rate, "curve": curve(rows), "choices": choices,
                "step_ms": statistics.median(row["step_ms"] for row in rows)}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_all(arguments):
    out = pathlib.Path(arguments.out)
    arguments.text = str(pathlib.Path(arguments.text).resolve())
    known = {(run["name"], run["seed"]) for run in read(out)}
    for seed in arguments.seeds:
        for name in CONTENDERS:
            if (name, seed) not in known:
                with out.open("a") as file:
                    file.write(json.dumps(train(name, seed, arguments)) + "\n")


def loss_at(points, minutes):
    """The last one evaluated by then."""
    return next((loss for at, loss in reversed(points) if at <= minutes), None)


def minutes_to(points, loss):
    return next((at for at, reached in points if reached <= loss), None)


def cell(values, digits):
    if any(value is None for value in values):
        return "never" if all(value is None for value in values) else f"{sum(v is not None for v in values)} of {len(values)}"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def table(arguments):
    runs = read(pathlib.Path(arguments.out))
    of = {name: [run for run in runs if run["name"] == name] for name in CONTENDERS}
    shortest = min(run["curve"][-1][0] for run in runs if run["name"] == "fp8")
    target = max(run["curve"][-1][1] for run in of["fp8"]) * 1.02
    print(f"| | ms a step | minutes | final loss | loss after {shortest:.2f} minutes | minutes to {target:.2f} | chosen |")
    print("|---|---|---|---|---|---|---|")
    for name, group in of.items():
        choices = "; ".join(" ".join(run["choices"]) for run in group if run["choices"])
        print(f"| {name} | {cell([run['step_ms'] for run in group], 1)} | {cell([run['curve'][-1][0] for run in group], 2)} "
              f"| {cell([run['curve'][-1][1] for run in group], 3)} "
              f"| {cell([loss_at(run['curve'], shortest) for run in group], 3)} "
              f"| {cell([minutes_to(run['curve'], target) for run in group], 2)} | {choices} |")
    if arguments.svg:
        series = {name: (group[0]["curve"], name == "adaprec") for name, group in of.items()}
        longest = max(points[-1][0] for points, _ in series.values())
        low = min(loss for points, _ in series.values() for _, loss in points)
        svg = plot.chart(f"Loss over time, link of {runs[0]['rate']}", "minutes", "validation loss", series,
                         plot.nice_steps(0, longest), False, low)
        pathlib.Path(arguments.svg).write_text(svg)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("out")
    run.add_argument("text")
    run.add_argument("--rate", default="1gbit")
    run.add_argument("--steps", type=int, default=1200)
    run.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    run.add_argument("--program", default=str(ROOT / "build/src/cli/espalier"))
    run.set_defaults(action=run_all)
    show = commands.add_parser("table")
    show.add_argument("out")
    show.add_argument("svg", nargs="?")
    show.set_defaults(action=table)
    arguments = parser.parse_args()
    arguments.action(arguments)


if __name__ == "__main__":
    main()
