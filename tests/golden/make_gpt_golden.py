#!/usr/bin/env python3
"""Writes gpt_small.h5 and gpt_small_tied.h5: loss, gradients and ten AdamW steps of a tiny GPT, by PyTorch.

All values are computed in float64 from parameters that are exact in float32, and stored as float32. The file's
error is one rounding, so a test needs no tolerance beyond the error of its own dtype.

  /tokens, /targets   int32 [B, T]
  /params/NAME        float32, the parameters at the start; Espalier's names, dots and all, in a flat group
  /gradients/NAME     float32, of the mean cross-entropy over all B T tokens, before clipping
  /loss               float32 scalar, at the start
  /losses             float32 [10], before each of ten updates on the same batch; losses[0] == loss
  /norms              float32 [10], the global gradient norm before clipping at each of them
  attributes of the file: layers heads width context vocabulary batch tied lr beta1 beta2 epsilon
                          weight_decay clip

The model: x = token[t] + position; x += projection(attention(norm1 x)); x += contract(gelu_tanh(expand(norm2 x)));
logits = head(norm x). A linear layer is y = x Wᵀ + b with W [out, in]. The rows of attention.qkv are q, k, v, C
each; head h owns rows h d … (h + 1) d - 1 of each of them, d = C / H. Attention is causal, scaled by 1 / sqrt(d). Norms: eps 1e-5.
The tied variant has no head.weight: its head is embedding.token, whose gradient is the sum of both uses.
The optimizer decays parameters of two dimensions (embeddings too), and no biases or norms. The k part of
attention.qkv.bias shifts all scores of a query alike, so its gradient is 0: what is stored there is rounding noise.

    python make_gpt_golden.py [DIRECTORY]
"""
import math
import pathlib
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY, BATCH = 2, 2, 32, 16, 32, 3
ADAMW = dict(lr=1e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
CLIP, STEPS = 1.0, 10


def shapes(tied):
    C = WIDTH
    yield "embedding.token", (VOCABULARY, C)
    yield "embedding.position", (CONTEXT, C)
    for i in range(LAYERS):
        for layer, shape in [("norm1", (C,)), ("attention.qkv", (3 * C, C)), ("attention.projection", (C, C)),
                             ("norm2", (C,)), ("mlp.expand", (4 * C, C)), ("mlp.contract", (C, 4 * C))]:
            yield f"blocks.{i}.{layer}.weight", shape
            yield f"blocks.{i}.{layer}.bias", shape[:1]
    yield "norm.weight", (C,)
    yield "norm.bias", (C,)
    if not tied:
        yield "head.weight", (VOCABULARY, C)


def initial(random, name, shape):
    """Far from a trained or fresh network on purpose: no bias is 0, no norm is 1, and attention is not flat."""
    noise = random.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        values = 1 + 0.2 * noise
    elif len(shape) == 1:
        values = 0.1 * noise
    elif name.startswith("embedding"):
        values = 0.5 * noise
    else:
        values = noise / math.sqrt(shape[1])
    return values.astype(np.float32).astype(np.float64)


def forward(p, tokens, targets):
    """Written out instead of taken from torch.nn, so that it reads as the definition of every name."""
    B, T = tokens.shape
    linear = lambda x, name: x @ p[name + ".weight"].T + p[name + ".bias"]
    norm = lambda x, name: F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"], eps=1e-5)
    x = p["embedding.token"][tokens] + p["embedding.position"][:T]
    for i in range(LAYERS):
        block = f"blocks.{i}."
        qkv = linear(norm(x, block + "norm1"), block + "attention.qkv")
        q, k, v = (t.view(B, T, HEADS, WIDTH // HEADS).transpose(1, 2) for t in qkv.split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, WIDTH)
        x = x + linear(y, block + "attention.projection")
        y = F.gelu(linear(norm(x, block + "norm2"), block + "mlp.expand"), approximate="tanh")
        x = x + linear(y, block + "mlp.contract")
    logits = norm(x, "norm") @ p.get("head.weight", p["embedding.token"]).T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def write(path, tied):
    random = np.random.Generator(np.random.PCG64(20260101))
    text = random.integers(0, VOCABULARY, (BATCH, CONTEXT + 1))
    tokens, targets = torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy())
    start = {name: initial(random, name, shape) for name, shape in shapes(tied)}
    p = {name: torch.tensor(values, requires_grad=True) for name, values in start.items()}

    optimizer = torch.optim.AdamW(
        [{"params": [t for t in p.values() if t.dim() == 2], "weight_decay": ADAMW["weight_decay"]},
         {"params": [t for t in p.values() if t.dim() == 1], "weight_decay": 0.0}],
        lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["epsilon"])
    losses, norms, gradients = [], [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = forward(p, tokens, targets)
        loss.backward()
        if gradients is None:
            gradients = {name: t.grad.numpy().copy() for name, t in p.items()}
        losses.append(loss.item())
        # scales by min(1, clip / (norm + 1e-6))
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item())
        optimizer.step()

    with h5py.File(path, "w", libver="earliest", track_order=False) as f:
        f.attrs.update(layers=LAYERS, heads=HEADS, width=WIDTH, context=CONTEXT, vocabulary=VOCABULARY, batch=BATCH,
                       tied=int(tied), clip=CLIP, **ADAMW)
        f["tokens"], f["targets"] = text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int32)
        f["loss"] = np.float32(losses[0])
        f["losses"], f["norms"] = np.float32(losses), np.float32(norms)
        for name in p:
            f.create_dataset("params/" + name, data=start[name].astype(np.float32))
            f.create_dataset("gradients/" + name, data=gradients[name].astype(np.float32))
    print(f"{path.name}: {path.stat().st_size} bytes, losses {losses[0]:.6f} … {losses[-1]:.6f}, norm {norms[0]:.4f}")


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    write(directory / "gpt_small.h5", tied=False)
    write(directory / "gpt_small_tied.h5", tied=True)
