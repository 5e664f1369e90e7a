"""A system for compare.sh that needs numpy and h5py only. Opens and checks everything that its work order names, then writes
a record of invented numbers, except for the first losses: those of the given network on the given batches.

    fake_rival.py WHAT [--expect EXPECT.json] [--masked] --work WORK.json --out RESULT.json

WHAT selects a fault: crash, hang, nothing (no record), short (one step too few); any other value: none. EXPECT.json: "text",
the file that the tokens must spell, and "order", keys of the work order with their values. --masked: the first losses are
those of the pruned weights. A check that fails is an assertion: exit code 1.
"""
import argparse
import json
import math
import sys
import time

import h5py
import numpy as np


def expected_shapes(work):
    """{name: shape} of the arrays of a GPT."""
    width, vocabulary = work["width"], work["vocabulary"]
    shapes = {"embedding.token": (vocabulary, width), "embedding.position": (work["context"], width),
              "norm.weight": (width,), "norm.bias": (width,)}
    if not work["tie"]:
        shapes["head.weight"] = (vocabulary, width)
    for block in range(work["layers"]):
        for name, rows, columns in (("attention.qkv", 3 * width, width), ("attention.projection", width, width),
                                    ("mlp.expand", 4 * width, width), ("mlp.contract", width, 4 * width)):
            shapes[f"blocks.{block}.{name}.weight"] = (rows, columns)
            shapes[f"blocks.{block}.{name}.bias"] = (rows,)
        for name in ("norm1", "norm2"):
            shapes[f"blocks.{block}.{name}.weight"] = shapes[f"blocks.{block}.{name}.bias"] = (width,)
    return shapes


def prunable(name):
    return name.startswith("blocks.") and name.endswith(".weight") and ".norm" not in name


def read_weights(path, work):
    with h5py.File(path) as file:
        assert all(isinstance(one, h5py.Dataset) for one in file.values()), f"{path} has groups: {list(file)}"
        arrays = {name: one[()] for name, one in file.items()}
    shapes = expected_shapes(work)
    assert {name: array.shape for name, array in arrays.items()} == shapes, f"{path}: names or shapes differ"
    for name, array in arrays.items():
        assert array.dtype == np.float32 and np.isfinite(array).all(), f"{path}: {name}"
    return arrays


def check_initial(arrays, work):
    """The distribution of GPT-2's initial weights."""
    for name, array in arrays.items():
        if name.endswith(".bias"):
            assert (array == 0).all(), name
        elif ".norm" in name or name == "norm.weight":
            assert (array == 1).all(), name
        else:
            last = name.endswith(("projection.weight", "contract.weight"))
            deviation = 0.02 / math.sqrt(2 * work["layers"]) if last else 0.02
            error = 5 * deviation / math.sqrt(array.size)
            assert abs(array.mean()) < error and abs(array.std() - deviation) < error, (name, array.mean(), array.std())


def check_pruned(pruned, dense, work):
    """The dense weights with zeros at the masked places: the share of all prunable weights that the order names."""
    zeros = total = 0
    for name, array in pruned.items():
        if prunable(name):
            kept = array != 0
            assert (array[kept] == dense[name][kept]).all(), name
            zeros, total = zeros + np.count_nonzero(~kept), total + kept.size
        else:
            assert (array == dense[name]).all(), name
    assert abs(zeros / total - work["sparsity"]) < 1e-3, zeros / total


def read_tokens(work, text):
    """{"training", "validation"}: parts of the text, as ranks of the bytes that occur."""
    parts = {}
    for split in ("training", "validation"):
        given = work[split]
        assert given["type"] == "u2", given
        parts[split] = np.fromfile(given["file"], dtype="<u2")[given["begin"]:given["end"]]
        assert parts[split].size == given["end"] - given["begin"] > work["context"], given
        assert parts[split].max() < work["vocabulary"], "a token beyond the vocabulary"
    if text:
        with open(text, "rb") as file:
            data = np.frombuffer(file.read(), dtype=np.uint8)
        assert np.array_equal(np.unique(data)[np.concatenate(list(parts.values()))], data), "the tokens are not the text"
    return parts


def norm(x, weight, bias):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight + bias


