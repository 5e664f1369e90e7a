#!/usr/bin/env python3
"""Training steps of gpt.py's GPT on a GPU as PyTorch is fastest: torch.compile, scaled_dot_product_attention, fused
AdamW, bf16 autocast, TF32 for what stays fp32. Random tokens. Prints one line of JSON: tokens/s of the median step.

    gpu_step.py --layers 12 --heads 12 --width 768 --context 1024 --batch 16 --steps 12
"""
import argparse
import json
import statistics
import time

import torch

import gpt


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(layers=12, heads=12, width=768, context=1024, batch=16, vocabulary=50257,
                            steps=12).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--eager", action="store_true", help="without torch.compile")
    a = p.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU")
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        net = gpt.GPT(a.vocabulary, a.layers, a.heads, a.width, a.context, tie=True)
    optimizer = gpt.make_optimizer(net, 6e-4, 0.9, 0.95, 0.1)
    model = net if a.eager else torch.compile(net)
    tokens = torch.randint(a.vocabulary, (a.steps, a.batch, a.context + 1), device="cuda")
    seconds = []
    for step in range(a.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens[step, :, :-1], tokens[step, :, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    steady = seconds[len(seconds) // 2:]  # the first steps allocate and compile
    print(json.dumps({
        "parameters": sum(q.numel() for q in net.parameters()), "compile": not a.eager, "torch": torch.__version__,
        "steps": a.steps, "loss": round(loss.item(), 4), "step_ms": round(1e3 * statistics.median(steady), 3),
        "tokens_per_s": round(a.batch * a.context / statistics.median(steady), 1),
        "device_bytes_peak": torch.cuda.max_memory_allocated()}), flush=True)


if __name__ == "__main__":
    main()
