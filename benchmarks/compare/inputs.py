"""The common inputs of all systems of a comparison, made once and kept under OUT/inputs: tokens, the sequences of each
step, and initial weights, dense and pruned, from one Espalier checkpoint each.

Sequences follow Espalier's rule (src/core/rng.h: Philox 4x32-10 of Salmon et al. 2011, keyed by seed and stream,
counter: step and place in the batch), implemented again here. Equal loss curves verify it.
"""
import array
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

from contenders import MIN_LR, micro_batch, model_settings, optimizer_settings

MASK64, MASK32 = 2**64 - 1, 2**32 - 1
DATA_ORDER = 0x64617461  # the stream of data order


def philox(key, high, low):
    c = [low & MASK32, low >> 32, high & MASK32, high >> 32]
    k0, k1 = key & MASK32, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & MASK32, (p0 >> 32) ^ c[3] ^ k1, p0 & MASK32]
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c


def mix(seed, stream):
    z = (seed + 0x9E3779B97F4A7C15 * (stream + 1)) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def window_start(seed, step, place, bound):
    """The first token, below `bound`, of sequence `place` of the batch of `step`."""
    draw = philox(mix(seed, DATA_ORDER), step, place)
    return ((draw[1] << 32 | draw[0]) * bound) >> 64


def learning_rates(preset, lr):
    """Of each step: linear warm-up to lr, then a cosine to lr * MIN_LR at the last one."""
    rates, warmup = [], preset["warmup"]
    for step in range(preset["steps"]):
        if step < warmup:
            rates.append(lr * (step + 1) / warmup)
        else:
            done = min((step - warmup) / max(preset["steps"] - warmup, 1), 1)
            rates.append(lr * (MIN_LR + (1 - MIN_LR) * 0.5 * (1 + math.cos(math.pi * done))))
    return rates


def _numbers(kind, values, path):
    numbers = array.array(kind)
    numbers.extend(values)
    if sys.byteorder == "big":
        numbers.byteswap()
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(numbers.tobytes())
    temporary.rename(path)


class Inputs:
    """tokens (uint16 file), vocabulary, count; `windows`, `weights` and `order` make the rest. Raises RuntimeError."""

    def __init__(self, folder, preset, text, program):
        self.folder, self.preset, self.program = pathlib.Path(folder), preset, program
        self.folder.mkdir(parents=True, exist_ok=True)
        text = pathlib.Path(text)
        if text.suffix == ".bin":  # tokens already
            self.tokens, self.count = text.resolve(), text.stat().st_size // 2
            self.vocabulary = preset["vocabulary"]
            if not self.vocabulary:
                raise RuntimeError(f"{text}: this preset has no vocabulary for token files; give it a text")
        else:
            data = text.read_bytes()
            present = sorted(set(data))
            table = bytes(present.index(b) if b in present else 0 for b in range(256))
            self.tokens, self.count = self.folder / "tokens.bin", len(data)
            self.vocabulary = preset["vocabulary"] or len(present)
            if not self.tokens.exists() or self.tokens.stat().st_size != 2 * len(data):
                _numbers("H", data.translate(table), self.tokens)
        self.training = self.count - math.floor(self.count * preset["validation_fraction"])
        windows = preset["eval_batches"] * preset["global_batch"]
        if self.training <= preset["context"] or (self.count - self.training - 1) // preset["context"] < windows:
            raise RuntimeError(f"{text}: {self.count} tokens are too few for sequences of {preset['context']} and "
                               f"{windows} validation sequences; give a longer text")

    def windows(self, seed):
        path = self.folder / f"windows-{seed}.bin"
        preset = self.preset
        if not path.exists() or path.stat().st_size != 8 * preset["steps"] * preset["global_batch"]:
            _numbers("q", (window_start(seed, step, place, self.training - preset["context"])
                           for step in range(preset["steps"]) for place in range(preset["global_batch"])), path)
        return path

    def weights(self, seed, masked):
        """(checkpoint, its arrays as plain HDF5), from one training step with learning rate 0, which changes no weight."""
        stem = self.folder / f"weights-{seed}-{'masked' if masked else 'dense'}"
        checkpoint, arrays = stem.with_suffix(".checkpoint.h5"), stem.with_suffix(".h5")
        if arrays.exists() and checkpoint.exists():
            return checkpoint, arrays
        settings = {
            **model_settings(self.preset, self), **optimizer_settings(self.preset, 0.0), "optimizer.warmup_steps": 0,
            "train.steps": 1, "train.global_batch": 1,
            "train.seed": seed, "train.eval_batches": 1, "run.trace": False}
        if masked:
            settings |= {"pruning.method": "random", "pruning.sparsity": self.preset["sparsity"], "pruning.at_step": 0}
        run = stem.with_suffix(".run")
        shutil.rmtree(run, ignore_errors=True)
        self._call("train", empty_config(self.folder), "--resume", "none", "--out", run, *settings_arguments(settings))
        made, = (run / "checkpoints").glob("step-*.h5")
        partial = stem.with_suffix(".partial.h5")  # `export` writes a file if the name ends in .h5, else a folder
        self._call("export", made, "-o", partial)
        os.replace(made, checkpoint)
        os.replace(partial, arrays)
        shutil.rmtree(run)
        return checkpoint, arrays

    def _call(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("espalier failed to make the initial weights:\n" + done.stderr.strip())

    def order(self, contender, seed, threads, lr, path):
        """The work order of a rival (docs/comparison.md)."""
        preset = self.preset
        keys = ("layers", "heads", "width", "context", "tie", "global_batch", "steps", "eval_every", "eval_batches",
                "beta1", "beta2", "weight_decay", "clip", "dtype", "device", "sparsity")
        order = {
            **{key: preset[key] for key in keys}, "vocabulary": self.vocabulary, "seed": seed, "threads": threads,
            "micro_batch": micro_batch(contender, preset), "learning_rates": learning_rates(preset, lr),
            "windows": str(self.windows(seed)), "weights": str(self.weights(seed, False)[1]),
            "masked_weights": str(self.weights(seed, True)[1]),
            "training": {"file": str(self.tokens), "type": "u2", "begin": 0, "end": self.training},
            "validation": {"file": str(self.tokens), "type": "u2", "begin": self.training, "end": self.count}}
        pathlib.Path(path).write_text(json.dumps(order))


def empty_config(folder):
    """The config file that `espalier train` requires, with the default of every key."""
    path = pathlib.Path(folder) / "empty.toml"
    path.write_text("")
    return path


def settings_arguments(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
