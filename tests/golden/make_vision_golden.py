#!/usr/bin/env python3
"""Writes vision_small.h5: loss, gradients and ten SGD steps of a small network of residual blocks, by PyTorch.

All values are computed in float64 from parameters that are exact in float32, and stored as float32, as in
make_gpt_golden.py.

  /images             float32 [B, height * width * channels], channels last
  /labels             int32 [B]
  /params/NAME        float32, the parameters at the start, with moving averages; Espalier's names and layouts
  /gradients/NAME     float32, of the mean cross-entropy over the batch
  /averages/NAME      float32, moving averages after the first training forward
  /loss               float32 scalar, at the start
  /losses             float32 [10], before each of ten updates on the same batch; losses[0] == loss
  /evaluated          float32 scalar, the loss with moving averages after the ten updates

The network (docs/vision.md) is LAYERS below, with a classifier. A convolution's weight is [out, k k in]: position in
the window, then channel; with groups one weight for each. Batch norm: eps 1e-5, momentum 0.1. The optimizer is SGD
with Nesterov momentum 0.9, rate 0.05, weight decay 0.01 of matrices only.

    python make_vision_golden.py [DIRECTORY]
"""
import pathlib
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F

BATCH, HEIGHT, WIDTH, CHANNELS, CLASSES, STEPS = 6, 12, 10, 3, 5, 10
LAYERS = ["conv 8 3 norm", "basic 8", "basic 12 stride 2", "bottleneck 16 groups 2", "wide 16", "wide 12 stride 2",
          "norm", "max 2 stride 1", "conv 6 2 padding 1", "linear 10"]


class Parameters:
    """Makes parameters at their first use, far from a fresh network on purpose."""

    def __init__(self):
        self.random = np.random.Generator(np.random.PCG64(20261126))
        self.start, self.values, self.averages = {}, {}, {}

    def _new(self, name, values, average=False):
        self.start[name] = values.astype(np.float32)
        tensor = torch.tensor(self.start[name].astype(np.float64), requires_grad=not average)
        (self.averages if average else self.values)[name] = tensor

    def __call__(self, name, *shape):
        if name not in self.values:
            noise = self.random.standard_normal(shape)
            if len(shape) == 2:
                noise /= np.sqrt(shape[1] / 2)
            self._new(name, 1 + 0.2 * noise if "norm" in name and name.endswith("weight") else noise
                      if len(shape) == 2 else 0.1 * noise)
        return self.values[name]

    def average(self, name, shape, variance):
        if name not in self.averages:
            noise = self.random.standard_normal(shape)
            self._new(name, np.exp(0.3 * noise) if variance else 0.3 * noise, average=True)
        return self.averages[name]


