"""convert.py PROGRAM FOLDER [--rounds N] [--layers N]: import and export of a Hugging Face model beside a copy.

Makes models of about 2 GB in FOLDER (Llama-shaped in bf16 and fp32, GPT-2-shaped in fp32, random bits), and measures
in turns: `dd conv=fsync` of the model's file, `espalier import`, `espalier export`, and of the bf16 model, pruned by
90 %, `import --zeros-are-pruned` and `export`. The files that are read are in the system's cache. Prints a table: seconds
of the fastest and the median run, MB/s of the median, its share of dd's rate, seconds of CPUs, and the largest memory of a
process.
Removes what it has made."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import time

REST = 3  # s before each command: a virtual disk is slower after it has written much
WIDTH, HIDDEN, KEYS = 2048, 5632, 256


def tensors_of(kind, layers):
    if kind == "gpt2":
        yield "transformer.wte.weight", (50257, WIDTH)
        yield "transformer.wpe.weight", (1024, WIDTH)
        for i in range(layers):
            for name in ("ln_1", "ln_2"):
                yield f"transformer.h.{i}.{name}.weight", (WIDTH,)
                yield f"transformer.h.{i}.{name}.bias", (WIDTH,)
            for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4),
                                        ("mlp.c_proj", 4, 1)):
                yield f"transformer.h.{i}.{name}.weight", (rows * WIDTH, columns * WIDTH)
                yield f"transformer.h.{i}.{name}.bias", (columns * WIDTH,)
        yield "transformer.ln_f.weight", (WIDTH,)
        yield "transformer.ln_f.bias", (WIDTH,)
        return
    yield "model.embed_tokens.weight", (32000, WIDTH)
    yield "lm_head.weight", (32000, WIDTH)
    yield "model.norm.weight", (WIDTH,)
    for i in range(layers):
        for name, rows, columns in (("self_attn.q_proj", WIDTH, WIDTH), ("self_attn.k_proj", KEYS, WIDTH),
                                    ("self_attn.v_proj", KEYS, WIDTH), ("self_attn.o_proj", WIDTH, WIDTH),
                                    ("mlp.gate_proj", HIDDEN, WIDTH), ("mlp.up_proj", HIDDEN, WIDTH),
                                    ("mlp.down_proj", WIDTH, HIDDEN)):
            yield f"model.layers.{i}.{name}.weight", (rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{i}.{name}.weight", (WIDTH,)


def config_of(kind, layers):
    if kind == "gpt2":
        return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": WIDTH, "n_head": 16,
                "n_layer": layers, "n_positions": 1024, "vocab_size": 50257}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
            "intermediate_size": HIDDEN, "num_hidden_layers": layers, "num_attention_heads": 32,
            "num_key_value_heads": KEYS * 32 // WIDTH, "max_position_embeddings": 2048, "vocab_size": 32000,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


def make(folder, kind, width, layers, density=1.0):
    """Random bits; with `density` the others of every 10 elements are zeros."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(kind, layers)))
    header, at = {}, 0
    for name, shape in tensors_of(kind, layers):
        size = width
        for extent in shape:
            size *= extent
        header[name] = {"dtype": {2: "BF16", 4: "F32"}[width], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = bytearray(os.urandom(10 * width * 200_000))
    if density < 1:
        step = round(1 / density)
        for element in range(step * (len(block) // (step * width))):
            if element % step:
                block[element * width:(element + 1) * width] = bytes(width)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = at
        while left:
            file.write(block[:min(left, len(block))])
            left -= min(left, len(block))
    return at


def timed(command):
    """Seconds, seconds of CPUs, and the largest memory in MB."""
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"exit code {child.returncode} of {' '.join(map(str, command))}")
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def measure(program, folder, label, kind, width, layers, rounds, density=1.0):
    hub, checkpoint, back, copy = (folder / name for name in ("hub", "model.h5", "back", "copy"))
    size = make(hub, kind, width, layers, density)
    steps = {"dd": ["dd", f"if={hub}/model.safetensors", f"of={copy}", "bs=4M", "conv=fsync"],
             "import": [program, "import", hub, "-o", checkpoint] + ["--zeros-are-pruned"] * (density < 1),
             "export": [program, "export", checkpoint, "-o", back]}
    outputs = {"dd": copy, "import": checkpoint, "export": back}
    found = {name: [] for name in steps}
    for number in range(rounds + 1):  # the first one warms up
        for name, command in steps.items():
            # The system gives the memory of the old output to the new one: without an old one, a virtual
            # machine first gets memory from its host, in as much time as the copy.
            remove(outputs[name])
            with open(checkpoint if name == "export" else hub / "model.safetensors", "rb") as file:
                while file.read(1 << 24):  # into the system's cache, which import leaves
                    pass
            time.sleep(REST)
            took = timed(command)
            if number > 0:
                found[name].append(took)
    columns = {name: list(zip(*runs)) for name, runs in found.items()}
    base = statistics.median(columns["dd"][0])
    for name, (seconds, cpus, memory) in columns.items():
        median = statistics.median(seconds)
        print(f"| {label} | {name} | {min(seconds):.2f} | {median:.2f} | {size / median / 1e6:.0f} | "
              f"{100 * base / median:.0f} % | {statistics.median(cpus):.2f} | {max(memory):.0f} |", flush=True)
    for path in (hub, *outputs.values()):
        remove(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=9, help="of fp32 models; 9: 2 GB")
    arguments = parser.parse_args()
    folder = arguments.folder / f"convert-{os.getpid()}"
    folder.mkdir(parents=True)
    print("| model | command | fastest, s | median, s | MB/s | of dd's rate | CPU seconds | MB of memory |\n"
          "|---|---|---|---|---|---|---|---|")
    try:
        for label, kind, width, layers, density in (
                ("Llama-shaped, bf16", "llama", 2, 2 * arguments.layers, 1.0),
                ("Llama-shaped, fp32", "llama", 4, arguments.layers, 1.0),
                ("GPT-2-shaped, fp32", "gpt2", 4, arguments.layers - 1, 1.0),
                ("Llama-shaped, bf16, 90 % zeros", "llama", 2, 2 * arguments.layers, 0.1)):
            measure(arguments.program, folder, label, kind, width, layers, arguments.rounds, density)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
