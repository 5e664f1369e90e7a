#!/usr/bin/env python3
"""Causal attention on a GPU as PyTorch has it: scaled_dot_product_attention of bf16 heads that lie in one array
[B, T, 3 C], as kernels_benchmark's rows attention/NAME/… have them. Forward, and gradients of q, k and v. Flops are those
of the products of T (T + 1) / 2 scores: 2 forward, 5 backward. Prints one line of JSON: the fastest of several tries.

    gpu_attention.py NAME:BxTxHxD …
"""
import json
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

TOGETHER, TRIES = 20, 10  # calls that are waited for together, as bench::seconds_of does


def fastest(body):
    """Seconds of a call."""
    best = 1e9
    for _ in range(TRIES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(TOGETHER):
            body()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / TOGETHER)
    return best


def measure(name, sequences, tokens, heads, width):
    draw = lambda *shape: torch.rand(shape, device="cuda").mul_(4).sub_(2).bfloat16()  # noqa: E731
    qkv = draw(sequences, tokens, 3, heads, width)
    q, k, v = (part.transpose(1, 2).requires_grad_() for part in qkv.unbind(2))
    dout = draw(sequences, tokens, heads, width).transpose(1, 2)
    with torch.no_grad():
        forward = fastest(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    backward = fastest(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    product = sequences * heads * tokens * (tokens + 1) * width
    return {f"PyTorch attention/{name}/{verb}": {"best_us": round(1e6 * seconds, 2),
                                                 "TFLOP/s": round(1e-12 * products * product / seconds, 2)}
            for verb, seconds, products in (("forward", forward, 2), ("backward", backward, 5))}


def main(shapes):
    if not shapes:
        raise SystemExit(__doc__)
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU")
    torch.manual_seed(1)
    rows = {}
    for shape in shapes:
        name, extents = shape.split(":")
        rows.update(measure(name, *map(int, extents.split("x"))))
    print(json.dumps({"torch": torch.__version__, "rows": rows}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
