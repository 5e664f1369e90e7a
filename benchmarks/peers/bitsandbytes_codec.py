#!/usr/bin/env python3
"""bitsandbytes on the CPU, one thread: quantize_blockwise and dequantize_blockwise of normal numbers.

Prints a JSON line for each block size: GB of fp32 per second in each direction (the fastest of many repeats; its CPU
functions allocate their results), the relative L2 error, and the speed of torch's copy of the same array. Needs the
packages torch and bitsandbytes.

    bitsandbytes_codec.py
"""
import json
import time

import bitsandbytes
import bitsandbytes.functional as bnb
import torch

MIB, SECONDS = 4, 1  # size of the array, duration of each measurement


def rate(action, bytes_):
    action()
    best = float("inf")
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begin)
    return round(1e-9 * bytes_ / best, 2)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = 1e-3 * torch.randn(MIB * 2**18)
    y = torch.empty_like(x)
    bytes_ = 4 * x.numel()
    for block in (256, 512, 4096):
        map_ = bnb.create_dynamic_map()
        quantize = lambda: bnb.quantize_blockwise(x, code=map_, blocksize=block)
        codes, state = quantize()
        dequantize = lambda: bnb.dequantize_blockwise(codes, state)
        line = {"bitsandbytes": bitsandbytes.__version__, "mib": MIB, "block": block,
                "encode": rate(quantize, bytes_),
                "decode": rate(dequantize, bytes_),
                "copy": rate(lambda: y.copy_(x), bytes_)}
        line["error"] = round(float((dequantize() - x).norm() / x.norm()), 5)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
