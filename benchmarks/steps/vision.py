#!/usr/bin/env python3
"""Images/s of training steps of VGG-16, ResNet-18 and WideResNet-28-2 at 32 x 32, beside PyTorch.

    vision.py [--rounds 3] [--networks vgg16,resnet18,wrn28-2] [--dtypes fp32,bf16] [--batch 64] [--steps 8]
              [--threads 2] [--torch PYTHON] [--ways dense,0.9,0.95] [--variants eager,compiled]
              [--links 1gbit,100mbit [--hooks none,fp16,powersgd]]

A way is "dense" or a sparsity (random masks from the first step, storage auto), then settings: "0.9
sparse.storage=dense", "dense parallel.codec=maxmin:4". Each round runs, one after another: Espalier in each way, and
with --torch, a python that has PyTorch (benchmarks/peers/setup.sh makes one), the variants of
benchmarks/peers/vision.py. All train with momentum SGD on random images of CIFAR's format. --links: two replicas, half
of the batch each, on two hosts of one core that are namespaces joined by a link of each rate (scripts/two_hosts.sh,
needs root); PyTorch is DDP with each of the hooks. Prints a line of JSON per measurement, then for each network and
type a table: medians over the rounds, and the ratio to PyTorch's fastest variant of the round.
Needs build/src/cli/espalier.
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NETWORKS = {
    "vgg16": ["2 x conv 64 3 norm", "max 2", "2 x conv 128 3 norm", "max 2", "3 x conv 256 3 norm", "max 2",
              "3 x conv 512 3 norm", "max 2", "3 x conv 512 3 norm", "max 2"],
    "resnet18": ["conv 64 3 norm", "2 x basic 64", "basic 128 stride 2", "basic 128", "basic 256 stride 2",
                 "basic 256", "basic 512 stride 2", "basic 512", "mean"],
    "wrn28-2": ["conv 16 3 plain", "4 x wide 32", "wide 64 stride 2", "3 x wide 64", "wide 128 stride 2",
                "3 x wide 128", "norm", "mean"],
}


def write_data(folder):
    for name, count in (("train.bin", 5000), ("test.bin", 500)):
        with open(os.path.join(folder, name), "wb") as file:
            for i in range(count):
                file.write(bytes([i % 10]) + os.urandom(3072))


def over(rate, kind):
    """Command that starts a program on two hosts joined by a link of this rate; none for one host."""
    return [os.path.join(ROOT, "scripts/two_hosts.sh"), "--rate", rate, kind] if rate else []


def espalier(folder, arguments, network, dtype, rate, way):
    out = os.path.join(folder, "run")
    sparsity, *chosen = way.split()
    ranks = 2 if rate else 1
    settings = {
        "model.kind": "vision", "model.image": [32, 32, 3], "model.network": NETWORKS[network],
        "data.kind": "images", "data.format": "cifar10", "data.train": [folder + "/train.bin"],
        "data.validation": [folder + "/test.bin"], "train.dtype": dtype, "train.steps": arguments.steps + 2,
        "train.global_batch": arguments.batch, "train.micro_batch": arguments.batch // ranks, "train.eval_every": 0,
        "train.eval_batches": 1, "train.checkpoint_every": -1, "optimizer.kind": "sgd", "optimizer.lr": 0.01,
        "optimizer.weight_decay": 5e-4, "optimizer.warmup_steps": 0, "run.threads": arguments.threads, "run.out": out,
    }
    if sparsity != "dense":
        settings |= {"pruning.method": "random", "pruning.at_step": 0, "pruning.sparsity": float(sparsity)}
    for one in chosen:
        key, value = one.split("=", 1)
        settings[key] = int(value) if value.isdigit() else value
    config = os.path.join(folder, "config.toml")
    with open(config, "w") as file:
        for key, value in settings.items():
            file.write(f"{key} = {json.dumps(value)}\n")
    program = os.environ.get("ESPALIER", os.path.join(ROOT, "build/src/cli/espalier"))
    subprocess.run(["rm", "-rf", out], check=True)
    subprocess.run([*over(rate, "mpirun"), program, "train", config], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "metrics.jsonl")) as file:
        rows = [json.loads(line) for line in file][2:]
    with open(os.path.join(out, "summary.json")) as file:
        summary = json.load(file)
    return {"network": network, "program": "espalier", "dtype": dtype, "link": rate,
            "variant": " ".join(["dense" if sparsity == "dense" else f"{float(sparsity):.0%} sparse", *chosen]),
            "threads": arguments.threads,
            "images_per_s": round(statistics.median(row["images_per_s"] for row in rows), 1),
            "sent": round(statistics.median(row["comm_bytes_sent"] for row in rows)),
            "bytes_per_parameter": summary.get("memory", {}).get("model_state_bytes_per_parameter")}


def torch(arguments, network, dtype, rate):
    script = os.path.join(ROOT, "benchmarks/peers/vision.py")
    options = [network, "--dtype", dtype, "--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    if rate:
        commands = [[*over(rate, "torchrun"), script, *options, "--batch", str(arguments.batch // 2), "--hook", hook]
                    for hook in arguments.hooks.split(",")]
    else:
        commands = [[arguments.torch, script, *options, "--batch", str(arguments.batch), "--variants",
                     arguments.variants]]
    found = []
    for command in commands:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PEERS_PYTHON": arguments.torch})
        found += [{**json.loads(line), "link": rate} for line in done.stdout.splitlines() if line.startswith("{")]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", default="vgg16,resnet18,wrn28-2")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--ways", default="dense,0.9,0.95")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch", default="")
    parser.add_argument("--variants", default="eager,compiled")
    parser.add_argument("--links", default="")
    parser.add_argument("--hooks", default="none,fp16,powersgd")
    arguments = parser.parse_args()
    found = {}
    places = itertools.product(range(arguments.rounds), arguments.networks.split(","), arguments.dtypes.split(","),
                               arguments.links.split(","))
    with tempfile.TemporaryDirectory() as folder:
        write_data(folder)
        for number, network, dtype, rate in places:
            lines = [espalier(folder, arguments, network, dtype, rate, way) for way in arguments.ways.split(",")]
            best = 0
            if arguments.torch:
                theirs = torch(arguments, network, dtype, rate)
                best = max(line["images_per_s"] for line in theirs)
                lines += theirs
            for line in lines:
                line |= {"round": number}
                if best:
                    line["of_torch"] = round(line["images_per_s"] / best, 3)
                print(json.dumps(line), flush=True)
                key = (network, dtype, rate, line["program"].split()[0] + " " + line["variant"])
                found.setdefault(key, []).append(line)
    for (network, dtype, link, who), lines in found.items():
        rate = statistics.median(line["images_per_s"] for line in lines)
        ratio = statistics.median(line.get("of_torch", 0) for line in lines)
        print(f"{network:10} {dtype:5} {link:8} {who:40} {rate:8.1f} images/s  {ratio:5.2f} of PyTorch's fastest",
              file=sys.stderr)


if __name__ == "__main__":
    main()
