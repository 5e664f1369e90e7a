"""Shared by published.py (Megatron-LM) and published_v100.py (SAMO, AxoNN): plans of published runs.

A row is a dict: width, layers, heads, context, vocabulary, batch, micro, stages, devices; and, where
they differ from the defaults of `predicted_plan`, tensor, virtual, recompute, sequence, order (of
ranks), reduction, settings.
"""
import functools
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor


def flops_of(width, layers, context, vocabulary, batch):
    """Of a step with full recomputation: Narayanan et al., SC 2021, equation 3."""
    return (96 * batch * context * layers * width**2 *
            (1 + context / (6 * width) + vocabulary / (16 * layers * width)))


@functools.lru_cache(maxsize=None)
def _plan(program, machine_text, config, options):
    with (tempfile.NamedTemporaryFile("w", suffix=".toml") as file,
          tempfile.NamedTemporaryFile("w", suffix=".toml") as machine):
        file.write(config)
        file.flush()
        machine.write(machine_text)
        machine.flush()
        try:
            done = subprocess.run([program, "plan", file.name, "--machine", machine.name, "--json", *options],
                                  capture_output=True, text=True)
        except OSError as error:
            sys.exit(f"{program}: {error.strerror}; give the path of the program espalier")
    if not done.stdout:  # one that does not fit by the planner's count of memory has an error, too
        sys.exit(f"{program} plan {' '.join(options)}: {done.stderr.strip()}\nThe config was:{config}")
    return json.loads(done.stdout)["plans"][0]


def predicted_plan(program, machine_text, row):
    """The plan of a row by `espalier plan`, as its --json prints it. Equal calls are made once."""
    virtual = row.get("virtual", 1)
    config = f"""
model = {{kind = "gpt", layers = {row["layers"]}, heads = {row["heads"]}, width = {row["width"]},
context = {row["context"]}, vocabulary = {row["vocabulary"]}, tie_embeddings = true}}
data = {{kind = "tokens", token_type = "uint16", train = ["none.bin"]}}
train = {{dtype = "fp16", steps = 100, global_batch = {row["batch"]}, micro_batch = {row["micro"]},
recompute = "{row.get("recompute", "full")}", eval_every = 0}}
parallel = {{pipeline = {row["stages"]}, schedule = "{f"interleaved:{virtual}" if virtual > 1 else "1f1b"}",
rank_order = "{row.get("order", "replicas_first")}",
reduction = "{row.get("reduction", "sra")}"}}
run = {{backend = "cuda"}}
""".replace(",\n", ", ")
    options = ["--ranks", str(row["devices"]), "--tensor", str(row.get("tensor", 1))]
    if row.get("sequence"):
        options.append("--sequence-parallel")
    for setting in row.get("settings", ()):
        options += ["--set", setting]
    return _plan(program, machine_text, config, tuple(options))


def read_machine(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}; give a machine file, as machines/*.toml")


def with_values(text, values):
    """The text of a machine file with these numbers. Ends with a message if it lacks one of the keys."""
    for key, value in values.items():
        text, count = re.subn(rf"^{key} = [^ #\n]*", f"{key} = {value:g}", text, flags=re.M)
        if count != 1:
            sys.exit(f"the machine file has {key} {count} times; a fit needs it once")
    return text


def in_parallel(function, items):
    """[function(item) for item in items]: two programs at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, items))


def least(cost, points):
    """The point of least cost, and that cost."""
    costs = in_parallel(cost, points)
    best = min(range(len(points)), key=costs.__getitem__)
    return points[best], costs[best]
