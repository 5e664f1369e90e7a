#!/usr/bin/env python3
"""The GPT of `espalier train` in PyTorch, the reference for speed and loss.

Layout of GPT-2 as nanoGPT writes it: pre-norm, learned positions, GELU (tanh), biases in every linear layer
and norm, a head without bias, no dropout. Text is read as bytes; batches are random windows of the first
90 % of it; validation reads the last 10 % in order. AdamW decays matrices only, gradients are clipped, the
rate warms up and then follows a cosine. Pruning is one-shot and global, by magnitude, over the linear
weights of the blocks. Under torchrun each rank takes its part of every batch (DDP over gloo), so any number of
ranks reads the same data. `--family llama` makes the blocks of Llama instead: RMSNorm, rotary positions, grouped
keys and values, SwiGLU, no biases; `--fused` joins its q, k, v and its gate and up into one product each.

    gpt.py --data TEXT --layers 4 --heads 4 --width 128 --context 64 --batch 12 --steps 60
    torchrun --nproc-per-node 2 gpt.py --data TEXT --threads 1 …
"""
import argparse
import contextlib
import json
import math
import os
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(B, T, C))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))

    def linear_weights(self):
        """The prunable weights."""
        return [m.weight for m in (self.qkv, self.projection, self.expand, self.contract)]


def rotate(x, cosines, sines):
    """Rotary positions: rotates the pairs (i, i + D / 2) of each head of x [B, H, T, D]."""
    half = x.shape[-1] // 2
    return x * cosines + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sines


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, mlp_width, context, fused):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.parts = [heads * self.size, kv_heads * self.size, kv_heads * self.size]
        linear = lambda n, m: nn.Linear(n, m, bias=False)
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.ModuleList([linear(width, sum(self.parts))] if fused else [linear(width, n) for n in self.parts])
        self.projection = linear(width, width)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.expand = nn.ModuleList([linear(width, 2 * mlp_width)] if fused else [linear(width, mlp_width) for _ in "gu"])
        self.contract = linear(mlp_width, width)
        angles = torch.outer(torch.arange(context), 10000.0 ** (-torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("cosines", torch.cat((angles, angles), dim=1).cos(), persistent=False)
        self.register_buffer("sines", torch.cat((angles, angles), dim=1).sin(), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        y = self.norm1(x)
        parts = self.qkv[0](y).split(self.parts, dim=2) if len(self.qkv) == 1 else [map_(y) for map_ in self.qkv]
        q, k, v = (t.view(B, T, -1, self.size).transpose(1, 2) for t in parts)
        cosines, sines = self.cosines[:T].to(q.dtype), self.sines[:T].to(q.dtype)
        q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.projection(y.transpose(1, 2).reshape(B, T, C))
        y = self.norm2(x)
        gate, up = self.expand[0](y).chunk(2, dim=2) if len(self.expand) == 1 else [map_(y) for map_ in self.expand]
        return x + self.contract(F.silu(gate) * up)

    def linear_weights(self):
        """The prunable weights."""
        return [m.weight for m in (*self.qkv, self.projection, *self.expand, self.contract)]


class GPT(nn.Module):
    def __init__(self, vocabulary, layers, heads, width, context, tie=False, llama=None):
        """llama: None, or the further arguments of LlamaBlock."""
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = None if llama else nn.Embedding(context, width)
        make_block = (lambda: LlamaBlock(width, heads, **llama)) if llama else (lambda: Block(width, heads))
        self.blocks = nn.ModuleList(make_block() for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5) if llama else nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)
            if isinstance(m, nn.Linear) and m.bias is not None:
                nn.init.zeros_(m.bias)
        # Weights that add to the residual stream start smaller, so that its variance does not grow with depth.
        for b in self.blocks:
            nn.init.normal_(b.projection.weight, std=0.02 / math.sqrt(2 * layers))
            nn.init.normal_(b.contract.weight, std=0.02 / math.sqrt(2 * layers))
        if tie:
            self.head.weight = self.token.weight

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.loss(x, targets)

    def embed(self, tokens):
        x = self.token(tokens)
        return x if self.position is None else x + self.position(torch.arange(tokens.shape[1], device=tokens.device))

    def loss(self, x, targets):
        return cross_entropy(self.head(self.norm(x)), targets)


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class FirstLayer(nn.Module):
    """Embeddings of a GPT, as a layer of DeepSpeed's pipeline engine."""

    def __init__(self, net):
        super().__init__()
        self.token, self.position = net.token, net.position

    def forward(self, tokens):
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))


class LastLayer(nn.Module):
    """Final norm and head of a GPT, likewise."""

    def __init__(self, net):
        super().__init__()
        self.norm, self.head = net.norm, net.head

    def forward(self, x):
        return self.head(self.norm(x))


def pipeline_layers(net):
    return [FirstLayer(net), *net.blocks, LastLayer(net)]


def make_optimizer(model, lr, beta1, beta2, weight_decay):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), fused=True)
    except RuntimeError:  # no fused kernel for this device in older versions
        return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2))


def learning_rate(step, a):
    """nanoGPT's: linear warm-up, then a cosine that reaches min_lr at the last step."""
    if step < a.warmup:
        return a.lr * (step + 1) / (a.warmup + 1)
    progress = (step - a.warmup) / max(1, a.steps - a.warmup)
    return a.min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (a.lr - a.min_lr)


