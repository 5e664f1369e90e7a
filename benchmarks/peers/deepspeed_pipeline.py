#!/usr/bin/env python3
"""The GPT of gpt.py over DeepSpeed's pipeline engine on the CPU, to compare tokens/s.

torchrun starts as many processes as stages; they communicate by gloo. Rank 0 prints one line.

    torchrun --nproc-per-node 2 deepspeed_pipeline.py --data TEXT --steps 12 --dtype bf16
"""
import os
import statistics
import time

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

import gpt


def options():
    p = gpt.parser(__doc__)
    p.add_argument("--micro-batch", type=int, default=4)
    p.set_defaults(vocabulary="bytes", layers=6, heads=6, width=384, context=256, batch=16, steps=12, threads=1, dtype="bf16")
    return p.parse_args()


def main():
    a = options()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    deepspeed.init_distributed("gloo")
    stages = int(os.environ["WORLD_SIZE"])
    tokens, vocabulary = gpt.read_text(a.data, a.vocabulary)
    module = PipelineModule(layers=gpt.pipeline_layers(gpt.GPT(vocabulary, a.layers, a.heads, a.width, a.context)),
                            loss_fn=gpt.cross_entropy, num_stages=stages, partition_method="parameters")
    config = {
        "train_batch_size": a.batch, "train_micro_batch_size_per_gpu": a.micro_batch, "gradient_clipping": a.clip,
        "steps_per_print": 10**9, "optimizer": {"type": "AdamW", "params": {"lr": a.lr, "torch_adam": True}},
        "bf16": {"enabled": a.dtype == "bf16"}}
    engine, *_ = deepspeed.initialize(model=module, config=config,
                                      model_parameters=[p for p in module.parameters() if p.requires_grad])

    def batches():
        while True:
            starts = torch.randint(len(tokens) - a.context - 1, (a.micro_batch,)).tolist()
            yield gpt.windows(tokens, starts, a.context)

    source, seconds = batches(), []
    for _ in range(a.steps):
        begin = time.perf_counter()
        engine.train_batch(data_iter=source)
        seconds.append(time.perf_counter() - begin)
    if int(os.environ["RANK"]) == 0:
        median = statistics.median(seconds[len(seconds) // 2:])
        print(f"system=deepspeed-pipeline version={deepspeed.__version__} dtype={a.dtype} stages={stages} "
              f"tokens_per_s={a.batch * a.context / median:.0f} step_ms={1e3 * median:.1f}", flush=True)


if __name__ == "__main__":
    main()
