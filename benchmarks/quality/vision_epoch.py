#!/usr/bin/env python3
"""Accuracy of ResNet-18 and VGG-16 with batch norm after equal epochs, beside PyTorch.

Networks: configs/resnet18-fashion.toml and configs/vgg16-fashion.toml. Both programs: one epoch of the first 4,000
images of Fashion-MNIST in batches of 32 (125 steps), the first 2,000 test images, SGD with Nesterov momentum 0.9,
learning rate 0.02 (VGG-16: 0.005) after 20 steps of warm-up, half a cosine to 0, weight decay 5e-4 on matrices, no
clipping, random windows after padding by 2 and mirroring, fp32, one thread. Seeds 1, 2, 3. Programs: espalier, pytorch with its default
initial values, and pytorch-he with our initial deviation, (2 / inputs)^1/2 before rectifiers.

  benchmarks/quality/vision_epoch.py run OUT.jsonl FASHION-MNIST-DIR --torch PYTHON
  benchmarks/quality/vision_epoch.py table OUT.jsonl       Markdown

FASHION-MNIST-DIR holds the uncompressed IDX files. Standard library only; PYTHON has PyTorch. `run` continues after
the last line of OUT.jsonl. Different by nature: random numbers, and so initial values, order and views of images.
"""
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import time
import tomllib

import runs

NETWORKS = {"resnet18": "resnet18-fashion.toml", "vgg16": "vgg16-fashion.toml"}
PROGRAMS = ["espalier", "pytorch", "pytorch-he"]
BATCH, WARMUP = 32, 20
RATES = {"resnet18": 0.02, "vgg16": 0.005}  # VGG-16 is unstable in so few steps at 0.02
FILES = {"train": "train", "val": "t10k"}


def cut(source, target, count):
    """The first `count` images and labels of the files of Fashion-MNIST, as IDX files in `target`."""
    for name, (images, labels) in count.items():
        prefix = pathlib.Path(source) / FILES[name]
        content = pathlib.Path(f"{prefix}-images-idx3-ubyte").read_bytes()
        _, _, height, width = struct.unpack(">4I", content[:16])
        pathlib.Path(target, f"{name}-images").write_bytes(
            content[:4] + struct.pack(">3I", images, height, width) + content[16:16 + images * height * width])
        content = pathlib.Path(f"{prefix}-labels-idx1-ubyte").read_bytes()
        pathlib.Path(target, f"{name}-labels").write_bytes(
            content[:4] + struct.pack(">I", labels) + content[8:8 + labels])


def subset(source, target, train, validation):
    cut(source, target, {"train": (train, train), "val": (validation, validation)})


def files_of(directory):
    return {"data.train": [f"{directory}/train-images", f"{directory}/train-labels"],
            "data.validation": [f"{directory}/val-images", f"{directory}/val-labels"]}


def ours(run, images, arguments):
    network = tomllib.loads((runs.ROOT / "configs" / NETWORKS[run["network"]]).read_text())["model"]
    settings = {
        **runs.QUIET, **files_of(images), "model.kind": "vision", "model.image": network["image"],
        "model.network": network["network"], "data.kind": "images", "data.mean": [0.2860],
        "data.deviation": [0.3530], "data.crop": 2, "data.flip": True, "data.order": "epochs",
        "train.steps": arguments.epochs * arguments.images // BATCH, "train.global_batch": BATCH,
        "train.micro_batch": BATCH, "train.eval_every": 0, "train.eval_batches": 0,
        "train.parametrization": "standard", "train.seed": run["seed"],
        "optimizer.kind": "sgd", "optimizer.nesterov": True, "optimizer.lr": RATES[run["network"]],
        "optimizer.min_lr": 0, "optimizer.warmup_steps": WARMUP, "optimizer.weight_decay": 5e-4, "optimizer.clip": 0.0,
    }
    with runs.trained([arguments.program], settings) as directory:
        if not directory:
            return {"top1": None, "loss": None}
        summary = json.loads((directory / "summary.json").read_text())
        rows = runs.lines(directory / "metrics.jsonl")
        return {"top1": summary["final_val_top1"], "loss": summary["final_val_loss"], "steps": len(rows),
                "train_loss": sum(row["loss"] for row in rows[-20:]) / 20,
                "seconds": round(sum(row["step_ms"] for row in rows) / 1e3, 1)}


def pytorch(run, images, arguments):
    command = [arguments.torch, str(runs.ROOT / "benchmarks/peers/vision_epoch.py"), run["network"], images,
               "--seed", str(run["seed"]), "--epochs", str(arguments.epochs), "--batch", str(BATCH),
               "--lr", str(RATES[run["network"]]),
               "--warmup", str(WARMUP)]
    command += ["--initial", "he" if run["program"] == "pytorch-he" else "default"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def train(run, images, arguments):
    begin = time.perf_counter()
    result = (ours if run["program"] == "espalier" else pytorch)(run, images, arguments)
    return {**run, **result, "wall_s": round(time.perf_counter() - begin, 1)}


def run_all(arguments):
    os.environ["OMP_NUM_THREADS"] = "1"
    wanted = ({"network": network, "program": program, "seed": seed}
              for programs in [PROGRAMS[:2], PROGRAMS[2:]] for network in reversed(NETWORKS) for seed in runs.SEEDS
              for program in programs)
    with tempfile.TemporaryDirectory() as images:
        subset(arguments.images_dir, images, arguments.images, 2000)
        runs.write(arguments.out, (train(run, images, arguments) for run in runs.left(arguments.out, wanted)))


def table(arguments):
    done = runs.lines(arguments.out)
    print("| network | program | top-1, % | validation loss | training loss, last 20 steps |")
    print("|---|---|---|---|---|")
    for network in NETWORKS:
        for program in PROGRAMS:
            group = [run for run in done if (run["network"], run["program"]) == (network, program)]
            print(f"| {network} | {program} "
                  f"| {runs.mean_and_spread([100 * run['top1'] for run in group], 2)} "
                  f"| {runs.mean_and_spread([run['loss'] for run in group], 4)} "
                  f"| {runs.mean_and_spread([run['train_loss'] for run in group], 4)} |")


if __name__ == "__main__":
    runs.main(__doc__, run=(run_all, {
        "out": {}, "images_dir": {}, "--torch": {"required": True}, "--program": {"default": runs.PROGRAM},
        "--images": {"type": int, "default": 4000}, "--epochs": {"type": int, "default": 1}}),
        table=(table, {"out": {}}))