@torch.no_grad()
def prune(weights, optimizer, sparsity):
    """Prunes by one threshold for all weights, and zeroes their moments. Returns [(weight, mask)]."""
    magnitudes = torch.cat([w.abs().flatten() for w in weights])
    cut = magnitudes.kthvalue(round(sparsity * magnitudes.numel())).values
    masks = [(w, (w.abs() > cut).to(w.dtype)) for w in weights]
    for w, mask in masks:
        w.mul_(mask)
        for moment in ("exp_avg", "exp_avg_sq"):
            if moment in optimizer.state[w]:
                optimizer.state[w][moment].mul_(mask)
    return masks


def read_text(path, vocabulary):
    """Token ids and vocabulary size; "chars" numbers the bytes that occur, in byte order."""
    data = np.fromfile(path, dtype=np.uint8)
    if vocabulary == "bytes":
        return torch.from_numpy(data.astype(np.int64)), 256
    present, ids = np.unique(data, return_inverse=True)
    return torch.from_numpy(ids.astype(np.int64)), len(present)


def windows(data, starts, context):
    rows = torch.stack([data[s:s + context + 1] for s in starts])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def evaluate(model, data, a, autocast):
    """Mean loss over the first batches of the text, windows side by side."""
    losses = []
    with torch.no_grad(), autocast():
        for i in range(a.eval_batches):
            starts = [(i * a.batch + j) * a.context for j in range(a.batch)]
            if starts[-1] + a.context + 1 > len(data):
                break
            losses.append(model(*windows(data, starts, a.context)).item())
    return statistics.fmean(losses)


def parser(description=__doc__):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, metavar="FILE")
    p.add_argument("--vocabulary", choices=["chars", "bytes"], default="chars")
    for name, value in dict(layers=4, heads=4, width=128, context=64, batch=12, threads=2, steps=60, seed=1,
                            warmup=100, eval_batches=100).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    for name, value in dict(lr=1e-3, min_lr=1e-4, weight_decay=0.1, beta1=0.9, beta2=0.99, clip=1.0,
                            sparsity=0.9).items():
        p.add_argument("--" + name.replace("_", "-"), type=float, default=value)
    p.add_argument("--prune-at", type=int, default=-1, metavar="STEP", help="prune after STEP updates")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16 is CPU autocast")
    p.add_argument("--family", choices=["gpt2", "llama"], default="gpt2")
    p.add_argument("--kv-heads", type=int, default=0, help="of llama; 0: as many as heads")
    p.add_argument("--mlp-width", type=int, default=0, help="of llama; 0: 8/3 of the width")
    for flag in ("compile", "tie", "eval", "json", "fused"):
        p.add_argument("--" + flag, action="store_true")
    return p


def main():
    a = parser().parse_args()
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if a.batch % ranks:
        raise SystemExit(f"--batch {a.batch} must be a multiple of the {ranks} ranks")
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    tokens, vocabulary = read_text(a.data, a.vocabulary)
    training, validation = tokens.split([int(0.9 * len(tokens)), len(tokens) - int(0.9 * len(tokens))])

    llama = {"kv_heads": a.kv_heads or a.heads, "mlp_width": a.mlp_width or a.width * 8 // 3, "context": a.context,
             "fused": a.fused} if a.family == "llama" else None
    gpt = GPT(vocabulary, a.layers, a.heads, a.width, a.context, a.tie, llama)
    optimizer = make_optimizer(gpt, a.lr, a.beta1, a.beta2, a.weight_decay)
    model = torch.compile(gpt) if a.compile else gpt
    if ranks > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    autocast = (lambda: torch.autocast("cpu", dtype=torch.bfloat16)) if a.dtype == "bf16" else contextlib.nullcontext

    part = a.batch // ranks
    generator = torch.Generator().manual_seed(a.seed)  # all ranks draw the same windows
    masks, seconds, loss = [], [], None
    for step in range(a.steps):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, a)
        if step == a.prune_at:
            masks = prune([w for b in gpt.blocks for w in b.linear_weights()], optimizer, a.sparsity)
        starts = torch.randint(len(training) - a.context, (a.batch,), generator=generator).tolist()
        x, y = windows(training, starts[rank * part:(rank + 1) * part], a.context)
        with autocast():
            loss = model(x, y)
        loss.backward()
        for w, mask in masks:  # a pruned weight is 0 with moments 0: without a gradient AdamW leaves it there
            w.grad.mul_(mask)
        nn.utils.clip_grad_norm_(gpt.parameters(), a.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)

    steady = seconds[max(3, a.steps // 5):] or seconds[-1:]  # the first steps allocate, tune and compile
    weights = [w for b in gpt.blocks for w in b.linear_weights()]
    result = {
        "family": a.family, "fused": a.fused, "layers": a.layers, "heads": a.heads, "width": a.width, "context": a.context, "batch": a.batch,
        "vocabulary": vocabulary, "tied": a.tie, "dtype": a.dtype, "compile": a.compile, "ranks": ranks,
        "threads": a.threads, "seed": a.seed, "steps": a.steps, "prune_at": a.prune_at, "torch": torch.__version__,
        "parameters": sum(p.numel() for p in gpt.parameters()),
        "sparsity": sum((w == 0).sum().item() for w in weights) / sum(w.numel() for w in weights),
        "tokens_per_s": round(a.batch * a.context / statistics.median(steady), 1),
        "train_loss": round(loss.item(), 4),  # of the last step; under DDP of rank 0's part
    }
    if a.eval and rank == 0:  # outside DDP and compile, whose shapes it need not match
        result["val_loss"] = round(evaluate(gpt, validation, a, autocast), 4)
    if rank == 0:
        print(json.dumps(result) if a.json else "  ".join(f"{k} {v}" for k, v in result.items()), flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
