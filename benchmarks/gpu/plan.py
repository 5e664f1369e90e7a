"""What benchmarks/gpu.sh does where a GPU may be: the steps in order, most wanted first. A step's time limit is
generous; together they need less than the limits' sum.
"""
from kinds import (AttentionPeer, Benchmark, Codecs, Cpu, Facts, Largest, OneDevice, Peer, Sanitizer, Steps,
                   Tests)

MEMORY_BOUND = ("^(layernorm|layernorm_backward|cross_entropy/50257|gelu|sum_squares|column_sum|gather/bitmap|"
                "scatter/bitmap|adamw/bitmap|adamw/all|adamw/states|quantize|dequantize)/")


def steps():
    tests, one_rank = "cuda_kernels_test", "Types/*:-*ThreadsOverlap*"
    return [
        Facts("facts", "device, driver, clocks, libraries", 20),
        Cpu("cpu", "tiny training on the CPU", 20, 1),
        Cpu("cpu-2-ranks", "the same on 2 ranks of the bundle's mpirun", 30, 2),
        Tests("kernel-tests", "the CPU's kernel cases and wire codes on cuda", 90, tests),
        Tests("run-tests", "100 steps near the CPU, resume both ways, the same bits again", 90, "cuda_run_test"),
        Tests("equality-tests", "full mask = dense, indices, recompute, resume: bit by bit", 60, "cuda_equality_test",
              one_rank),
        Tests("nccl-test", "messages and sums of NCCL, of one rank", 30, "cuda_nccl_test"),
        Steps("train-124m-dense", 45, "124m", "dense", 12),
        Peer("peer-124m", 90, "124m", 12),
        Steps("train-124m-masked", 45, "124m", "masked", 12),
        Steps("train-124m-expanded", 45, "124m", "expanded", 12),
        Benchmark("kernels", "memory-bound kernels beside a copy", 120, "kernels_benchmark", MEMORY_BOUND),
        Benchmark("gemms", "dense products beside a large one", 30, "kernels_benchmark", "^gemm/.*/bf16/"),
        Benchmark("attention", "attention of GPT-2 124M and 1.5B", 60, "kernels_benchmark",
                  "^attention/(124m|1.5b)/"),
        AttentionPeer("peer-attention", 60),
        Benchmark("gemms-tuned", "the same, algorithms chosen by the clock", 40, "kernels_benchmark",
                  "^gemm/.*/bf16/", {"ESPALIER_TUNE_PRODUCTS": "1"}),
        Benchmark("figure-1", "90 % sparse layers: dense, cuSPARSE, ours, expanded", 40, "sparse_benchmark",
                  "^spmm/0.1/bitmap/bf16/.*/576/"),
        Benchmark("blocks", "90 % pruned blocks of 64 x 64 beside dense", 60, "block_benchmark",
                  "/bf16/64x64/.*/(576|8192)tokens"),
        Sanitizer("memcheck", 80),
        Sanitizer("racecheck", 80),
        Codecs("codecs", "wire codes of 256 MiB beside a copy", 40),
        OneDevice("cuda-1-rank", "one rank under mpirun", 30, 1),
        OneDevice("cuda-2-ranks", "two ranks that share the GPU", 30, 2),
        Steps("train-124m-sparse", 45, "124m", "sparse", 6),
        Steps("train-124m-block", 45, "124m", "block", 6),
        Steps("train-124m-expanded-8bit", 30, "124m", "expanded-8bit", 4),
        Steps("train-1.5b-dense", 90, "1.5b", "dense", 6),
        Peer("peer-1.5b", 120, "1.5b", 8),
        Largest("largest-gpt", 500, "expanded", False),
        Largest("largest-gpt-offload", 500, "expanded", True),
        Largest("largest-gpt-sparse", 500, "sparse", False),
    ]
