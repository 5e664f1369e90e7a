"""The trainings that can be compared. `lr` is the first learning rate of the sweep (tuning.py). `target` is a validation
loss that dense and pruned training both reach. The number of steps keeps all rows of a CPU preset, with three seeds and
the sweep, below 20 minutes (cpu-small) on two cores.
"""

COMMON = {
    "tie": False, "vocabulary": 0, "lr": 4e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1,
    "clip": 1.0, "sparsity": 0.9, "device": "cpu", "ranks": 2, "validation_fraction": 0.1,
}

PRESETS = {
    # Seconds per run: for tests.
    "tiny": {
        **COMMON, "layers": 2, "heads": 2, "width": 32, "context": 16, "global_batch": 8, "pipeline_micro_batch": 2,
        "steps": 60, "eval_every": 20, "eval_batches": 4, "warmup": 10, "dtype": "fp32", "target": 3.6, "limit_s": 300,
    },
    # nanoGPT's setting for CPUs, 0.8 M parameters: the overhead of each system is a large share.
    "cpu-small": {
        **COMMON, "layers": 4, "heads": 4, "width": 128, "context": 64, "global_batch": 12, "pipeline_micro_batch": 3,
        "steps": 300, "eval_every": 30, "eval_batches": 20, "warmup": 40, "dtype": "fp32", "target": 2.4,
        "limit_s": 600,
    },
    # nanoGPT's GPU setting for characters with a batch for two cores, 10.8 M parameters.
    "cpu-10m": {
        **COMMON, "layers": 6, "heads": 6, "width": 384, "context": 256, "global_batch": 8, "pipeline_micro_batch": 2,
        "steps": 60, "eval_every": 15, "eval_batches": 4, "warmup": 20, "dtype": "bf16", "target": 2.6, "limit_s": 600,
    },
    # GPT-2 small on one GPU; --text names a file of uint16 tokens (NAME.bin, vocabulary of GPT-2).
    "gpu-124m": {
        **COMMON, "layers": 12, "heads": 12, "width": 768, "context": 1024, "tie": True, "vocabulary": 50257,
        "global_batch": 16, "pipeline_micro_batch": 4, "steps": 200, "eval_every": 50, "eval_batches": 4, "warmup": 40,
        "lr": 1e-3, "beta2": 0.95, "dtype": "bf16", "device": "cuda", "ranks": 1, "target": 6.0,
        "limit_s": 1800,
    },
}


def parameters(preset, vocabulary):
    """Parameters of the GPT, equal in all implementations."""
    width, layers = preset["width"], preset["layers"]
    block = 12 * width * width + 13 * width  # four matrices with biases, two norms
    embeddings = (vocabulary * (1 if preset["tie"] else 2) + preset["context"]) * width
    return layers * block + embeddings + 2 * width
