"""Shared by the rivals of compare.sh: the work order that they read, and the record that they write.

A rival is a program: RIVAL --work WORK.json --out RESULT.json [options], started once a rank, by torchrun or with its
environment. WORK.json names the model, the initial weights (dense arrays of `espalier export`), the tokens, the first
token of every training sequence of every step, and the learning rate of every step, so that all systems compute the
same numbers up to rounding (docs/comparison.md lists its keys). Rank 0 writes RESULT.json.

The time of a step covers reading the batch, forward, backward, communication and update; evaluations and the measurement
of memory do not count.
"""
import argparse
import contextlib
import gc
import json
import os
import resource
import sys
import time

import h5py
import numpy as np
import torch
import torch.distributed as dist

import ddp
import gpt


def parser(description):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True, metavar="JSON")
    p.add_argument("--out", required=True, metavar="JSON")
    return p


def torch_name(name):
    """Name in gpt.GPT of a parameter of Espalier."""
    if name.startswith("embedding."):
        return name.removeprefix("embedding.") + ".weight"
    return name.replace(".attention.", ".").replace(".mlp.", ".")


class Work:
    """The work order, and a rank's part of it. stages: ranks of one replica."""

    def __init__(self, path, stages=1):
        with open(path) as file:
            self.order = json.load(file)
        self.__dict__.update(self.order)
        self.rank, self.ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        torch.set_num_threads(self.threads)
        if self.device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        self.backend = "nccl" if self.device == "cuda" else "gloo"
        self.replicas = self.ranks // stages
        if self.ranks % stages or self.global_batch % (self.replicas * self.micro_batch):
            raise SystemExit(f"a batch of {self.global_batch} is not made of micro-batches of {self.micro_batch} in "
                             f"{self.ranks} ranks, {stages} a replica")
        self.starts = np.fromfile(self.windows, dtype="<i8").reshape(self.steps, self.global_batch)
        self.tokens = {split: np.memmap(self.order[split]["file"], dtype="<" + self.order[split]["type"], mode="r")
                       [self.order[split]["begin"]:self.order[split]["end"]] for split in ("training", "validation")}

    def _rows(self, split, starts):
        tokens = self.tokens[split]
        rows = np.stack([tokens[s:s + self.context + 1] for s in starts]).astype(np.int64)
        rows = torch.from_numpy(rows).to(self.device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def batch(self, step, rank, ranks):
        """Inputs and targets of one of `ranks` equal parts of the global batch, as micro-batches."""
        part = self.global_batch // ranks
        starts = self.starts[step][rank * part:(rank + 1) * part]
        for first in range(0, part, self.micro_batch):
            yield self._rows("training", starts[first:first + self.micro_batch])

    def validation_batch(self, number, rank, ranks):
        """The same for validation batch `number`, whose windows are adjacent."""
        part = self.global_batch // ranks
        first = number * self.global_batch + rank * part
        for i in range(first, first + part, self.micro_batch):
            yield self._rows("validation", [j * self.context for j in range(i, i + self.micro_batch)])

    def network(self, masked=False):
        """The GPT with the initial weights. Returns it and, when masked, its masks by the names of parameters."""
        net = gpt.GPT(self.vocabulary, self.layers, self.heads, self.width, self.context, self.tie)
        own, masks = dict(net.named_parameters()), {}
        with h5py.File(self.masked_weights if masked else self.weights) as file, torch.no_grad():
            given = {torch_name(name): torch.from_numpy(file[name][:]) for name in file}
            if set(given) != set(own):
                raise SystemExit(f"initial weights and network differ in {sorted(set(given) ^ set(own))[:4]}")
            for name, value in given.items():
                own[name].copy_(value)
                if masked and own[name].dim() == 2 and name.startswith("blocks."):
                    masks[name] = value != 0
        return net.to(self.device), masks

    def optimizer(self, net):
        return gpt.make_optimizer(net, self.learning_rates[0], self.beta1, self.beta2, self.weight_decay)

    def autocast(self):
        if self.dtype == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)


