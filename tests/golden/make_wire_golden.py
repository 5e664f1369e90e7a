#!/usr/bin/env python3
"""Writes wire.h5: codes of floats by PyTorch and bitsandbytes, references for the wire codes.

Groups fp8_e5m2, fp8_e4m3, fp16 and bf16, by PyTorch's casts; all datasets float32 (codes are whole numbers):

  x      numbers up to the largest finite one of the type (the last is that): all its numbers, the middles
         between neighbours and the floats beside each middle, random ones of all magnitudes, both signs
  code   the bits of the cast
  value  of the fp8 types: what each of the 256 codes is cast back to

Group dynamic8_bnb, by bitsandbytes' quantize_blockwise on the CPU, in blocks of 256: x, code, absmax.

    python make_wire_golden.py [DIRECTORY]
"""
import pathlib
import sys

import bitsandbytes.functional
import h5py
import numpy as np
import torch

TYPES = {"fp8_e5m2": (torch.float8_e5m2, torch.uint8), "fp8_e4m3": (torch.float8_e4m3fn, torch.uint8),
         "fp16": (torch.float16, torch.int16), "bf16": (torch.bfloat16, torch.int16)}


def numbers(random, dtype, integer):
    """Neighbours, middles, floats beside them, random ones; of 16 bits every 37th number."""
    bits = 8 * torch.empty(0, dtype=integer).element_size()
    codes = torch.arange(0, 2 ** (bits - 1), dtype=torch.int32)
    grid = codes.to(integer).view(dtype).to(torch.float32).numpy()
    grid = np.sort(grid[np.isfinite(grid)])
    keep = np.arange(0, len(grid) - 1, 1 if bits == 8 else 37)
    middles = ((grid[keep].astype(np.float64) + grid[keep + 1]) / 2).astype(np.float32)
    low = np.log10(grid[1]) - 1
    some = 10 ** random.uniform(low, np.log10(float(grid[-1])), 1000)
    positive = np.concatenate([grid[keep], middles, np.nextafter(middles, np.float32(np.inf)),
                               np.nextafter(middles, np.float32(0)), some, grid[-1:]]).astype(np.float32)
    return np.concatenate([-positive, positive])


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    random = np.random.default_rng(1)
    with h5py.File(folder / "wire.h5", "w") as file:
        for name, (dtype, integer) in TYPES.items():
            x = numbers(random, dtype, integer)
            cast = torch.from_numpy(x).to(dtype).view(integer).numpy()
            mask = 255 if integer == torch.uint8 else 65535
            file[f"{name}/x"] = x
            file[f"{name}/code"] = (cast.astype(np.int64) & mask).astype(np.float32)
            if integer == torch.uint8:
                all_codes = torch.arange(0, 256, dtype=torch.int32).to(torch.uint8)
                file[f"{name}/value"] = all_codes.view(dtype).to(torch.float32).numpy()
        x = (random.standard_normal(4096) * 10 ** random.uniform(-4, 0, 4096)).astype(np.float32)
        code, state = bitsandbytes.functional.quantize_blockwise(torch.from_numpy(x), blocksize=256)
        file["dynamic8_bnb/x"] = x
        file["dynamic8_bnb/code"] = code.numpy().astype(np.float32)
        file["dynamic8_bnb/absmax"] = state.absmax.numpy()


if __name__ == "__main__":
    main()
