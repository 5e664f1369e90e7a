"""tensorboard_test.py ROOT PROGRAM VENV: TensorBoard's own reader reads the event files of a resumed run of two ranks.
Scalars must be those of metrics.jsonl, and histograms those of the weights in the checkpoints.

Needs TensorBoard and h5py: of the Python that TENSORBOARD_PYTHON names, or of the virtual environment VENV, which is
made by pip when it is missing. Exit code 77 (skipped) if it cannot be made."""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from python_with import restart_with

ROOT, PROGRAM, VENV = (pathlib.Path(path).absolute() for path in sys.argv[1:4])
IMPORTS = "import h5py, numpy; from tensorboard.backend.event_processing import event_accumulator"
STEPS, RESUMED = 20, 10

CONFIG = """
[model]
layers = 2
heads = 2
width = 32
context = 32
[data]
kind = "bytes"
train = ["text"]
[train]
steps = {steps}
global_batch = 8
eval_every = 5
eval_batches = 2
checkpoint_every = 5
keep_checkpoints = 9
[optimizer]
lr = 3e-3
warmup_steps = 5
[pruning]
method = "magnitude"
sparsity = 0.8
at_step = 8
[sparse]
storage = "sparse"
[run]
out = "run"
threads = 1
tensorboard = true
"""

TAGS = {
    "loss": "train/loss", "lr": "train/learning_rate", "grad_norm": "train/gradient_norm",
    "val_loss": "validation/loss", "tokens_per_s": "speed/tokens_per_s", "step_ms": "speed/step_ms",
    "compute_ms": "speed/compute_ms", "wait_ms": "speed/wait_ms", "collective_ms": "speed/collective_ms",
    "update_ms": "speed/update_ms", "comm_bytes_sent": "communication/bytes_sent",
    "allreduce_bytes": "communication/allreduce_bytes", "p2p_bytes": "communication/p2p_bytes",
    "sparsity": "masks/sparsity",
}


def train(folder, *arguments):
    command = [str(ROOT / "scripts" / "mpirun.sh"), "2", str(PROGRAM), "train", "c.toml", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def read(folder):
    from tensorboard.backend.event_processing import event_accumulator as reader
    accumulator = reader.EventAccumulator(str(folder / "run" / "tensorboard"),
                                          size_guidance={reader.SCALARS: 0, reader.HISTOGRAMS: 0})
    return accumulator.Reload()


def check_scalars(events, lines):
    import numpy
    seen = set()
    for key, tag in TAGS.items():
        want = [(line["step"], float(numpy.float32(line[key]))) for line in lines if key in line]
        assert [(event.step, event.value) for event in events.Scalars(tag)] == want, (tag, want, events.Scalars(tag))
        seen.add(tag)
    assert {key for line in lines for key in line} == {"step", *TAGS}, "a number of metrics.jsonl is not compared"
    others = {tag for tag in events.Tags()["scalars"] if tag not in seen}
    assert all(tag.startswith(("density/", "memory/")) for tag in others), others


def check_weights(events, checkpoints):
    import h5py
    import numpy
    tags = events.Tags()["histograms"]
    for step in range(5, STEPS + 1, 5):
        with h5py.File(checkpoints / f"step-{step:06}.h5") as file:
            assert {f"weights/{name}" for name in file["params"]} == set(tags), tags
            for name, parameter in file["params"].items():
                values = parameter["values"][:].astype("f8")
                found, = [event for event in events.Histograms(f"weights/{name}") if event.step == step]
                histogram = found.histogram_value
                assert histogram.num == values.size == sum(histogram.bucket), (name, step)
                assert (histogram.min, histogram.max) == (values.min(), values.max()), (name, step)
                assert numpy.isclose(histogram.sum, values.sum(), rtol=1e-12, atol=1e-12), (name, step)
                assert numpy.isclose(histogram.sum_squares, (values ** 2).sum(), rtol=1e-12), (name, step)
                # At zero all definitions of bins agree: how many weights are negative.
                negative = sum(count for limit, count in zip(histogram.bucket_limit, histogram.bucket) if limit <= 0)
                small = [count for limit, count in zip(histogram.bucket_limit, histogram.bucket) if limit > 0][0]
                assert negative <= (values < 0).sum() <= negative + small, (name, step)
                density = [event.value for event in events.Scalars(f"density/{name}") if event.step == step] \
                    if f"density/{name}" in events.Tags()["scalars"] else []
                size = int(numpy.prod(parameter.attrs["shape"]))
                assert density == [float(numpy.float32(values.size / size))] or (not density and values.size == size), \
                    (name, step, density)
    assert any(tag.startswith("density/") for tag in events.Tags()["scalars"])


def main():
    restart_with(IMPORTS, ["tensorboard", "h5py"], VENV, "TENSORBOARD_PYTHON")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        words = random.Random(1)
        (folder / "text").write_text(" ".join(words.choice("pear apple quince plum wall".split()) for _ in range(9000)))
        (folder / "c.toml").write_text(CONFIG.format(steps=STEPS))
        train(folder)
        first = read(folder)
        checkpoint = f"run/checkpoints/step-{RESUMED:06}.h5"
        train(folder, "--resume", checkpoint)
        files = sorted((folder / "run" / "tensorboard").iterdir())
        assert len(files) == 2, files
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        events = read(folder)
        check_scalars(events, lines)
        check_weights(events, folder / "run" / "checkpoints")
        assert [event.value for event in first.Scalars("train/loss")] == \
            [event.value for event in events.Scalars("train/loss")], "a resumed run has the bits of a whole one"
    print("TensorBoard reads what metrics.jsonl and the checkpoints hold")


main()
