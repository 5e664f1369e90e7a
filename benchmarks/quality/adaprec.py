#!/usr/bin/env python3
"""Validation loss over time on a slow link: fixed codecs beside codecs that are chosen (AdaPrec's poster, Oyama 2017).

2 ranks of one core on two hosts (scripts/two_hosts.sh), dense, no error feedback, as in the poster.

  gpt       nanoGPT's CPU setting (4 layers, 128 wide, context 64, 12 sequences), characters of the file DATA
  caffenet  configs/caffenet-fashion.toml: CaffeNet, a quarter as wide, on the four IDX files in the folder DATA;
            momentum SGD whose rate falls with the square of the steps left, as in the poster, from 0.05

Contenders: float (fp32), fp8 (fp8-e5m2), table-1, fastest, and adaprec with a round every third of the steps and
trials of TRIAL steps with each of fp32, fp8-e5m2 and table:1; of caffenet also table-4, top-1% (topk:0.01) and
adaprec+fastest, which may choose "fastest" too. Time is that of steps and, with adaprec, of its trials, without other
evaluations.

  benchmarks/quality/adaprec.py run OUT.jsonl DATA [--network gpt] [--rate 1gbit] [--steps 1200] [--trial 100]
                                [--seeds 1 2 3] [--only NAME ...] [--program P]
  benchmarks/quality/adaprec.py time TIMES.jsonl DATA [the same options]     milliseconds a step, in short runs
  benchmarks/quality/adaprec.py table OUT.jsonl [SVG]                        Markdown; a chart of the first seed
  benchmarks/quality/adaprec.py table-of-images OUT.jsonl TIMES.jsonl        Markdown, of caffenet

The table of images computes seconds from the least milliseconds of a step in TIMES (alternating short runs, each
contender's first decile, least of its rounds): of the steps, of lost trials, and of the evaluations in rounds. Then
runs of fixed codecs need no link (--rate none), and other processes may disturb the machine.

Standard library only. `run` continues after the last line of OUT.jsonl. Exit code 77: no link on this machine.
"""
import pathlib
import statistics
import sys

import plot
import runs

GPT = {"float": "fp32", "fp8": "fp8-e5m2", "table-1": "table:1", "fastest": "fastest", "adaprec": "adaprec"}
CONTENDERS = {"gpt": GPT, "caffenet": {**GPT, "table-4": "table:4", "top-1%": "topk:0.01", "adaprec+fastest": "adaprec"}}
CANDIDATES = ["fp32", "fp8-e5m2", "table:1"]
CONFIGS = {"gpt": None, "caffenet": runs.ROOT / "configs/caffenet-fashion.toml"}
FILES = {kind: [f"{kind}-{part}-ubyte" for part in ("images-idx3", "labels-idx1")] for kind in ("train", "t10k")}


def codec_of(run, arguments):
    codec = CONTENDERS[arguments.network][run["name"]]
    if codec != "adaprec":
        return codec
    candidates = CANDIDATES + ["fastest"] * (run["name"] == "adaprec+fastest")
    return f"adaprec:{arguments.steps // 3}:{arguments.trial}:{'+'.join(candidates)}"


def settings_of(run, arguments):
    parts = 20 if arguments.network == "gpt" else 4  # of the steps, with an evaluation after each
    settings = {**runs.QUIET, "train.steps": arguments.steps, "train.eval_every": arguments.steps // parts,
                "train.seed": run["seed"], "parallel.codec": codec_of(run, arguments)}
    if arguments.network == "gpt":
        return {**runs.NANOGPT, **settings, "train.eval_batches": 30, "data.train": [arguments.data]}
    files = {kind: [str(pathlib.Path(arguments.data) / name) for name in names] for kind, names in FILES.items()}
    return {**settings, "train.eval_batches": 80, "optimizer.lr": 0.05,
            "data.train": files["train"], "data.validation": files["t10k"]}


def curve(rows):
    """[[minutes of training, validation loss], …]"""
    seconds, points = 0.0, []
    for row in rows:
        seconds += (row["step_ms"] + row.get("trial_ms", 0)) / 1e3
        if "val_loss" in row:
            points.append([seconds / 60, row["val_loss"]])
    return points


def rounds_of(directory):
    """Of each round: steps of a trial, {candidate: seconds of an evaluation}, the chosen one."""
    rounds = []
    for line in runs.lines(directory / "adaprec.jsonl"):
        trial = line.get("trial_steps", 0)
        evaluation = {one["name"]: (one["speculation_seconds"] - trial * one["seconds_per_step"]) /
                      max(len(one["points"]) - 1, 1) for one in line["candidates"]}
        rounds.append({"trial": trial, "evaluation_s": evaluation, "chosen": line["chosen"]})
    return rounds


def rows_of(run, arguments, settings):
    launcher = [str(runs.ROOT / "scripts/two_hosts.sh"), "--rate", arguments.rate, "mpirun", arguments.program]
    with runs.trained(launcher, settings, CONFIGS[arguments.network]) as directory:
        if not directory:
            sys.exit(f"{run} diverged")
        return runs.lines(directory / "metrics.jsonl"), rounds_of(directory)


def least_ms(rows):
    return statistics.quantiles([row["step_ms"] for row in rows], n=10)[0]


