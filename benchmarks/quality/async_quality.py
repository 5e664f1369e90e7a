#!/usr/bin/env python3
"""The loss that asynchronous pipelines cost, and the part of it that weight prediction recovers.

Each run is one rank with the delays of p stages (parallel.schedule = "async:P"), which equals a pipeline of p ranks to
the bit. Networks: a GPT of 8 layers, 64 wide, context 32, on characters of TEXT; a perceptron of 7 hidden layers on IDX
images. Dense, and pruned to 90 % by magnitude after a quarter of the steps. The validation loss at the end, over
seeds 1, 2, 3, minus that of the synchronous run of the same seed. --longer adds nanoGPT's CPU setting (4 layers,
128 wide, 2,000 steps) at p = 4, with updates of 1 and of 4 micro-batches.

  benchmarks/quality/async_quality.py run OUT.jsonl TEXT IMAGES-DIR [--jobs 2]    continues after the last line
  benchmarks/quality/async_quality.py table OUT.jsonl                             Markdown
  benchmarks/quality/async_quality.py picture OUT.jsonl SVG                       the GPT with AdamW, dense
  benchmarks/quality/async_quality.py csv OUT.jsonl                               one short line per run

IMAGES-DIR holds train-images, train-labels, val-images, val-labels. Standard library only.
"""
import collections
import concurrent.futures
import itertools
import json
import math
import pathlib
import statistics

import plot
import runs
from runs import SEEDS

PREDICTIONS = ["none", "stash", "2bw", "spectrain"]
STAGES = [2, 4, 8]
KEYS = ["network", "optimizer", "sparsity", "prediction", "stages", "micro_batches", "seed"]

COMMON = {
    "run.threads": 1,
    "train.eval_every": 0,
    "train.checkpoint_every": -1,
    "optimizer.min_lr": 1e-4,
    "optimizer.warmup_steps": 100,
    "optimizer.clip": 1.0,
    "train.parametrization": "standard",
}
NETWORKS = {
    "gpt": {"model.kind": "gpt", "model.layers": 8, "model.heads": 4, "model.width": 64, "model.context": 32,
            "data.kind": "chars", "train.steps": 800, "train.global_batch": 16, "train.eval_batches": 40},
    "nanogpt": {"model.kind": "gpt", "model.layers": 4, "model.heads": 4, "model.width": 128, "model.context": 64,
                "data.kind": "chars", "train.steps": 2000, "train.global_batch": 12, "train.eval_batches": 100},
    "mlp": {"model.kind": "mlp", "model.hidden": [64] * 7, "data.kind": "images", "train.steps": 800,
            "train.global_batch": 64, "train.eval_batches": 5},
}
OPTIMIZERS = {
    ("gpt", "adamw"): {"optimizer.lr": 1e-3, "optimizer.weight_decay": 0.1, "optimizer.beta2": 0.99},
    ("nanogpt", "adamw"): {"optimizer.lr": 1e-3, "optimizer.weight_decay": 0.1, "optimizer.beta2": 0.99},
    ("gpt", "sgd"): {"optimizer.lr": 0.1, "optimizer.weight_decay": 1e-4},
    ("mlp", "adamw"): {"optimizer.lr": 1e-3, "optimizer.weight_decay": 0.1, "optimizer.beta2": 0.99},
    ("mlp", "sgd"): {"optimizer.lr": 0.02, "optimizer.weight_decay": 1e-4},
}


def all_runs(longer):
    """Seed after seed, so that a table with one seed is available early."""
    for seed, network, sparsity, optimizer in itertools.product(SEEDS, ["gpt", "mlp"], [0, 0.9], ["adamw", "sgd"]):
        yield dict(zip(KEYS, [network, optimizer, sparsity, "synchronous", 1, 1, seed]))
        for stages, prediction in itertools.product(STAGES, PREDICTIONS):
            several = stages if prediction == "2bw" else 1
            yield dict(zip(KEYS, [network, optimizer, sparsity, prediction, stages, several, seed]))
    for seed, sparsity in itertools.product(SEEDS if longer else [], [0, 0.9]):
        yield dict(zip(KEYS, ["nanogpt", "adamw", sparsity, "synchronous", 1, 1, seed]))
        for several, predictions in [(1, ["none"]), (4, ["none", "2bw", "spectrain"])]:
            for prediction in predictions:
                yield dict(zip(KEYS, ["nanogpt", "adamw", sparsity, prediction, 4, several, seed]))


