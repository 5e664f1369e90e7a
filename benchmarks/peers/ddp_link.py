#!/usr/bin/env python3
"""PyTorch DDP over a link: the GPT of gpt.py with one of torch's communication hooks, in bf16 by default.

    scripts/two_hosts.sh --rate 100mbit torchrun benchmarks/peers/ddp_link.py --data TEXT --hook fp16

Hooks: none (DDP sums fp32), fp16 and bf16 (torch's compress hooks), powersgd (error feedback and warm start as
torch sets them). Rank 0 prints one line of JSON: tokens/s (median, slowest and fastest step), bytes that its host
sent per step (counted at gloo's interface), training loss of the last step over all ranks, validation loss. Speed
and bytes are those of the steps after the first fifth.
"""
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn

import ddp
import gpt

PLAIN_STEPS = 2  # before powersgd begins


def options():
    p = gpt.parser(__doc__)
    ddp.add_options(p)
    p.set_defaults(layers=6, heads=6, width=384, context=256, batch=8, threads=1, steps=20, warmup=20, dtype="bf16",
                   eval_batches=10)
    return p.parse_args()


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
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=ddp.bucket_megabytes(a.hook))
    ddp.register(model, a.hook, a.matrix_rank, PLAIN_STEPS)

    def autocast():
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16")

    part = a.batch // ranks
    generator = torch.Generator().manual_seed(a.seed)  # all ranks draw the same windows
    seconds, sent = [], [ddp.sent_bytes(interface)]
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
        sent.append(ddp.sent_bytes(interface))

    first = min(max(3, a.steps // 5), a.steps - 1)
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
