#!/usr/bin/env python3
"""Loss after many tokens: dense, smaller dense and sparse networks after 20, 50 and 100 tokens a parameter of the dense one.

  benchmarks/quality/many_tokens.py run OUT.jsonl TEXT FOLDER [--cases REGEX] [--tokens 20 50 100] [--jobs 1]
  benchmarks/quality/many_tokens.py table OUT.jsonl         Markdown: losses by tokens a parameter
  benchmarks/quality/english_text.sh TEXT                   makes an English text of 112 MB

The dense network has 4 layers, 128 columns, a context of 128 bytes: 0.88 M parameters. Each case trains once at a constant
rate (FOLDER keeps that run). From 80 % of each number of steps a branch goes on, in which the rate falls linearly to a tenth
(the schedule wsd); sparse-then-dense branches from `random`, with full masks. Runs use one thread and continue where a call
was stopped. Standard library only.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import threading

import runs

PARAMETERS = 0.88e6  # dense: blocks 0.79 M, embeddings and head 0.08 M
TOKENS_A_STEP = 24 * 128
SETTINGS = {
    **runs.NANOGPT, "train.parametrization": "supar-lr:128", "model.context": 128, "data.kind": "bytes",
    "data.validation_fraction": 0.01, "train.global_batch": 24, "train.dtype": "fp32",
    "train.eval_every": 2000, "train.eval_batches": 100, "train.keep_checkpoints": 1, "optimizer.schedule": "wsd:0.2",
    "optimizer.lr": 4e-3, "optimizer.min_lr": 4e-4, "run.threads": 1, "run.trace": False}
RANDOM = {"pruning.method": "random", "pruning.scope": "layer", "pruning.sparsity": 0.9}


def moving(method):
    return {"pruning.method": method, "pruning.sparsity": 0.9, "pruning.every": 200}


CASES = {
    "dense": {},
    "dense-64-wide": {"model.width": 64},
    "dense-80-wide": {"model.width": 80},
    "dense-96-wide": {"model.width": 96},
    "random": RANDOM,
    "rigl": moving("rigl"),
    "set-block-16": moving("set-block:16"),
    "random-2x-width": {**RANDOM, "model.width": 256},
    "sparse-then-dense": RANDOM,
}
LOCK = threading.Lock()


def steps_of(tokens):
    """(steps of a branch, its first one)"""
    steps = round(tokens * PARAMETERS / TOKENS_A_STEP)
    return steps, round(0.8 * steps)


def train(out, text, settings, *options):
    settings = {**SETTINGS, **settings, "data.train": [str(text)]}
    out.mkdir(parents=True, exist_ok=True)
    (out / "empty.toml").write_text("")
    command = [runs.PROGRAM, "train", str(out / "empty.toml"), "--out", str(out), *map(str, options)]
    for key, value in settings.items():
        command += ["--set", f"{key}={runs.toml(value)}"]
    with (out / "log.txt").open("a") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})


def branch(case, tokens, text, folder, least, last):
    """Trains a case up to `tokens` a parameter, one of several numbers from `least` to `last`, and returns its line."""
    steps, first = steps_of(tokens)
    settings, name = dict(CASES[case]), "random" if case == "sparse-then-dense" else case
    if "pruning.every" in settings:  # masks move in the constant part of the shortest branch only
        settings["pruning.to_step"] = steps_of(least)[1]
    main, out = folder / name, folder / f"{case}-{tokens:g}"
    start = main / "checkpoints" / f"step-{first:06}.h5"
    if not start.exists():
        # The rate does not fall before the last step that a branch needs.
        train(main, text, {**settings, "train.steps": 2 * steps_of(last)[0], "train.keep_checkpoints": 9,
                           "train.checkpoint_every": 5000}, "--resume", "auto", "--steps", first)
    resume = "auto" if list(out.glob("checkpoints/step-*.h5")) else start
    if case == "sparse-then-dense":
        settings["pruning.dense_from_step"] = str(first + 1)
    train(out, text, {**settings, "train.steps": steps, "train.checkpoint_every": 2000}, "--resume", resume)
    rows = runs.lines(out / "metrics.jsonl")
    losses = [row["val_loss"] for row in rows if "val_loss" in row]
    return {"case": case, "tokens": tokens, "steps": steps, "val_loss": losses[-1]}


def run(a):
    known = {(line["case"], line["tokens"]) for line in runs.lines(a.out)}
    chosen = [case for case in CASES if re.fullmatch(a.cases, case)]

    def all_of(names):  # those that share a constant part, one after the other
        for tokens in sorted(a.tokens):  # the constant part only grows
            for case in names:
                if (case, tokens) not in known:
                    line = branch(case, tokens, a.text.resolve(), a.folder.resolve(), min(a.tokens), max(a.tokens))
                    with LOCK:
                        runs.write(a.out, [line])
                        print(line, flush=True)
    shared = [case for case in chosen if case in ("random", "sparse-then-dense")]
    groups = [[case] for case in chosen if case not in shared] + ([shared] if shared else [])
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(all_of, groups))


def table(a):
    found = {(line["case"], line["tokens"]): line["val_loss"] for line in runs.lines(a.out)}
    tokens = sorted({tokens for _, tokens in found})
    print("| case | " + " | ".join(f"{count:g} tokens a parameter" for count in tokens) + " |")
    print("|---" * (len(tokens) + 1) + "|")
    for case in CASES:
        if any((case, count) in found for count in tokens):
            cells = (f"{found[case, count]:.4f}" if (case, count) in found else "" for count in tokens)
            print(f"| {case} | " + " | ".join(cells) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = p.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("out", type=pathlib.Path)
    one.add_argument("text", type=pathlib.Path)
    one.add_argument("folder", type=pathlib.Path)
    one.add_argument("--cases", default=".*", metavar="REGEX")
    one.add_argument("--tokens", type=float, nargs="+", default=[20, 50, 100], help="a parameter of the dense network")
    one.add_argument("--jobs", type=int, default=1)
    one.set_defaults(call=run)
    two = commands.add_parser("table")
    two.add_argument("out", type=pathlib.Path)
    two.set_defaults(call=table)
    a = p.parse_args()
    a.call(a)


if __name__ == "__main__":
    main()
