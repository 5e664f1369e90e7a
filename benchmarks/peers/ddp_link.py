#!/usr/bin/env python3
"""PyTorch DDP over a link: the GPT of gpt.py with one of torch's communication hooks, in bf16 by default.

    scripts/two_hosts.sh --rate 100mbit torchrun benchmarks/peers/ddp_link.py --data TEXT --hook fp16

Hooks: none (DDP sums fp32), fp16 and bf16 (torch's compress hooks), powersgd (error feedback and warm start as
torch sets them). PowerSGD takes all gradients as one bucket: with more, torch's callbacks start the sums of two
buckets in an order that differs between ranks now and then, and gloo adds what does not belong together, or
aborts (seen with 2.15). Rank 0 prints one line of JSON: tokens/s (median, slowest and fastest step), bytes that
its host sent in a step, counted at the interface that gloo uses, training loss of the last step over all ranks,
validation loss. Speed and bytes are of the steps after the first fifth.
"""
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import gpt


def options():
    p = gpt.parser(__doc__)
    p.add_argument("--hook", choices=["none", "fp16", "bf16", "powersgd"], default="none")
    p.add_argument("--matrix-rank", type=int, default=1, help="of what powersgd sends")
    p.add_argument("--plain-steps", type=int, default=2, help="before powersgd begins; torch allows no fewer than 2")
    p.set_defaults(layers=6, heads=6, width=384, context=256, batch=8, threads=1, steps=20, warmup=20, dtype="bf16",
                   eval_batches=10)
    return p.parse_args()


def register(model, a):
    if a.hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif a.hook == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif a.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=a.matrix_rank,
                                            start_powerSGD_iter=a.plain_steps)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def sent_bytes(interface):
    """Of this network namespace; what the kernel counted so far."""
    with open("/proc/self/net/dev") as lines:
        for line in lines:
            name, _, counters = line.partition(":")
            if name.strip() == interface:
                return int(counters.split()[8])
    raise SystemExit(f"no interface {interface!r}: GLOO_SOCKET_IFNAME must name the one that gloo uses")


def main():
    a = options()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if a.batch % ranks:
        raise SystemExit(f"--batch {a.batch} must be a multiple of the {ranks} ranks")
    tokens, vocabulary = gpt.read_text(a.data, a.vocabulary)
    training, validation = tokens.split([int(0.9 * len(tokens)), len(tokens) - int(0.9 * len(tokens))])
    net = gpt.GPT(vocabulary, a.layers, a.heads, a.width, a.context, a.tie)
    optimizer = gpt.make_optimizer(net, a.lr, a.beta1, a.beta2, a.weight_decay)
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1024 if a.hook == "powersgd" else None)
    register(model, a)

    def autocast():
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16")

    part = a.batch // ranks
    generator = torch.Generator().manual_seed(a.seed)  # all ranks draw the same windows
    seconds, sent = [], [sent_bytes(interface)]
    for step in range(a.steps):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = gpt.learning_rate(step, a)
        starts = torch.randint(len(training) - a.context, (a.batch,), generator=generator).tolist()
        x, y = gpt.windows(training, starts[rank * part:(rank + 1) * part], a.context)
        with autocast():
            loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), a.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        sent.append(sent_bytes(interface))

    warm_up = max(3, a.steps // 5, a.plain_steps if a.hook == "powersgd" else 0)
    first = min(warm_up, a.steps - 1)
    loss = loss.detach() / ranks
    dist.all_reduce(loss)
    if rank == 0:
        speed = [a.batch * a.context / s for s in seconds[first:]]
        print(json.dumps({
            "system": "ddp", "torch": torch.__version__, "hook": a.hook, "matrix_rank": a.matrix_rank, "dtype": a.dtype,
            "ranks": ranks, "steps": a.steps, "parameters": sum(p.numel() for p in net.parameters()),
            "tokens_per_s": round(statistics.median(speed), 1), "slowest": round(min(speed), 1),
            "fastest": round(max(speed), 1), "bytes_a_step": round((sent[-1] - sent[first]) / (a.steps - first)),
            "train_loss": round(loss.item(), 4),
            "val_loss": round(gpt.evaluate(net, validation, a, autocast), 4)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