def convolution(p, name, x, out, extent, stride=1, padding=0, groups=1, bias=False):
    """x [B, C, H, W]."""
    parts = []
    for group, part in enumerate(x.chunk(groups, dim=1)):
        at = name if groups == 1 else f"{name}.{group}"
        inputs = part.shape[1]
        weight = p(at + ".weight", out // groups, extent * extent * inputs)
        weight = weight.view(out // groups, extent, extent, inputs).permute(0, 3, 1, 2)
        parts.append(F.conv2d(part, weight, p(at + ".bias", out // groups) if bias else None, stride, padding))
    return torch.cat(parts, dim=1)


def norm(p, name, x, training):
    channels = x.shape[1]
    mean = p.average(name + ".mean", channels, False)
    variance = p.average(name + ".variance", channels, True)
    return F.batch_norm(x, mean, variance, p(name + ".weight", channels), p(name + ".bias", channels), training, 0.1, 1e-5)


def unit(p, name, x, training, out, extent, stride=1, padding=0, groups=1):
    return norm(p, name + ".norm", convolution(p, name, x, out, extent, stride, padding, groups), training)


def option(words, name, default):
    return int(words[words.index(name) + 1]) if name in words else default


def layer(p, name, words, x, training):
    kind, stride = words[0], option(words, "stride", 1)
    groups = option(words, "groups", 1)
    if kind == "conv":
        out, extent = int(words[1]), int(words[2])
        padding = option(words, "padding", (extent - 1) // 2)
        if "norm" in words:
            return F.relu(unit(p, name, x, training, out, extent, stride, padding))
        return F.relu(convolution(p, name, x, out, extent, stride, padding, bias=True))
    if kind == "norm":
        return F.relu(norm(p, name, x, training))
    if kind == "max":
        return F.max_pool2d(x, int(words[1]), stride)
    if kind == "linear":
        x = x.permute(0, 2, 3, 1).flatten(1)
        out = int(words[1])
        return F.relu(x @ p(name + ".weight", out, x.shape[1]).T + p(name + ".bias", out))
    out = int(words[1])
    changes = stride != 1 or x.shape[1] != out
    if kind == "wide":
        y = F.relu(norm(p, name + ".norm1", x, training))
        z = convolution(p, name + ".conv1", y, out, 3, stride, 1)
        z = convolution(p, name + ".conv2", F.relu(norm(p, name + ".norm2", z, training)), out, 3, 1, 1)
        return z + (convolution(p, name + ".shortcut", y, out, 1, stride) if changes else x)
    if kind == "basic":
        y = F.relu(unit(p, name + ".1", x, training, out, 3, stride, 1))
        y = unit(p, name + ".2", y, training, out, 3, 1, 1)
    else:
        y = F.relu(unit(p, name + ".1", x, training, out // 4, 1))
        y = F.relu(unit(p, name + ".2", y, training, out // 4, 3, stride, 1, groups))
        y = unit(p, name + ".3", y, training, out, 1)
    return F.relu(y + (unit(p, name + ".shortcut", x, training, out, 1, stride) if changes else x))


def loss_of(p, images, labels, training):
    x = images.view(BATCH, HEIGHT, WIDTH, CHANNELS).permute(0, 3, 1, 2)
    for number, text in enumerate(LAYERS):
        words = text.split()
        x = layer(p, f"{number}.{words[0]}", words, x, training)
    logits = x @ p("classifier.weight", CLASSES, x.shape[1]).T + p("classifier.bias", CLASSES)
    return F.cross_entropy(logits, labels)


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    random = np.random.Generator(np.random.PCG64(1))
    images = random.random((BATCH, HEIGHT * WIDTH * CHANNELS)).astype(np.float32)
    labels = random.integers(0, CLASSES, BATCH)
    p = Parameters()
    x, y = torch.from_numpy(images.astype(np.float64)), torch.from_numpy(labels)
    loss_of(p, x, y, False)  # makes the parameters; does not change the averages
    optimizer = torch.optim.SGD(
        [{"params": [t for t in p.values.values() if t.dim() == 2], "weight_decay": 0.01},
         {"params": [t for t in p.values.values() if t.dim() == 1], "weight_decay": 0.0}],
        lr=0.05, momentum=0.9, nesterov=True)
    losses, gradients, averages = [], None, None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(p, x, y, True)
        loss.backward()
        if gradients is None:
            gradients = {name: t.grad.numpy().copy() for name, t in p.values.items()}
            averages = {name: t.numpy().copy() for name, t in p.averages.items()}
        losses.append(loss.item())
        optimizer.step()
    path = directory / "vision_small.h5"
    with h5py.File(path, "w", libver="earliest", track_order=False) as f:
        f["images"], f["labels"] = images, labels.astype(np.int32)
        f["loss"], f["losses"] = np.float32(losses[0]), np.float32(losses)
        f["evaluated"] = np.float32(loss_of(p, x, y, False).item())
        for group, values in ("params", p.start), ("gradients", gradients), ("averages", averages):
            for name, value in values.items():
                f.create_dataset(f"{group}/{name}", data=value.astype(np.float32))
    print(f"{path.name}: {path.stat().st_size} bytes, losses {losses[0]:.6f} … {losses[-1]:.6f}")


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    main()
