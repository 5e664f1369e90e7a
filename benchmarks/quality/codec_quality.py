#!/usr/bin/env python3
"""The loss that compressed gradients and activations cost.

nanoGPT's CPU setting (4 layers, 128 wide, context 64, 12 sequences, 2,000 steps, characters of TEXT) on 2 ranks:
dense, and pruned to 90 % by magnitude after a quarter of the steps; every codec with and without error feedback; the
validation loss at the end minus that of codec fp32 with the same seed, over seeds 1, 2, 3. `activations`: 2 stages of
a pipeline, whose activations and their gradients travel in the codec.

  benchmarks/quality/codec_quality.py run OUT.jsonl TEXT [--program P] [--steps 2000]   continues after the last line
  benchmarks/quality/codec_quality.py table OUT.jsonl                                   Markdown

Standard library only.
"""
import itertools
import json
import pathlib
import statistics

import runs
from runs import SEEDS

CODECS = ["bf16", "fp16", "fp8-e5m2", "fp8-e4m3", "dynamic8", "dynamic8-bnb", "static8", "mantissa8", "linear8",
          "maxmin:8", "maxmin:4:512", "maxmin:4:128", "maxmin:3:512", "maxmin:3:128", "adaptive", "maxmin:2:512", "table:4",
          "table:1", "sign", "topk:0.1", "topk:0.01"]
WITHOUT_FEEDBACK = ["maxmin:3:512", "maxmin:3:128", "adaptive"]  # for comparison with adaptive
ACTIVATIONS = ["bf16", "dynamic8", "maxmin:8", "fp8-e4m3"]
KEYS = ["where", "sparsity", "codec", "feedback", "seed"]
SETTING = {**runs.NANOGPT, **runs.QUIET, "train.eval_every": 0, "train.eval_batches": 100}

# Codecs that users choose between run first; the others complete the table.
FIRST = ["maxmin:4:512", "dynamic8", "maxmin:4:128", "maxmin:8", "table:4", "fp8-e4m3", "sign", "topk:0.1", "maxmin:2:512"]


def all_runs():
    """First one seed of all, then the other seeds, so that a table is available early."""
    for seeds, codecs, activations in [(SEEDS[:1], CODECS, ACTIVATIONS), (SEEDS[1:], FIRST, ACTIVATIONS),
                                       (SEEDS[1:], [codec for codec in CODECS if codec not in FIRST], [])]:
        for seed, sparsity in itertools.product(seeds, [0.9, 0]):
            yield dict(zip(KEYS, ["gradients", sparsity, "fp32", False, seed]))
            for codec, feedback in itertools.product(codecs, [False, True]):
                if feedback and codec in WITHOUT_FEEDBACK:
                    continue
                yield dict(zip(KEYS, ["gradients", sparsity, codec, feedback, seed]))
            for codec in activations:
                yield dict(zip(KEYS, ["activations", sparsity, codec, False, seed]))


def train(run, arguments):
    steps = arguments.steps
    settings = {**SETTING, "train.steps": steps, "train.seed": run["seed"], "data.train": [arguments.text]}
    if run["where"] == "activations":
        settings |= {"parallel.activation_codec": run["codec"], "parallel.pipeline": 2, "train.micro_batch": 6}
    else:
        settings |= {"parallel.codec": run["codec"], "parallel.error_feedback": run["feedback"]}
    if run["sparsity"]:
        settings |= {"pruning.method": "magnitude", "pruning.sparsity": run["sparsity"], "pruning.at_step": steps // 4,
                     "sparse.storage": "dense"}
    with runs.trained([str(runs.ROOT / "scripts/mpirun.sh"), "2", arguments.program], settings) as directory:
        if not directory:
            return {**run, "loss": None}
        summary = json.loads((directory / "summary.json").read_text())
        return {**run, "loss": summary["final_val_loss"],
                "bytes": runs.lines(directory / "metrics.jsonl")[-1]["comm_bytes_sent"]}


def run_all(arguments):
    arguments.text = str(pathlib.Path(arguments.text).resolve())
    runs.write(arguments.out, (train(run, arguments) for run in runs.left(arguments.out, all_runs())))


def table(arguments):
    done = runs.lines(arguments.out)
    found = {tuple(run[key] for key in KEYS): run for run in done}

    def difference(where, sparsity, codec, feedback):
        pairs = [(found.get((where, sparsity, codec, feedback, seed)), found.get(("gradients", sparsity, "fp32", False, seed)))
                 for seed in SEEDS]
        return runs.mean_and_spread([one["loss"] and one["loss"] - plain["loss"] for one, plain in pairs if one and plain],
                                    4, "+")

    for sparsity in [0, 0.9]:
        plain = [run["loss"] for run in done if run["codec"] == "fp32" and run["sparsity"] == sparsity]
        if plain:
            spread = statistics.stdev(plain) if len(plain) > 1 else 0
            print(f"fp32, sparsity {sparsity}: {statistics.mean(plain):.4f}, between seeds ± {spread:.4f} ({len(plain)})")
    print("\n| codec | dense | with feedback | 90 % | with feedback | bytes a step, 90 % |\n|---|---|---|---|---|---|")
    for codec in CODECS:
        sizes = [run["bytes"] for run in done if run["where"] == "gradients" and run["codec"] == codec
                 and run["sparsity"] and run.get("bytes")]
        cells = [difference("gradients", sparsity, codec, feedback) for sparsity in [0, 0.9] for feedback in [False, True]]
        print(f"| `{codec}` | {' | '.join(cells)} | {sizes[0] if sizes else ''} |")
    print("\n| activations | dense | 90 % |\n|---|---|---|")
    for codec in ACTIVATIONS:
        print(f"| `{codec}` | {' | '.join(difference('activations', sparsity, codec, False) for sparsity in [0, 0.9])} |")


if __name__ == "__main__":
    runs.main(__doc__, run=(run_all, {
        "out": {}, "text": {}, "--program": {"default": runs.PROGRAM}, "--steps": {"type": int, "default": 2000}}),
        table=(table, {"out": {}}))
