"""Shared by the scripts of this folder: many short trainings whose results are lines of a file.

A run is a dictionary that describes one training. A call continues after the last line of the file, so it may be
stopped at any time.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.environ.get("ESPALIER", str(ROOT / "build/src/cli/espalier"))
SEEDS = [1, 2, 3]
NANOGPT = {  # nanoGPT's setting for CPUs: 0.8 M parameters
    "model.kind": "gpt", "model.layers": 4, "model.heads": 4, "model.width": 128, "model.context": 64,
    "data.kind": "chars", "train.global_batch": 12, "optimizer.lr": 1e-3, "optimizer.min_lr": 1e-4,
    "optimizer.warmup_steps": 100, "optimizer.clip": 1.0, "optimizer.weight_decay": 0.1, "optimizer.beta2": 0.99,
    "train.parametrization": "standard",
}
QUIET = {"run.threads": 1, "run.trace": False, "train.checkpoint_every": -1}

DIVERGED = "stopped before the update"  # in the message of a run whose loss or gradient is not finite


def toml(value):
    """The value for --set; a dictionary is a value for each pattern of names."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


@contextlib.contextmanager
def trained(launcher, settings, config=None):
    """Trains with the settings, and those of a config file; yields the run directory, which is removed when the block
    ends, or None if the run diverged. Any other failure, a killed run too, ends the script, because it must never look
    like a result."""
    with tempfile.TemporaryDirectory() as scratch:
        empty = pathlib.Path(scratch) / "empty.toml"
        empty.write_text("")
        directory = pathlib.Path(scratch) / "run"
        command = [*launcher, "train", str(config or empty), "--resume", "none", "--out", str(directory)]
        for key, value in settings.items():
            command += ["--set", f"{key}={toml(value)}"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        if done.returncode != 0 and DIVERGED not in done.stderr:
            sys.exit(f"{' '.join(command)}\n{done.stderr}\nended with exit code {done.returncode}")
        yield directory if done.returncode == 0 else None


def lines(path):
    """The objects of a file of JSON lines; none if the file is missing."""
    path = pathlib.Path(path)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def left(path, wanted):
    """The wanted runs that the file does not hold, each once."""
    keys, known = None, set()
    for run in wanted:
        if keys is None:
            keys = list(run)
            known = {tuple(line[key] for key in keys) for line in lines(path)}
        if tuple(run.values()) not in known:
            known.add(tuple(run.values()))
            yield run


def write(path, results):
    with pathlib.Path(path).open("a") as file:
        for result in results:
            file.write(json.dumps(result) + "\n")
            file.flush()


def best_rate(first, loss):
    """The learning rate with the least loss(rate) among first * 2^k: walks until both neighbours are no better."""
    best = first
    while True:
        better = [rate for rate in (best * 2, best / 2) if loss(rate) < loss(best)]
        if not better:
            return best
        best = min(better, key=loss)


def mean_and_spread(values, digits, sign=""):
    """Of the seeds that ran, as text; a run without a loss has diverged."""
    if not values:
        return ""
    if any(value is None or math.isnan(value) for value in values):
        return "diverged"
    if len(values) == 1:
        return f"{values[0]:{sign}.{digits}f} (one seed)"
    return f"{statistics.mean(values):{sign}.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def main(description, **commands):
    """Runs the subcommand of the command line. commands: NAME=(action, {argument: options of add_argument})."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(required=True)
    for name, (action, arguments) in commands.items():
        command = subparsers.add_parser(name)
        command.set_defaults(action=action)
        for argument, options in arguments.items():
            command.add_argument(argument, **options)
    given = parser.parse_args()
    given.action(given)
