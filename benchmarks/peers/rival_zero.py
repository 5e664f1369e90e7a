#!/usr/bin/env python3
"""DeepSpeed's ZeRO stages 0, 1 and 2 for compare.sh."""
import deepspeed
import torch

import rival


def main():
    p = rival.parser(__doc__)
    p.add_argument("--stage", type=int, choices=[0, 1, 2], default=0)
    a = p.parse_args()
    work = rival.Work(a.work)
    deepspeed.init_distributed(work.backend)
    net, _ = work.network()
    parameters = sum(parameter.numel() for parameter in net.parameters())
    config = {
        "train_batch_size": work.global_batch, "train_micro_batch_size_per_gpu": work.micro_batch,
        "gradient_clipping": work.clip, "steps_per_print": 10**9, "bf16": {"enabled": work.dtype == "bf16"},
        # Buckets no larger than the model: the default of 500 million elements would be allocated as well.
        "zero_optimization": {"stage": a.stage, "overlap_comm": a.stage > 0, "contiguous_gradients": True,
                              "reduce_bucket_size": min(parameters, 500_000_000),
                              "allgather_bucket_size": min(parameters, 500_000_000)}}
    engine, optimizer, *_ = deepspeed.initialize(model=net, optimizer=work.optimizer(net), config=config)

    def mean_loss(number):
        losses = [engine.module(x, y) for x, y in work.validation_batch(number, work.rank, work.ranks)]
        return torch.stack(losses).mean()

    record = rival.Record(work)
    for step in range(work.steps):
        with record.step(step):
            for group in optimizer.param_groups:
                group["lr"] = work.learning_rates[step]
            losses = []
            for x, y in work.batch(step, work.rank, work.ranks):
                loss = engine(x, y)
                engine.backward(loss)
                losses.append(loss.detach())
                del loss
                if engine.is_gradient_accumulation_boundary():
                    record.look()
                engine.step()
        record.loss(torch.stack(losses).mean())
        record.evaluate(step, mean_loss)
    record.write(a.out, f"DeepSpeed {deepspeed.__version__}")
    rival.finish(work)


if __name__ == "__main__":
    main()
