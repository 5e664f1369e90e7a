#!/usr/bin/env python3
"""DeepSpeed's pipeline engine for compare.sh; each rank is a stage."""
import deepspeed
from deepspeed.pipe import PipelineModule

import gpt
import rival


def main():
    a = rival.parser(__doc__).parse_args()
    work = rival.Work(a.work)
    if work.tie:
        raise SystemExit("this script pipelines untied embeddings only")
    deepspeed.init_distributed(work.backend)
    net, _ = work.network()
    module = PipelineModule(layers=gpt.pipeline_layers(net), loss_fn=gpt.cross_entropy,
                            num_stages=work.ranks, partition_method="parameters")
    del net  # the stage keeps its own layers
    for parameter in module.parameters():
        parameter.model_parallel = True  # otherwise fp32 gradients are clipped by the norm of the first stage
    config = {
        "train_batch_size": work.global_batch, "train_micro_batch_size_per_gpu": work.micro_batch,
        "gradient_clipping": work.clip, "steps_per_print": 10**9, "bf16": {"enabled": work.dtype == "bf16"}}
    engine, optimizer, *_ = deepspeed.initialize(model=module, optimizer=work.optimizer(module), config=config)

    record = rival.Record(work)
    update = optimizer.step

    def watched_update(*arguments, **named):
        record.look()
        return update(*arguments, **named)

    optimizer.step = watched_update
    for step in range(work.steps):
        with record.step(step):
            for group in optimizer.param_groups:
                group["lr"] = work.learning_rates[step]
            loss = engine.train_batch(data_iter=work.batch(step, 0, 1))
        record.loss(loss)
        record.evaluate(step, lambda i: engine.eval_batch(data_iter=work.validation_batch(i, 0, 1)))
    record.write(a.out, f"DeepSpeed {deepspeed.__version__}", average=False)
    rival.finish(work)


if __name__ == "__main__":
    main()