def state_bytes():
    """Bytes of all floating-point and mask tensors, each storage once: weights, gradients, master copies, moments, buffers
    of hooks and engines. Call it between backward and update, when activations are freed."""
    storages, seen = {}, []
    for found in gc.get_objects():
        if type(found) in (torch.Tensor, torch.nn.Parameter):  # others are stand-ins of torch.compile
            seen.append(found)
            if isinstance(found, torch.nn.Parameter) and found.grad is not None:
                seen.append(found.grad)
    for tensor in seen:
        if tensor.is_floating_point() or tensor.dtype in (torch.bool, torch.uint8):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Record:
    """Measurements of a rank. In each step call `with record.step(i):` around the work, `record.look()` between backward and
    update, and `record.loss(…)` with the mean over the rank's part."""

    def __init__(self, work):
        self.work = work
        self.interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        self.counted = work.ranks > 1 and work.backend == "gloo"
        self.seconds, self.losses, self.evaluations, self.sent = [], [], [], []
        self.state, self.looking = None, 0.0
        # Steps with moments, after PowerSGD has begun (rival_ddp.py).
        self.looks = {min(work.steps // 10 + i, work.steps - 1) for i in (2, 3, 4)}

    @contextlib.contextmanager
    def step(self, number):
        self.number, self.looking = number, 0.0
        before = ddp.sent_bytes(self.interface) if self.counted else 0
        start = time.perf_counter()
        yield
        if self.work.device == "cuda":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start - self.looking)
        if self.counted:
            self.sent.append(ddp.sent_bytes(self.interface) - before)

    def loss(self, value):
        self.losses.append(value.detach().float().reshape(()))

    def look(self):
        """Takes the least state of three steps, because the copy of a message is occasionally still alive."""
        if self.number in self.looks:
            start = time.perf_counter()
            found = state_bytes()
            self.state = found if self.state is None else min(self.state, found)
            self.looking = time.perf_counter() - start

    def evaluate(self, number, mean_loss):
        """After each step `number` with an evaluation: the mean of mean_loss(batch) over the validation batches."""
        if (number + 1) % self.work.eval_every == 0 or number + 1 == self.work.steps:
            with torch.no_grad():
                losses = [float(mean_loss(i)) for i in range(self.work.eval_batches)]
            self.evaluations.append([number + 1, sum(losses) / len(losses)])

    def write(self, path, system, average=True):
        """Collective. average: losses and evaluations are those of a rank's part, and their means are written."""
        work = self.work
        curve = torch.stack(self.losses).to(work.device)
        values = torch.tensor([value for _, value in self.evaluations], device=work.device)
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        memory = {"rss": rss, "state": self.state or 0,
                  "device": torch.cuda.max_memory_allocated() if work.device == "cuda" else 0}
        everyone = [memory]
        if work.ranks > 1:
            everyone = [None] * work.ranks
            dist.all_gather_object(everyone, memory)
            if average:
                for values_of_rank in (curve, values):
                    dist.all_reduce(values_of_rank)
                    values_of_rank /= work.ranks
        if work.rank != 0:
            return
        result = {
            "system": system, "step_seconds": self.seconds, "losses": curve.tolist(),
            "evaluations": [[step, value] for (step, _), value in zip(self.evaluations, values.tolist())],
            # Counted at the interface: on a rank's own host its bytes, else those of all ranks.
            "sent_bytes": self.sent if self.counted else None,
            "sent_by": work.ranks if self.interface == "lo" else 1,
            "peak_rss": [m["rss"] for m in everyone], "device_peak": max(m["device"] for m in everyone),
            "state_bytes": max(m["state"] for m in everyone)}
        with open(path + ".tmp", "w") as file:
            json.dump(result, file)
        os.replace(path + ".tmp", path)


def finish(work):
    """Ends the rank without finalizers: engines leave threads that may hang or print at the interpreter's end."""
    if work.ranks > 1:
        dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
