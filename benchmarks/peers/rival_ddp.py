#!/usr/bin/env python3
"""PyTorch DDP for compare.sh: eager or compiled, with torch's communication hooks, dense or pruned with fixed masks.

Pruning is torch's own (torch.nn.utils.prune): the mask is a second array beside the weight, products stay dense.
PowerSGD begins after a tenth of the steps, as its documentation advises.
"""
import contextlib

import torch
import torch.distributed as dist
import torch.nn.utils.prune
from torch.nn.parallel import DistributedDataParallel

import ddp
import rival


def options():
    p = rival.parser(__doc__)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--masked", action="store_true", help="start from the pruned weights, keep their zeros")
    ddp.add_options(p)
    return p.parse_args()


def main():
    a = options()
    work = rival.Work(a.work)
    if work.ranks > 1:
        dist.init_process_group(work.backend)
    net, masks = work.network(a.masked)
    for name, mask in masks.items():
        module, _, parameter = name.rpartition(".")
        torch.nn.utils.prune.custom_from_mask(net.get_submodule(module), parameter, mask)
    optimizer = work.optimizer(net)
    model = net
    if work.ranks > 1:
        # Without broadcast_buffers the masks, which never change, are not sent in every step.
        model = DistributedDataParallel(net, gradient_as_bucket_view=True, broadcast_buffers=False,
                                        bucket_cap_mb=ddp.bucket_megabytes(a.hook))
        ddp.register(model, a.hook, a.matrix_rank, max(2, work.steps // 10))
    plain = model
    if a.compile:
        model = torch.compile(model)

    def mean_loss(number):
        with work.autocast():
            losses = [net(x, y) for x, y in work.validation_batch(number, work.rank, work.ranks)]
        return torch.stack(losses).mean()

    record = rival.Record(work)
    micro_batches = work.global_batch // (work.ranks * work.micro_batch)
    for step in range(work.steps):
        with record.step(step):
            for group in optimizer.param_groups:
                group["lr"] = work.learning_rates[step]
            total = 0
            for i, (x, y) in enumerate(work.batch(step, work.rank, work.ranks)):
                last = i + 1 == micro_batches  # earlier micro-batches accumulate without communication
                with contextlib.nullcontext() if last or work.ranks == 1 else plain.no_sync():
                    with work.autocast():
                        loss = model(x, y) / micro_batches
                    loss.backward()
                total = total + loss.detach()
            del loss
            record.look()
            torch.nn.utils.clip_grad_norm_(net.parameters(), work.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        record.loss(total)
        record.evaluate(step, mean_loss)
    record.write(a.out, f"PyTorch {torch.__version__}")
    rival.finish(work)


if __name__ == "__main__":
    main()
