#!/usr/bin/env python3
"""DeepSpeed's pipeline engine for compare.sh. Ranks are stages, of one replica or of several; with --zero-1 the
replicas of a stage shard its optimizer states (ZeRO stage 1)."""
import os

import deepspeed
from deepspeed.pipe import PipelineModule

import gpt
import rival


def main():
    p = rival.parser(__doc__)
    p.add_argument("--replicas", type=int, default=1)
    p.add_argument("--zero-1", action="store_true")
    a = p.parse_args()
    stages = int(os.environ.get("WORLD_SIZE", 1)) // a.replicas
    work = rival.Work(a.work, stages)
    if work.tie:
        raise SystemExit("this script pipelines untied embeddings only")
    deepspeed.init_distributed(work.backend)
    net, _ = work.network()
    module = PipelineModule(layers=gpt.pipeline_layers(net), loss_fn=gpt.cross_entropy,
                            num_stages=stages, partition_method="parameters")
    del net  # the stage keeps its own layers
    for parameter in module.parameters():
        parameter.model_parallel = True  # otherwise fp32 gradients are clipped by the norm of the first stage
    parameters = sum(parameter.numel() for parameter in module.parameters())
    config = {
        "train_batch_size": work.global_batch, "train_micro_batch_size_per_gpu": work.micro_batch,
        "gradient_clipping": work.clip, "steps_per_print": 10**9, "bf16": {"enabled": work.dtype == "bf16"}}
    if a.zero_1:  # buckets as large as a stage, as in rival_zero.py
        config["zero_optimization"] = {"stage": 1, "reduce_bucket_size": min(parameters, 500_000_000),
                                       "allgather_bucket_size": min(parameters, 500_000_000)}
    engine, optimizer, *_ = deepspeed.initialize(model=module, optimizer=work.optimizer(module), config=config)

    record = rival.Record(work)
    replica = engine.grid.get_data_parallel_rank()
    update = optimizer.step

    def watched_update(*arguments, **named):
        record.look()
        return update(*arguments, **named)

    optimizer.step = watched_update
    for step in range(work.steps):
        with record.step(step):
            for group in optimizer.param_groups:
                group["lr"] = work.learning_rates[step]
            loss = engine.train_batch(data_iter=work.batch(step, replica, a.replicas))
        record.loss(loss)
        record.evaluate(step, lambda i: engine.eval_batch(
            data_iter=work.validation_batch(i, replica, a.replicas)))
    record.write(a.out, f"DeepSpeed {deepspeed.__version__}", average=False)
    rival.finish(work)


if __name__ == "__main__":
    main()
