#!/usr/bin/env python3
"""The GPT of gpt.py over DeepSpeed's pipeline engine, on the CPU: tokens/s to compare with.

Started by torchrun with as many processes as stages; gloo between them. Prints one line from rank 0.

    torchrun --nproc-per-node 2 deepspeed_pipeline.py --data TEXT --layers 6 --heads 6 --width 384 --context 256 \\
        --batch 16 --micro-batch 4 --steps 12 --threads 1 --dtype bf16
"""
import argparse
import os
import statistics
import time

import deepspeed
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from deepspeed.pipe import PipelineModule

from gpt import Block


class Embedding(nn.Module):
    def __init__(self, vocabulary, width, context):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens):
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1]))


class Head(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x))


def loss(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bf16", choices=["fp32", "bf16"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    deepspeed.init_distributed("gloo")
    stages = int(os.environ["WORLD_SIZE"])
    layers = [Embedding(256, args.width, args.context)]
    layers += [Block(args.width, args.heads) for _ in range(args.layers)]
    layers += [Head(256, args.width)]
    net = PipelineModule(layers=layers, loss_fn=loss, num_stages=stages, partition_method="parameters")
    config = {
        "train_batch_size": args.batch,
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "bf16": {"enabled": args.dtype == "bf16"},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=[p for p in net.parameters() if p.requires_grad],
                                      config=config)
    text = np.fromfile(args.data, dtype=np.uint8)
    random = np.random.default_rng(1)

    def batches():
        while True:
            starts = random.integers(0, len(text) - args.context - 1, args.micro_batch)
            rows = np.stack([text[s:s + args.context + 1] for s in starts]).astype(np.int64)
            yield torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())

    source = batches()
    seconds = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        engine.train_batch(data_iter=source)
        seconds.append(time.perf_counter() - begin)
    if int(os.environ["RANK"]) == 0:
        median = statistics.median(seconds[len(seconds) // 2:])
        print(f"system=deepspeed-pipeline version={deepspeed.__version__} dtype={args.dtype} stages={stages} "
              f"tokens_per_s={args.batch * args.context / median:.0f} step_ms={1e3 * median:.1f}", flush=True)


if __name__ == "__main__":
    main()
