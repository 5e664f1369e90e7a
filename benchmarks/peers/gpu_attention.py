#!/usr/bin/env python3
"""Causal attention of PyTorch on a GPU: scaled_dot_product_attention of bf16 heads in one array [B, T, 3 C], the layout of
kernels_benchmark's rows attention/NAME/…. Times forward and the gradients of q, k and v with each backend that
supports them, and names the fastest. Flops are those of the products of T (T + 1) / 2 scores: 2 in forward, 5 in
backward. Prints a line of JSON for each shape, with the fastest of several tries.

    gpu_attention.py NAME:BxTxHxD …
"""
import contextlib
import json
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

TOGETHER, TRIES = 20, 10  # calls per synchronization, as in bench::seconds_of


def backends():
    """{name: a function that returns a context with only that backend}. PyTorch's own choice is FlashAttention, even on
    Hopper, where cuDNN's kernels are faster. Versions before 2.5 cannot select cuDNN and have only that choice."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        named = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
                 "efficient": SDPBackend.EFFICIENT_ATTENTION}
    except (ImportError, AttributeError):
        return {"default": contextlib.nullcontext}
    return {name: lambda backend=backend: sdpa_kernel(backend) for name, backend in named.items()}


def fastest_backends():
    """A context of all backends, cuDNN first on compute capability 9 and later; needs PyTorch 2.6 for the order."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0):
            order.insert(0, SDPBackend.CUDNN_ATTENTION)
        return sdpa_kernel(order, set_priority=True)
    except (ImportError, AttributeError, TypeError):
        return contextlib.nullcontext()


def fastest(body):
    """Seconds per call."""
    best = 1e9
    for _ in range(TRIES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(TOGETHER):
            body()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / TOGETHER)
    return best


def seconds_of(q, k, v, dout):
    """(forward, backward) with the selected backend."""
    with torch.no_grad():
        forward = fastest(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return forward, fastest(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))


def measure(name, sequences, tokens, heads, width):
    draw = lambda *shape: torch.rand(shape, device="cuda").mul_(4).sub_(2).bfloat16()  # noqa: E731
    qkv = draw(sequences, tokens, 3, heads, width)
    q, k, v = (part.transpose(1, 2).requires_grad_() for part in qkv.unbind(2))
    dout = draw(sequences, tokens, heads, width).transpose(1, 2)
    found = {}
    for backend, alone in backends().items():
        try:
            with alone():
                found[backend] = seconds_of(q, k, v, dout)
        except RuntimeError as error:  # the backend does not support the shape, or is not in this build
            print(f"{name}: {backend}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
    if not found:
        raise SystemExit(f"{name}: no backend supports it")
    product = sequences * heads * tokens * (tokens + 1) * width
    rows = {}
    for verb, at, products in (("forward", 0, 2), ("backward", 1, 5)):
        best = min(found, key=lambda backend: found[backend][at])
        rows[f"PyTorch attention/{name}/{verb} ({best})"] = {
            "best_us": round(1e6 * found[best][at], 2),
            "TFLOP/s": round(1e-12 * products * product / found[best][at], 2),
            **{f"{backend}_us": round(1e6 * seconds[at], 2) for backend, seconds in found.items()}}
    return rows


def main(shapes):
    if not shapes:
        raise SystemExit(__doc__)
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU")
    torch.manual_seed(1)
    for shape in shapes:
        name, extents = shape.split(":")
        rows = measure(name, *map(int, extents.split("x")))
        print(json.dumps({"torch": torch.__version__, "rows": rows}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
