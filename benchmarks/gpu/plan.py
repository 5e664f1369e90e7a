"""The steps of benchmarks/gpu.sh run, in groups that fit a call of 9 minutes each, the most important first. Time
limits are generous: the steps of a group together take less than the sum of their limits.
"""
from kinds import (AttentionPeer, Benchmark, Codecs, Cpu, Facts, Largest, OneDevice, Peer, Sanitizer, Steps,
                   Tests)
from small import SmallSteps

MEMORY_BOUND = ("^(layernorm|layernorm_backward|cross_entropy/50257|gelu|sum_squares|column_sum|gather/bitmap|"
                "scatter/bitmap|adamw/bitmap|adamw/all|adamw/states|quantize|dequantize)/")
KERNEL_TESTS = ":".join(f"*{suite}.*" for suite in (  # tests/kernels/tested_tables.h
    "KernelCases", "RandomKernels", "DeviceAttention", "WireTables", "RandomRounding", "DeviceQueues"))
FIGURE_1 = ("90 % sparse layers: dense, cuSPARSE (its deterministic CSR_ALG3, not its fastest), ours, expanded", 100,
            "sparse_benchmark")


def first():
    """Correctness, and training speed."""
    return [
        Tests("kernel-tests", "the CPU's kernel cases and wire codes on cuda", 150, "cuda_tests", KERNEL_TESTS),
        Tests("run-tests", "100 steps near the CPU, resume both ways, the same bits again", 150, "cuda_tests",
              "*DeviceRuns.*"),
        Steps("train-124m-dense", 45, "124m", "dense", 12),
        Steps("times-124m", 45, "124m", "dense, timed", 12),
        Steps("train-124m-own", 45, "124m", "dense, own attention", 12),
        Steps("train-124m-masked", 45, "124m", "masked", 12),
        Steps("train-124m-expanded", 45, "124m", "expanded", 12),
        Steps("train-124m-fast", 45, "124m", "dense, not deterministic", 12),
        Steps("times-124m-fast", 45, "124m", "dense, not deterministic, timed", 12),
        Peer("peer-124m", 150, "124m", 12, ("eager", "blocks", "model")),
        Benchmark("blocks", "90 % pruned blocks of 64 x 64 beside dense", 60, "block_benchmark",
                  "/bf16/64x64/.*/(576|8192)tokens"),
        Tests("equality-tests", "full mask = dense, indices, recompute, resume: bit by bit", 60, "cuda_whole_run_tests",
              "DTypes/*:-*ThreadsOverlap*"),
        Benchmark("figure-1", *FIGURE_1, "^spmm/0.1/bitmap/bf16/(1024|2048|4096)/.*/576/"),
        Tests("nccl-test", "messages and sums of NCCL, of one rank", 30, "cuda_tests", "Nccl.*"),
    ]


def second():
    """The larger model, other storages, and single kernels."""
    return [
        Steps("train-1.5b-dense", 90, "1.5b", "dense", 6),
        Steps("times-1.5b", 90, "1.5b", "dense, timed", 6),
        Steps("train-1.5b-fast", 90, "1.5b", "dense, not deterministic", 6),
        Steps("train-1.5b-block", 90, "1.5b", "block", 6),
        Peer("peer-1.5b", 240, "1.5b", 8, ("eager", "blocks")),
        Steps("train-124m-expanded-8bit", 45, "124m", "expanded-8bit", 4),
        Steps("train-124m-block", 45, "124m", "block", 6),
        Benchmark("kernels", "memory-bound kernels beside a copy", 270, "kernels_benchmark", MEMORY_BOUND),
        Benchmark("attention", "attention of GPT-2 124M and 1.5B, ours and cuDNN's", 110, "kernels_benchmark",
                  "^attention/(124m|1.5b)/"),
        AttentionPeer("peer-attention", 80),
        Steps("train-124m-sparse", 45, "124m", "sparse", 6),
        Benchmark("gemms", "dense products beside a large one", 130, "kernels_benchmark", "^gemm/.*/bf16/"),
        Codecs("codecs", "wire codes of 256 MiB beside a copy", 120),
    ]


def third():
    """Ranks, compute-sanitizer, the largest model."""
    return [
        OneDevice("cuda-1-rank", "one rank under mpirun", 30, 1),
        OneDevice("cuda-2-ranks", "two ranks that share the GPU", 30, 2),
        Sanitizer("memcheck", 250),
        Largest("largest-gpt", 500, "expanded", False),
    ]


def fourth():
    """Gain of graphs, fp16."""
    return [
        SmallSteps("train-small", 30, "dense", 30),
        SmallSteps("train-small-no-graphs", 30, "dense, no graphs", 30),
        Steps("train-124m-no-graphs", 45, "124m", "dense, no graphs", 12),
        Steps("train-124m-fp16", 45, "124m", "fp16", 12),
    ]


def rest():
    """Steps for single calls; some take a whole call."""
    return [
        Cpu("cpu", "tiny training on the CPU", 20, 1),
        Cpu("cpu-2-ranks", "the same on 2 ranks of the bundle's mpirun", 30, 2),
        Sanitizer("racecheck", 250),
        Benchmark("figure-1-small", *FIGURE_1, "^spmm/0.1/bitmap/bf16/(128|256|512)/.*/576/"),
        Benchmark("slabs", "gradients of bf16 weights below and above the density from which slabs compute them", 100,
                  "sparse_benchmark", "^sddmm/0.0.*/4096/4096/8192"),
        Benchmark("gemms-tuned", "dense products, algorithms chosen by time", 130, "kernels_benchmark",
                  "^gemm/.*/bf16/", {"ESPALIER_TUNE_PRODUCTS": "1"}),
        Largest("largest-gpt-offload", 500, "expanded", True),
        Largest("largest-gpt-sparse", 500, "sparse", False),
    ]


def groups():
    return {group.__name__: group() for group in (first, second, third, fourth, rest)}


def facts():
    """The first step of every call."""
    return Facts("facts", "device, driver, clocks, libraries", 120)
