#!/usr/bin/env python3
"""Trains VGG-16 or ResNet-18 on images in PyTorch, as benchmarks/quality/vision_epoch.py does with espalier.

    vision_epoch.py NETWORK IMAGES-DIR --seed S [--epochs 1] [--batch 32] [--lr 0.02] [--warmup 20]

IMAGES-DIR holds train-images, train-labels, val-images and val-labels (IDX). Initial values are PyTorch's defaults;
--initial he: normal, of deviation (2 / inputs)^1/2, biases 0.
SGD with Nesterov momentum 0.9, weight decay 5e-4 on matrices, half a cosine to 0 after warm-up; random windows
after padding by 2 and mirroring, before normalisation; fp32, one thread. Prints one line of JSON.
"""
import argparse
import json
import math
import time

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import vision

MEAN, DEVIATION, CROP = 0.2860, 0.3530, 2
POOLS = (0, 0, 0, 1, 0)  # paddings of configs/vgg16-fashion.toml


def idx(path):
    """The array of an IDX file of bytes."""
    content = numpy.fromfile(path, dtype=numpy.uint8)
    shape = content[4:4 + 4 * content[3]].view(">u4").astype(int)
    return torch.from_numpy(content[4 + 4 * content[3]:].reshape(*shape).copy())


def normal(images):
    return ((images.float() / 255 - MEAN) / DEVIATION).unsqueeze(1)


def augmented(images):
    """A random window of each image, mirrored with probability 1/2."""
    extent = images.shape[1]
    padded = F.pad(images, (CROP,) * 4)
    views = []
    for image in padded:
        y, x = torch.randint(0, 2 * CROP + 1, (2,)).tolist()
        view = image[y:y + extent, x:x + extent]
        views.append(view.flip(1) if torch.rand(()) < 0.5 else view)
    return torch.stack(views)


def rate(step, steps, arguments):
    if step < arguments.warmup:
        return arguments.lr * (step + 1) / arguments.warmup
    t = (step - arguments.warmup) / (steps - arguments.warmup)
    return arguments.lr * (1 + math.cos(math.pi * t)) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["vgg16", "resnet18"])
    parser.add_argument("images")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--initial", default="default", choices=["default", "he"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    data = {name: idx(f"{arguments.images}/{name}")
            for name in ("train-images", "train-labels", "val-images", "val-labels")}
    model = vision.network(arguments.network, 1, POOLS).to(memory_format=torch.channels_last)
    if arguments.initial == "he":
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.SGD([{"params": matrices, "weight_decay": 5e-4}, {"params": rest, "weight_decay": 0}],
                                lr=arguments.lr, momentum=0.9, nesterov=True)
    images, labels = data["train-images"], data["train-labels"].long()
    steps, step = arguments.epochs * (len(images) // arguments.batch), 0
    begin, losses = time.perf_counter(), []
    for _ in range(arguments.epochs):
        order = torch.randperm(len(images))
        for rows in order[:len(order) // arguments.batch * arguments.batch].split(arguments.batch):
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps, arguments)
            inputs = normal(augmented(images[rows])).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(inputs), labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
    seconds = time.perf_counter() - begin
    model.eval()
    total, right = 0.0, 0
    with torch.no_grad():
        for rows in torch.arange(len(data["val-images"])).split(arguments.batch):
            logits = model(normal(data["val-images"][rows]).contiguous(memory_format=torch.channels_last))
            targets = data["val-labels"][rows].long()
            total += F.cross_entropy(logits, targets, reduction="sum").item()
            right += (logits.argmax(1) == targets).sum().item()
    count = len(data["val-images"])
    print(json.dumps({"top1": right / count, "loss": total / count, "steps": steps,
                      "train_loss": sum(losses[-20:]) / len(losses[-20:]),
                      "parameters": sum(p.numel() for p in model.parameters()), "seconds": round(seconds, 1),
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
