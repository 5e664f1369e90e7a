#!/usr/bin/python3
"""Measures what sums of gradients lose: PROGRAM OUT.jsonl [--most 4096] [--networks gpt mlp] [--dtypes fp32 bf16 fp16]

Two networks (a GPT of 64 and an MLP), random masks at 90 %, in bf16, fp16 and fp32:
- norm: gradient norm of the first step, over 1 … 4,096 micro-batches of one sample, by type of the sum;
- loss: mean of the last 10 of 60 training losses over 1 … 8 replicas, and the largest difference of a step from one replica.

A line of OUT is a run. Needs mpirun (scripts/mpirun.sh).
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GPT = {"model": {"layers": 2, "heads": 2, "width": 64, "context": 16}, "data": {"train": ["text.txt"]}}
MLP = {"model": {"kind": "mlp", "hidden": [64, 64, 64]}, "data": {"kind": "images", "train": ["x", "y"]}}
TRAIN = {"global_batch": 1, "micro_batch": 1, "eval_every": 0, "eval_batches": 1, "checkpoint_every": -1}


def write_inputs(folder):
    draw = random.Random(1)
    words = [str(draw.randrange(2000)) for _ in range(40000)]
    (folder / "text.txt").write_text(" ".join(words))
    count, edge = 8192, 12
    bases = [[draw.random() for _ in range(edge * edge)] for _ in range(10)]
    labels = [draw.randrange(10) for _ in range(count)]
    pixels = bytearray()
    for label in labels:
        pixels += bytes(int(255 * min(1, max(0, p + draw.gauss(0, 0.5)))) for p in bases[label])
    (folder / "x").write_bytes(struct.pack(">IIII", 0x803, count, edge, edge) + bytes(pixels))
    (folder / "y").write_bytes(struct.pack(">II", 0x801, count) + bytes(labels))


def run(program, folder, network, train, ranks=1, lr=1e-3):
    config = {**network, "train": {**TRAIN, **train}, "optimizer": {"clip": 0.0, "lr": lr, "min_lr": lr, "warmup_steps": 1},
              "pruning": {"method": "random", "sparsity": 0.9}, "sparse": {"storage": "expanded"}, "run": {"threads": 1, "out": "run"}}
    text = "".join(f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()) for name, keys in config.items())
    (folder / "c.toml").write_text(text)
    launcher = [str(ROOT / "scripts/mpirun.sh"), str(ranks)] if ranks > 1 else []
    subprocess.run([*launcher, program, "train", "c.toml", "--resume", "none"], cwd=folder, check=True, capture_output=True)
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("out")
    parser.add_argument("--most", type=int, default=4096)
    parser.add_argument("--networks", nargs="+", default=["gpt", "mlp"])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16", "fp16"])
    arguments = parser.parse_args()
    program = str(pathlib.Path(arguments.program).resolve())
    with tempfile.TemporaryDirectory() as name, open(arguments.out, "w", encoding="utf-8") as out:
        folder = pathlib.Path(name)
        write_inputs(folder)

        def note(**line):
            out.write(json.dumps(line) + "\n")
            out.flush()

        for label in arguments.networks:
            network = {"gpt": GPT, "mlp": MLP}[label]
            for dtype in arguments.dtypes:
                count = 1
                while count <= arguments.most:
                    for kind in ("auto",) if dtype == "fp32" else ("auto", dtype):
                        train = {"steps": 1, "global_batch": count, "dtype": dtype, "gradient_dtype": kind}
                        step = run(program, folder, network, train)[0]
                        note(network=label, dtype=dtype, gradient_dtype=kind, micro_batches=count, replicas=1,
                             norm=step["grad_norm"], loss=step["loss"])
                    count *= 4
                for kind in ("auto",) if dtype == "fp32" else ("auto", dtype):
                    serial = None
                    for replicas in (1, 2, 4, 8):
                        train = {"steps": 60, "global_batch": 64, "micro_batch": 8, "dtype": dtype, "gradient_dtype": kind}
                        losses = [step["loss"] for step in run(program, folder, network, train, replicas, lr=4e-3)]
                        serial = serial or losses
                        note(network=label, dtype=dtype, gradient_dtype=kind, micro_batches=8 // replicas, replicas=replicas,
                             last=sum(losses[-10:]) / 10, farthest=max(abs(a - b) for a, b in zip(losses, serial)))


main()
