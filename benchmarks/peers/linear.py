#!/usr/bin/env python3
"""Forward and backward of one linear layer, one thread: PyTorch dense, SparseProp, torch.sparse (MKL).

Prints a JSON line for each system: the least and the median seconds of a forward and a backward (gradients of
input, weight and bias). torch.sparse has no gradient for the values of a CSR weight, so its line covers forward
and the gradient of the input, each a product of the CSR matrix (or its transpose) with the activations.

    linear.py [--shape 768x3072] [--rows 2048] [--density 0.1]
"""
import argparse
import json
import statistics
import time
import warnings

import torch
from sparseprop.modules import SparseLinear

REPEATS = 7


def timed(action):
    action()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return {"min_s": min(seconds), "median_s": statistics.median(seconds)}


def layer_action(layer, x, dy):
    def action():
        x.grad = None
        for parameter in layer.parameters():
            parameter.grad = None
        layer(x).backward(dy)

    return action


def csr_action(weight, x, dy):
    columns, rows = x.detach().t().contiguous(), dy.t().contiguous()
    csr, transposed = weight.to_sparse_csr(), weight.t().contiguous().to_sparse_csr()

    def action():
        csr @ columns
        transposed @ rows

    return action


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
    parser.add_argument("--shape", default="768x3072", help="outputs x inputs")
    parser.add_argument("--rows", type=int, default=2048, help="tokens")
    parser.add_argument("--density", type=float, default=0.1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    outputs, inputs = map(int, options.shape.split("x"))
    x = torch.randn(options.rows, inputs, requires_grad=True)
    dy = torch.randn(options.rows, outputs)
    dense = torch.nn.Linear(inputs, outputs)
    with torch.no_grad():
        dense.weight.mul_(torch.rand(outputs, inputs) < options.density)
    actions = {"dense": layer_action(dense, x, dy), "sparseprop": layer_action(SparseLinear.from_dense(dense), x, dy),
               "torch.sparse": csr_action(dense.weight.detach(), x, dy)}
    for system, action in actions.items():
        line = {"system": system, "shape": options.shape, "rows": options.rows, "density": options.density}
        print(json.dumps(line | timed(action)), flush=True)


if __name__ == "__main__":
    main()
