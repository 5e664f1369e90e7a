#!/usr/bin/env python3
"""Training steps of image networks in PyTorch: VGG-16, ResNet-18 and WideResNet-28-2 for 32 x 32 images.

    vision.py NETWORK [--dtype fp32|bf16] [--batch 64] [--steps 10] [--threads 2]
              [--variants eager,compiled,masked]
    torchrun vision.py NETWORK … --hook none|fp16|bf16|powersgd      (also: scripts/two_hosts.sh)

Each step: forward, loss, backward and an update of SGD with momentum and weight decay, on random data.
Prints a line of JSON for each variant: median images/s of the steps after two of warm-up. Variants: eager,
compiled (torch.compile), and masked: pruned to 90 % as torch.nn.utils.prune does it, a mask beside each
weight; each with contiguous and with channels-last memory. --hook: DDP over gloo with one of torch's
communication hooks, eager; images/s are those of all ranks, and --batch is that of a rank.
The networks have the layers of configs/imagenet and configs/resnet18-fashion.toml, with 3 channels.
"""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

import ddp

PLAIN_STEPS = 2  # before powersgd begins
WARM_UP = 3


class Basic(nn.Module):
    def __init__(self, inputs, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride != 1 or inputs != out
            else nn.Identity()
        )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Wide(nn.Module):
    def __init__(self, inputs, out, stride):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, out, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        changes = stride != 1 or inputs != out
        self.shortcut = nn.Conv2d(inputs, out, 1, stride, bias=False) if changes else None

    def forward(self, x):
        y = F.relu(self.norm1(x))
        shortcut = self.shortcut(y) if self.shortcut is not None else x
        return self.conv2(F.relu(self.norm2(self.conv1(y)), inplace=True)) + shortcut


def stacks(block, inputs, stages):
    layers = []
    for out, count, stride in stages:
        for i in range(count):
            layers.append(block(inputs, out, stride if i == 0 else 1))
            inputs = out
    return layers


def head(width):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]


def conv(inputs, out):
    return [nn.Conv2d(inputs, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


def network(name, channels=3, pools=(0, 0, 0, 0, 0)):
    """pools: paddings of VGG-16's maxima; None: no such layer."""
    if name == "vgg16":
        layers, inputs = [], channels
        for (out, count), padding in zip(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), pools):
            for _ in range(count):
                layers += conv(inputs, out)
                inputs = out
            if padding is not None:
                layers.append(nn.MaxPool2d(2, padding=padding))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
    if name == "resnet18":
        stages = ((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2))
        return nn.Sequential(*conv(channels, 64), *stacks(Basic, 64, stages), *head(512))
    if name == "wrn28-2":
        stages = ((32, 4, 1), (64, 4, 2), (128, 4, 2))
        first = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        last = [nn.BatchNorm2d(128), nn.ReLU(inplace=True), *head(128)]
        return nn.Sequential(first, *stacks(Wide, 16, stages), *last)
    raise SystemExit(f"unknown network {name}")


def measure(arguments, variant, channels_last):
    torch.manual_seed(1)
    ranks = dist.get_world_size() if arguments.hook else 1
    model = network(arguments.network)
    if variant == "masked":
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                prune.random_unstructured(module, "weight", amount=0.9)
    images = torch.randn(arguments.batch, 3, 32, 32)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (arguments.batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    parameters = sum(p.numel() for p in model.parameters())
    if arguments.hook:  # running statistics stay those of a rank, which is the faster choice
        model = nn.parallel.DistributedDataParallel(
            model, broadcast_buffers=False, bucket_cap_mb=ddp.bucket_megabytes(arguments.hook))
        ddp.register(model, arguments.hook, 1, PLAIN_STEPS)
    half = arguments.dtype == "bf16"

    def loss_of(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    step_loss = torch.compile(loss_of) if variant == "compiled" else loss_of
    times = []
    for _ in range(arguments.steps + WARM_UP):
        begin = time.perf_counter()
        loss = step_loss(images, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
    return {
        "network": arguments.network,
        "program": "torch " + torch.__version__,
        "dtype": arguments.dtype,
        "variant": (f"DDP, hook {arguments.hook}" if arguments.hook else variant)
                   + (" channels-last" if channels_last else ""),
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        "parameters": parameters,
        "images_per_s": round(ranks * arguments.batch / statistics.median(times[WARM_UP:]), 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["vgg16", "resnet18", "wrn28-2"])
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variants", default="eager,compiled")
    parser.add_argument("--hook", choices=ddp.HOOKS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.hook:
        dist.init_process_group("gloo")
        for channels_last in (False, True):
            line = measure(arguments, "eager", channels_last)
            if dist.get_rank() == 0:
                print(json.dumps(line), flush=True)
        dist.barrier()
        dist.destroy_process_group()
        return
    for variant in arguments.variants.split(","):
        for channels_last in (False, True):
            print(json.dumps(measure(arguments, variant, channels_last)), flush=True)


if __name__ == "__main__":
    main()