def loss_of(arrays, work, tokens):
    """Mean cross-entropy of the GPT on sequences [batch, context + 1], in float64."""
    a = {name: array.astype(np.float64) for name, array in arrays.items()}
    linear = lambda x, name: x @ a[name + ".weight"].T + a[name + ".bias"]
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    batch, context = inputs.shape
    heads, width = work["heads"], work["width"]
    x = a["embedding.token"][inputs] + a["embedding.position"][:context]
    future = np.triu(np.full((context, context), -np.inf), 1)
    for block in range(work["layers"]):
        name = f"blocks.{block}."
        y = norm(x, a[name + "norm1.weight"], a[name + "norm1.bias"])
        q, k, v = (part.reshape(batch, context, heads, width // heads).transpose(0, 2, 1, 3)
                   for part in np.split(linear(y, name + "attention.qkv"), 3, axis=-1))
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(width // heads) + future
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        y = (scores / scores.sum(-1, keepdims=True)) @ v
        x = x + linear(y.transpose(0, 2, 1, 3).reshape(batch, context, width), name + "attention.projection")
        y = linear(norm(x, a[name + "norm2.weight"], a[name + "norm2.bias"]), name + "mlp.expand")
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, name + "mlp.contract")
    logits = norm(x, a["norm.weight"], a["norm.bias"]) @ a["embedding.token" if work["tie"] else "head.weight"].T
    logits -= logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return float((np.log(np.exp(logits).sum(-1)) - chosen).mean())


def check_rates(work):
    """Warm-up, then a fall to a tenth of the peak."""
    rates = work["learning_rates"]
    peak = rates.index(max(rates))
    assert len(rates) == work["steps"] and all(0 < rate <= 1 for rate in rates), rates
    assert rates[:peak + 1] == sorted(rates[:peak + 1]) and rates[peak:] == sorted(rates[peak:], reverse=True), rates
    assert len(rates) < 20 or max(rates) / rates[-1] > 5, rates


def check(work, expect, masked):
    """Checks the work order; returns the loss of the initial network on the first batch."""
    for key, value in expect.get("order", {}).items():
        assert work[key] == value, f"{key} is {work[key]!r}, not {value!r}"
    for key, low, high in (("beta1", 0.5, 1), ("beta2", 0.5, 1), ("weight_decay", 0, 1), ("clip", 0, 100),
                           ("threads", 1, 1024), ("micro_batch", 1, work["global_batch"])):
        assert low <= work[key] <= high, (key, work[key])
    assert work["dtype"] in ("fp32", "bf16") and work["device"] in ("cpu", "cuda")
    assert work["global_batch"] % work["micro_batch"] == 0 and work["width"] % work["heads"] == 0
    check_rates(work)
    tokens = read_tokens(work, expect.get("text"))
    starts = np.fromfile(work["windows"], dtype="<i8")
    assert starts.size == work["steps"] * work["global_batch"], starts.size
    assert 0 <= starts.min() and starts.max() + work["context"] + 1 <= tokens["training"].size, (starts.min(), starts.max())
    assert np.unique(starts).size > starts.size / 2, "windows repeat"
    assert (work["eval_batches"] * work["global_batch"]) * work["context"] < tokens["validation"].size
    dense, pruned = (read_weights(work[key], work) for key in ("weights", "masked_weights"))
    check_initial(dense, work)
    check_pruned(pruned, dense, work)
    batch = np.stack([tokens["training"][s:s + work["context"] + 1] for s in starts[:work["global_batch"]]])
    return loss_of(pruned if masked else dense, work, batch.astype(np.int64))


def record(work, first_loss, what="well"):
    steps = work["steps"] - (1 if what == "short" else 0)
    seconds = [0.5] + [0.01] * (steps - 1)  # the first one compiles
    losses = [first_loss] + [4.0 - 0.01 * i for i in range(1, steps)]
    return {"system": "Fake 1.0", "step_seconds": seconds, "losses": losses,
            "evaluations": [[steps // 2, 4.0], [steps, 3.0]], "peak_rss": [2**20, 3 * 2**20], "device_peak": 0,
            "state_bytes": 1000, "sent_bytes": [2000] * steps, "sent_by": 2}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what")
    p.add_argument("--expect")
    p.add_argument("--masked", action="store_true")
    p.add_argument("--work", required=True)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    with open(a.work) as file:
        work = json.load(file)
    expect = {}
    if a.expect:
        with open(a.expect) as file:
            expect = json.load(file)
    loss = check(work, expect, a.masked)
    if a.what == "crash":
        print("Traceback (most recent call last):\nValueError: the fake rival has fallen over", file=sys.stderr)
        sys.exit(3)
    if a.what == "hang":
        print("the fake rival hangs", flush=True)
        time.sleep(600)
    if a.what == "nothing":
        sys.exit(0)
    with open(a.out, "w") as file:
        json.dump(record(work, loss, a.what), file)


if __name__ == "__main__":
    main()
