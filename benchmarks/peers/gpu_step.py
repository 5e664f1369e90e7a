#!/usr/bin/env python3
"""Training steps of gpt.py's GPT on a GPU with PyTorch's fastest settings: torch.compile, the fastest backend of
scaled_dot_product_attention (gpu_attention.py), fused AdamW, bf16 autocast, TF32 for fp32 products. Random tokens.
Prints a line of JSON for each way as soon as it finishes, with tokens/s of the median step, so a stopped call keeps
the lines of finished ways. Ways:

    eager    compiles nothing; few steps, for an early result
    blocks   compiles the code of a block once for all blocks, and the head with the loss
    model    compiles the whole model, and so fuses operations between blocks; takes longer with each block (1.5B:
             minutes)

    gpu_step.py --layers 12 --heads 12 --width 768 --context 1024 --batch 16 --steps 12 eager blocks model
"""
import argparse
import contextlib
import gc
import json
import statistics
import sys
import time

import torch

import gpt
from gpu_attention import fastest_backends

EAGER_STEPS = 4
# If a shape exceeds a limit of the first, for example of cuDNN, the second is tried.
ATTENTION = {"fastest first": fastest_backends, "PyTorch's choice": contextlib.nullcontext}


def compiled(net, way):
    if way == "model":
        return torch.compile(net)
    if way == "blocks":
        for block in net.blocks:
            block.compile()
        net.loss = torch.compile(net.loss)
    return net


def measure(a, way, attention):
    """Trains a new model; returns its line of results."""
    on_gpu = a.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    torch.manual_seed(1)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with torch.device(a.device):
        net = gpt.GPT(a.vocabulary, a.layers, a.heads, a.width, a.context, tie=True)
    optimizer = gpt.make_optimizer(net, 6e-4, 0.9, 0.95, 0.1)
    model = compiled(net, way)
    steps = EAGER_STEPS if way == "eager" else a.steps
    tokens = torch.randint(a.vocabulary, (steps, a.accumulate, a.batch, a.context + 1), device=a.device)
    seconds = []
    for step in range(steps):
        wait()
        start = time.perf_counter()
        for micro in tokens[step]:
            with ATTENTION[attention]():
                with torch.autocast(a.device, dtype=torch.bfloat16):
                    loss = model(micro[:, :-1], micro[:, 1:])
                (loss / a.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[len(seconds) // 2:])  # the first steps allocate and compile
    line = {"way": way, "attention": attention, "batch": a.batch, "torch": torch.__version__,
            "parameters": sum(q.numel() for q in net.parameters()), "steps": steps, "loss": round(loss.item(), 4),
            "first_step_s": round(seconds[0], 2), "step_ms": round(1e3 * median, 3),
            "tokens_per_s": round(a.batch * a.accumulate * a.context / median, 1)}
    if on_gpu:  # memory that the allocator took from the driver, without the context
        line["device_bytes_peak"] = torch.cuda.max_memory_reserved()
    return line


def attempt(a, way, attention):
    """Prints the line of one way and frees its memory. Returns the reason of a failure, or an empty string."""
    failed = ""
    try:
        print(json.dumps(measure(a, way, attention)), flush=True)
    except Exception as error:  # for example of the compiler
        failed = f"{way}, {attention}: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        print(failed, file=sys.stderr, flush=True)
    torch.compiler.reset()
    gc.collect()
    if a.device == "cuda":
        torch.cuda.empty_cache()
    return failed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ways", nargs="*", metavar="WAY", help="eager, blocks or model (default: eager model)")
    for name, value in dict(layers=12, heads=12, width=768, context=1024, batch=16, accumulate=1,
                            vocabulary=50257, steps=12).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: to try this script")
    a = p.parse_args()
    ways = a.ways or ["eager", "model"]
    if unknown := set(ways) - {"eager", "blocks", "model"}:
        p.error(f"no such way: {' '.join(sorted(unknown))}")
    if a.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU")
    torch.set_float32_matmul_precision("high")
    failed = []
    for way in ways:
        for attention in ATTENTION:
            error = attempt(a, way, attention)
            if not error:
                break
        else:
            failed.append(error)
    if failed:
        raise SystemExit("; ".join(failed))


if __name__ == "__main__":
    main()