def train(run, arguments):
    rows, rounds = rows_of(run, arguments, settings_of(run, arguments))
    return {**run, "network": arguments.network, "rate": arguments.rate, "steps": arguments.steps,
            "trial": arguments.trial, "curve": curve(rows), "choices": [one["chosen"] for one in rounds],
            "rounds": rounds, "top1": [row["val_top1"] for row in rows if "val_top1" in row],
            "step_ms": statistics.median(row["step_ms"] for row in rows), "least_ms": least_ms(rows),
            "trial_s": sum(row.get("trial_ms", 0) for row in rows) / 1e3,
            "mb": statistics.median(row["comm_bytes_sent"] for row in rows) / 1e6}


def run_all(arguments):
    arguments.data = str(pathlib.Path(arguments.data).resolve())
    names = arguments.only or list(CONTENDERS[arguments.network])
    wanted = ({"name": name, "seed": seed} for seed in arguments.seeds for name in names)
    runs.write(arguments.out, (train(run, arguments) for run in runs.left(arguments.out, wanted)))


def time_all(arguments):
    """Each seed is a round of all contenders."""
    arguments.data = str(pathlib.Path(arguments.data).resolve())
    names = arguments.only or [name for name, codec in CONTENDERS[arguments.network].items() if codec != "adaprec"]

    def timed(run):
        rows, _ = rows_of(run, arguments, {**settings_of(run, arguments), "train.eval_every": 0, "train.eval_batches": 1})
        return {**run, "rate": arguments.rate, "least_ms": least_ms(rows),
                "mb": statistics.median(row["comm_bytes_sent"] for row in rows) / 1e6}

    wanted = ({"name": name, "seed": seed} for seed in arguments.seeds for name in names)
    runs.write(arguments.out, (timed(run) for run in runs.left(arguments.out, wanted)))


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


def groups_of(done):
    """The runs of each contender."""
    network = done[0].get("network", "gpt")
    of = {name: [run for run in done if run["name"] == name] for name in CONTENDERS[network]}
    return {name: group for name, group in of.items() if group}


def table(arguments):
    done = runs.lines(arguments.out)
    of = groups_of(done)
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


def seconds_of(run, ms, evaluation):
    """Computed seconds of a run: {what: seconds}. `ms`: of a step by contender; `evaluation`: seconds, in a round.
    Runs of programs that discard all trials lost those of the chosen codec, too."""
    if not run["rounds"]:
        return {"steps": run["steps"] * ms[run["name"]] / 1e3, "lost steps": 0.0, "evaluations": 0.0}
    of_codec = {codec: ms[name] for name, codec in CONTENDERS["caffenet"].items() if name in ms}
    every = run["steps"] // 3
    phases = [every] * (len(run["rounds"]) - 1) + [run["steps"] - every * (len(run["rounds"]) - 1)]
    lost = evaluated = 0
    for one in run["rounds"]:
        discarded = one["trial"] == 0  # a program before trials counted
        for name in one["evaluation_s"]:
            lost += (discarded or name != one["chosen"]) * run["trial"] * of_codec[name]
        evaluated += 1 + 5 * len(one["evaluation_s"])
    return {"steps": sum(steps * of_codec[one["chosen"]] for steps, one in zip(phases, run["rounds"])) / 1e3,
            "lost steps": lost / 1e3, "evaluations": evaluated * evaluation}


def table_of_images(arguments):
    done, times = runs.lines(arguments.out), runs.lines(arguments.times)
    ms = {name: min(run["least_ms"] for run in times if run["name"] == name) for name in {run["name"] for run in times}}
    mb = {run["name"]: run["mb"] for run in times}
    evaluation = min(seconds for run in done for one in run["rounds"] if one["trial"]
                     for seconds in one["evaluation_s"].values())
    print(f"An evaluation in a round: {evaluation:.3f} s\n")
    print("| | ms a step | MB a step | seconds | lost steps, s | evaluations, s | final loss | top-1 | chosen |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, group in groups_of(done).items():
        choices = "; ".join(" ".join(run["choices"]) for run in group if run["choices"])
        parts = [seconds_of(run, ms, evaluation) for run in group]
        step = f"{ms[name]:.1f} | {mb[name]:.2f}" if name in ms else " | "
        print(f"| {name} | {step} | {cell([sum(one.values()) for one in parts], 1)} "
              f"| {cell([one['lost steps'] for one in parts], 1)} | {cell([one['evaluations'] for one in parts], 1)} "
              f"| {cell([run['curve'][-1][1] for run in group], 3)} "
              f"| {cell([100 * run['top1'][-1] for run in group], 2)} | {choices} |")


RUN = {"out": {}, "data": {}, "--network": {"choices": list(CONTENDERS), "default": "gpt"}, "--rate": {"default": "1gbit"},
       "--steps": {"type": int, "default": 1200}, "--trial": {"type": int, "default": 100},
       "--seeds": {"type": int, "nargs": "+", "default": runs.SEEDS}, "--only": {"nargs": "+"},
       "--program": {"default": runs.PROGRAM}}

if __name__ == "__main__":
    runs.main(__doc__, **{"run": (run_all, RUN), "time": (time_all, RUN),
                          "table": (table, {"out": {}, "svg": {"nargs": "?"}}),
                          "table-of-images": (table_of_images, {"out": {}, "times": {}})})
