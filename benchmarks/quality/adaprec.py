#!/usr/bin/env python3
"""Validation loss over time on a slow link: fixed codecs beside codecs that are chosen (AdaPrec's poster, Oyama 2017).

nanoGPT's CPU setting (4 layers, 128 wide, context 64, 12 sequences, characters of TEXT), 2 ranks of one core on two
hosts (scripts/two_hosts.sh), dense, no error feedback, as in the poster. Contenders: float (fp32), fp8 (fp8-e5m2),
table-1, fastest, and adaprec with a round every third of the steps and trials of 100 steps with each of fp32,
fp8-e5m2 and table:1. Time is that of steps and, with adaprec, of its trials, without evaluations.

  benchmarks/quality/adaprec.py run OUT.jsonl TEXT [--rate 1gbit] [--steps 1200] [--seeds 1 2 3] [--program P]
  benchmarks/quality/adaprec.py table OUT.jsonl [SVG]      Markdown; a chart of the first seed

Standard library only. `run` continues after the last line of OUT.jsonl. Exit code 77: no link on this machine.
"""
import pathlib
import statistics
import sys

import plot
import runs

CONTENDERS = {"float": "fp32", "fp8": "fp8-e5m2", "table-1": "table:1", "fastest": "fastest", "adaprec": "adaprec"}
SETTING = {**runs.NANOGPT, **runs.QUIET, "train.eval_batches": 30, "parallel.codec_trial": 100,
           "parallel.codec_candidates": ["fp32", "fp8-e5m2", "table:1"]}


def curve(rows):
    """[[minutes of training, validation loss], …]"""
    seconds, points = 0.0, []
    for row in rows:
        seconds += (row["step_ms"] + row.get("trial_ms", 0)) / 1e3
        if "val_loss" in row:
            points.append([seconds / 60, row["val_loss"]])
    return points


def train(run, arguments):
    settings = {**SETTING, "train.steps": arguments.steps, "train.eval_every": arguments.steps // 20,
                "train.seed": run["seed"], "data.train": [arguments.text], "parallel.codec": CONTENDERS[run["name"]],
                "parallel.codec_every": arguments.steps // 3}
    launcher = [str(runs.ROOT / "scripts/two_hosts.sh"), "--rate", arguments.rate, "mpirun", arguments.program]
    with runs.trained(launcher, settings) as directory:
        if not directory:
            sys.exit(f"{run} diverged")
        rows = runs.lines(directory / "metrics.jsonl")
        return {**run, "rate": arguments.rate, "curve": curve(rows),
                "choices": [line["chosen"] for line in runs.lines(directory / "adaprec.jsonl")],
                "step_ms": statistics.median(row["step_ms"] for row in rows)}


def run_all(arguments):
    arguments.text = str(pathlib.Path(arguments.text).resolve())
    wanted = ({"name": name, "seed": seed} for seed in arguments.seeds for name in CONTENDERS)
    runs.write(arguments.out, (train(run, arguments) for run in runs.left(arguments.out, wanted)))


def loss_at(points, minutes):
    """The last loss evaluated within these minutes."""
    return next((loss for at, loss in reversed(points) if at <= minutes), None)


def minutes_to(points, loss):
    return next((at for at, reached in points if reached <= loss), None)


def cell(values, digits):
    reached = [value for value in values if value is not None]
    if len(reached) < len(values):
        return f"{len(reached)} of {len(values)}" if reached else "never"
    return runs.mean_and_spread(values, digits)


def table(arguments):
    done = runs.lines(arguments.out)
    of = {name: [run for run in done if run["name"] == name] for name in CONTENDERS}
    shortest = min(run["curve"][-1][0] for run in done if run["name"] == "fp8")
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
        svg = plot.chart(f"Loss over time, link of {done[0]['rate']}", "minutes", "validation loss", series,
                         plot.nice_steps(0, longest), False, low)
        pathlib.Path(arguments.svg).write_text(svg)


if __name__ == "__main__":
    runs.main(__doc__, run=(run_all, {
        "out": {}, "text": {}, "--rate": {"default": "1gbit"}, "--steps": {"type": int, "default": 1200},
        "--seeds": {"type": int, "nargs": "+", "default": runs.SEEDS}, "--program": {"default": runs.PROGRAM}}),
        table=(table, {"out": {}, "svg": {"nargs": "?"}}))