def settings_of(run, text, images):
    network = NETWORKS[run["network"]]
    settings = {**COMMON, **network, **OPTIMIZERS[run["network"], run["optimizer"]]}
    settings["optimizer.kind"] = run["optimizer"]
    settings["train.seed"] = run["seed"]
    if network["data.kind"] == "chars":
        settings["data.train"] = [str(text)]
    else:
        settings["data.train"] = [str(images / "train-images"), str(images / "train-labels")]
        settings["data.validation"] = [str(images / "val-images"), str(images / "val-labels")]
    if run["sparsity"]:
        settings |= {"pruning.method": "magnitude", "pruning.sparsity": run["sparsity"],
                     "pruning.at_step": network["train.steps"] // 4}
    if run["stages"] > 1:
        settings |= {"parallel.schedule": f"async:{run['stages']}",
                     "parallel.weight_prediction": run["prediction"]}
    settings["train.micro_batch"] = network["train.global_batch"] // run["micro_batches"]
    return settings


def train(run, text, images):
    with runs.trained([runs.PROGRAM], settings_of(run, text, images)) as directory:
        if not directory:
            return {**run, "loss": None}
        summary = json.loads((directory / "summary.json").read_text())
        return {**run, "loss": summary["final_val_loss"],
                "delays": [delay["mean"] for delay in (summary.get("pipeline") or {}).get("delays", [])]}


def run_all(arguments):
    text, images = pathlib.Path(arguments.text).resolve(), pathlib.Path(arguments.images).resolve()
    left = list(runs.left(arguments.out, all_runs(arguments.longer)))
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs.write(arguments.out, pool.map(lambda run: train(run, text, images), left))


def table(arguments):
    done = runs.lines(arguments.out)
    losses = {tuple(run[key] for key in KEYS): run["loss"] for run in done}
    for network, sparsity, optimizer in sorted({(run["network"], run["sparsity"], run["optimizer"]) for run in done}):
        mine = [run for run in done if (run["network"], run["sparsity"], run["optimizer"]) ==
                (network, sparsity, optimizer)]

        def all_losses(prediction, stages, several):
            """By seed; NaN where a run ended with an error."""
            keys = {seed: (network, optimizer, sparsity, prediction, stages, several, seed) for seed in SEEDS}
            return {seed: math.nan if losses[key] is None else losses[key]
                    for seed, key in keys.items() if key in losses}

        synchronous = all_losses("synchronous", 1, 1)
        base = list(synchronous.values())
        spread = statistics.stdev(base) if len(base) > 1 else 0
        print(f"\n**{network}, {'90 % sparse' if sparsity else 'dense'}, {optimizer}**: synchronous "
              f"{statistics.mean(base):.3f} ± {spread:.3f}\n")
        # 2bw always takes several micro-batches per update.
        columns = sorted({(run["stages"], run["micro_batches"]) for run in mine
                          if run["prediction"] not in ("synchronous", "2bw")})
        print("| weights | " + " | ".join(f"p = {stages}" + (f", {several} micro-batches" if several > 1 else "")
                                          for stages, several in columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        for prediction in PREDICTIONS:
            row = []
            for stages, several in columns:
                several = max(several, stages) if prediction == "2bw" and network != "nanogpt" else several
                found = all_losses(prediction, stages, several)
                row.append(runs.mean_and_spread([loss - synchronous[seed] for seed, loss in found.items()], 3, "+"))
            print(f"| `{prediction}` | " + " | ".join(row) + " |")


def picture(arguments):
    """Mean difference over the number of stages."""
    losses = collections.defaultdict(dict)
    for run in runs.lines(arguments.out):
        if (run["network"], run["sparsity"], run["optimizer"]) == ("gpt", 0, "adamw"):
            losses[run["prediction"], run["stages"]][run["seed"]] = run["loss"]
    base = losses["synchronous", 1]
    series = {}
    for prediction in PREDICTIONS:
        points = [(stages, statistics.mean(loss - base[seed] for seed, loss in losses[prediction, stages].items()))
                  for stages in STAGES]
        series[prediction] = (points, prediction == "none")
    pathlib.Path(arguments.svg).write_text(plot.chart(
        "Loss of asynchronous stages: GPT of 8 layers, AdamW, 800 steps", "stages p",
        "validation loss minus that of synchronous training", series, STAGES, True, 0))


def csv(arguments):
    print(",".join(KEYS + ["loss"]))
    for run in runs.lines(arguments.out):
        loss = "failed" if run["loss"] is None else f"{run['loss']:.5f}"
        print(",".join([str(run[key]) for key in KEYS] + [loss]))


if __name__ == "__main__":
    runs.main(__doc__, run=(run_all, {
        "out": {}, "text": {}, "images": {}, "--jobs": {"type": int, "default": 2}, "--longer": {"action": "store_true"}}),
        table=(table, {"out": {}}), picture=(picture, {"out": {}, "svg": {}}), csv=(csv, {"out": {}}))
