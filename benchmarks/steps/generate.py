#!/usr/bin/env python3
"""Tokens/s of `espalier sample`, dense and pruned, in bf16, beside transformers, and the share of the memory bound.

    generate.py [--shape gpt2|llama] [--rounds 5] [--tokens 64] [--peer-tokens 16] [--prompt 16] [--batches 1,8]
                [--threads 2] [--ways dense,0.5,0.9] [--torch PYTHON] [--program build/src/cli/espalier] [--folder DIR]
                [--llama-bench PROGRAM]

Makes checkpoints with random weights: dense, and pruned by magnitude to each sparsity. Each round runs every way at
every batch, then transformers (a python that has torch, transformers and h5py) with a model of the same shape, greedy,
with its key-value cache. With --llama-bench (of llama.cpp; the python needs gguf) llama.cpp generates at batch 1, too,
from a bf16 file of the same shape with random weights. A number is of new tokens alone: the prompt is read before. Prints a line of JSON for each
measurement, then a table of medians over the rounds.

Bound: bytes that a new token must read / rate of memory. The bytes are those of all matrices but embeddings that are
looked up (kept values; sparse also 2 for the column of each), and of keys and values of half of the new tokens and the
prompt. The rate is that of a sum over 512 MiB by as many threads, in the same round.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHAPES = {
    "gpt2": {"kind": "gpt", "layers": 12, "heads": 12, "kv_heads": 12, "width": 768, "context": 1024,
             "vocabulary": 50257, "mlp": 3072},
    "llama": {"kind": "decoder", "layers": 24, "heads": 14, "kv_heads": 2, "width": 896, "context": 1024,
              "vocabulary": 151936, "mlp": 4864},
}

PEERS = ("transformers bf16", "transformers fp32")
LLAMA = "llama.cpp bf16"
PEER = r'''
import json, sys, time
import torch
shape, tokens, prompt, batch, threads, dtype = json.loads(sys.argv[1])
torch.set_num_threads(threads)
torch.manual_seed(1)
if shape["kind"] == "gpt":
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(n_layer=shape["layers"], n_head=shape["heads"], n_embd=shape["width"],
                                       n_positions=shape["context"], vocab_size=shape["vocabulary"]))
else:
    from transformers import Qwen2Config, Qwen2ForCausalLM
    model = Qwen2ForCausalLM(Qwen2Config(
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
        hidden_size=shape["width"], intermediate_size=shape["mlp"], max_position_embeddings=shape["context"],
        vocab_size=shape["vocabulary"], tie_word_embeddings=True))
model = model.to(torch.bfloat16 if dtype == "bf16" else torch.float32).eval()
with torch.inference_mode():
    ids = torch.randint(shape["vocabulary"], (batch, prompt))
    out = model(ids, use_cache=True)
    times = []
    for _ in range(tokens):
        begin = time.perf_counter()
        next_ids = out.logits[:, -1].argmax(-1, keepdim=True)
        out = model(next_ids, past_key_values=out.past_key_values, use_cache=True)
        times.append(time.perf_counter() - begin)
print(json.dumps({"tokens_per_second": batch * (tokens - 2) / sum(times[2:])}))
'''

RATE = r'''
import json, sys, time
import torch
torch.set_num_threads(int(sys.argv[1]))
x = torch.ones(128 << 20)
best = 1e9
for _ in range(12):
    begin = time.perf_counter()
    x.sum()
    best = min(best, time.perf_counter() - begin)
print(json.dumps({"bytes_per_second": x.numel() * 4 / best}))
'''

ARRAYS = r'''
import json, sys
import h5py, numpy as np
path, shape = sys.argv[1], json.loads(sys.argv[2])
draw = np.random.default_rng(1)
C, F, V, K = shape["width"], shape["mlp"], shape["vocabulary"], shape["kv_heads"] * shape["width"] // shape["heads"]
normal = lambda *extents: draw.standard_normal(extents, dtype=np.float32) * 0.02
arrays = {"embedding.token": normal(V, C), "norm.weight": np.ones(C, np.float32)}
def linear(name, rows, cols, bias):
    arrays[name + ".weight"] = normal(rows, cols)
    if bias:
        arrays[name + ".bias"] = np.zeros(rows, np.float32)
gpt = shape["kind"] == "gpt"
if gpt:
    arrays["embedding.position"] = normal(shape["context"], C)
    arrays["norm.bias"] = np.zeros(C, np.float32)
for i in range(shape["layers"]):
    block = f"blocks.{i}."
    for norm in ("norm1", "norm2"):
        arrays[block + norm + ".weight"] = np.ones(C, np.float32)
        if gpt:
            arrays[block + norm + ".bias"] = np.zeros(C, np.float32)
    if gpt:
        linear(block + "attention.qkv", 3 * C, C, True)
        linear(block + "mlp.expand", F, C, True)
    else:
        for name, rows in (("query", C), ("key", K), ("value", K)):
            linear(block + "attention." + name, rows, C, True)
        linear(block + "mlp.gate", F, C, False)
        linear(block + "mlp.up", F, C, False)
    linear(block + "attention.projection", C, C, gpt)
    linear(block + "mlp.contract", C, F, gpt)
with h5py.File(path, "w") as file:
    for name, values in arrays.items():
        file.create_dataset(name.replace(".", "/"), data=values)
'''


GGUF = r'''
import json, sys
import gguf, numpy as np
path, shape = sys.argv[1], json.loads(sys.argv[2])
draw = np.random.default_rng(1)
C, F, V, K = shape["width"], shape["mlp"], shape["vocabulary"], shape["kv_heads"] * shape["width"] // shape["heads"]
gpt = shape["kind"] == "gpt"
out = gguf.GGUFWriter(path, "gpt2" if gpt else "qwen2")
out.add_context_length(shape["context"])
out.add_embedding_length(C)
out.add_block_count(shape["layers"])
out.add_feed_forward_length(F)
out.add_head_count(shape["heads"])
out.add_head_count_kv(shape["kv_heads"])
out.add_layer_norm_eps(1e-5) if gpt else out.add_layer_norm_rms_eps(1e-6)
out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
out.add_tokenizer_model("no_vocab")
out.add_vocab_size(V)
def matrix(name, rows, cols):
    bf16 = gguf.GGMLQuantizationType.BF16
    numbers = draw.standard_normal((rows, cols), dtype=np.float32) * 0.02
    out.add_tensor(name + ".weight", gguf.quants.quantize(numbers, bf16), raw_dtype=bf16)
def linear(name, rows, cols, bias):
    matrix(name, rows, cols)
    if bias:
        out.add_tensor(name + ".bias", np.zeros(rows, np.float32))
def norm(name):
    out.add_tensor(name + ".weight", np.ones(C, np.float32))
    if gpt:
        out.add_tensor(name + ".bias", np.zeros(C, np.float32))
matrix("token_embd", V, C)
if gpt:
    out.add_tensor("position_embd.weight", np.zeros((shape["context"], C), np.float32))
norm("output_norm")
for i in range(shape["layers"]):
    block = f"blk.{i}."
    norm(block + "attn_norm")
    norm(block + "ffn_norm")
    if gpt:
        linear(block + "attn_qkv", 3 * C, C, True)
    else:
        for name, rows in (("attn_q", C), ("attn_k", K), ("attn_v", K)):
            linear(block + name, rows, C, True)
        linear(block + "ffn_gate", F, C, False)
    linear(block + "attn_output", C, C, gpt)
    linear(block + "ffn_up", F, C, gpt)
    linear(block + "ffn_down", C, F, gpt)
out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()
'''


def config_of(shape, threads):
    model = {"kind": shape["kind"], "layers": shape["layers"], "heads": shape["heads"], "width": shape["width"],
             "context": shape["context"], "vocabulary": shape["vocabulary"], "tie_embeddings": True}
    if shape["kind"] == "decoder":
        model |= {"family": "qwen2", "kv_heads": shape["kv_heads"], "mlp_width": shape["mlp"]}
    text = lambda value: json.dumps(value) if not isinstance(value, bool) else str(value).lower()
    lines = ["[model]"] + [f"{key} = {text(value)}" for key, value in model.items()]
    return "\n".join(lines + ["[data]", 'kind = "tokens"', 'train = ["none.bin"]', "[train]", 'dtype = "bf16"', "[run]",
                              f"threads = {threads}", ""])


def bytes_per_token(shape, way, tokens_read, batch):
    """Of a decoding pass over `batch` sequences, divided by them."""
    width, mlp, layers = shape["width"], shape["mlp"], shape["layers"]
    keys = shape["kv_heads"] * width // shape["heads"]
    mlps = 2 if shape["kind"] == "gpt" else 3
    prunable = layers * (width * (2 * width + 2 * keys) + mlps * width * mlp)
    kept = prunable * (1 - float(way)) if way != "dense" else prunable
    weights = kept * (2 if way == "dense" else 4) + 2 * shape["vocabulary"] * width
    return weights / batch + 2 * 2 * layers * keys * tokens_read


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:4])} … failed:\n{done.stderr}")
    return done.stdout


def prepare(options, shape, folder):
    config = os.path.join(folder, "config.toml")
    with open(config, "w") as file:
        file.write(config_of(shape, options.threads))
    arrays, dense = os.path.join(folder, "arrays.h5"), os.path.join(folder, "dense.h5")
    files = {"dense": dense}
    if not os.path.exists(dense):
        output([options.torch, "-c", ARRAYS, arrays, json.dumps(shape)])
        output([options.program, "import", arrays, "-o", dense, "--config", config])
        os.remove(arrays)
    for way in options.ways:
        if way != "dense":
            files[way] = os.path.join(folder, f"pruned-{way}.h5")
            if not os.path.exists(files[way]):
                output([options.program, "prune", dense, "-o", files[way], "--method", "magnitude", "--sparsity", way])
    if options.llama_bench:
        files[LLAMA] = os.path.join(folder, "llama.gguf")
        if not os.path.exists(files[LLAMA]):
            output([options.torch, "-c", GGUF, files[LLAMA], json.dumps(shape)])
    return files


def llama_cpp(options, file):
    command = [options.llama_bench, "-m", file, "-t", str(options.threads), "-p", "0", "-n", str(options.tokens), "-d",
               str(options.prompt), "-r", "2", "-o", "json"]
    return json.loads(output(command))[0]["avg_ts"]


def sample(options, shape, file, batch):
    command = [options.program, "sample", file, "--tokens", str(options.tokens), "--temperature", "0", "--json"]
    for sequence in range(batch):
        numbers = [(1 + 7919 * (sequence * options.prompt + i)) % shape["vocabulary"] for i in range(options.prompt)]
        command += ["--prompt", " ".join(map(str, numbers))]
    return json.loads(output(command))["tokens_per_second"]


def measure(options, shape, files):
    results = []
    for round_number in range(options.rounds):
        rate = json.loads(output([options.torch, "-c", RATE, str(options.threads)]))["bytes_per_second"]
        for batch in options.batches:
            for way in options.ways + list(PEERS) + ([LLAMA] if options.llama_bench and batch == 1 else []):
                if way == LLAMA:
                    speed = llama_cpp(options, files[way])
                    share = bytes_per_token(shape, "dense", options.prompt + options.tokens / 2, batch) * speed / rate
                elif way in PEERS:
                    tokens = min(options.tokens, options.peer_tokens)
                    about = [shape, tokens, options.prompt, batch, options.threads, way.split()[1]]
                    speed = json.loads(output([options.torch, "-c", PEER, json.dumps(about)]))["tokens_per_second"]
                    share = bytes_per_token(shape, "dense", options.prompt + tokens / 2, batch) * speed / rate
                    share *= 2 if way.endswith("fp32") else 1
                else:
                    speed = sample(options, shape, files[way], batch)
                    share = bytes_per_token(shape, way, options.prompt + options.tokens / 2, batch) * speed / rate
                results.append({"round": round_number, "batch": batch, "way": way, "tokens_per_second": round(speed, 2),
                                "rate_gb_per_s": round(rate / 1e9, 2), "share_of_bound": round(share, 3)})
                print(json.dumps(results[-1]), flush=True)
    return results


def table(options, results):
    print("\n| batch | way | tokens/s | share of the bound | ratio to transformers bf16, fp32, llama.cpp |")
    print("|---|---|---|---|---|")
    for batch in options.batches:
        llama = [LLAMA] if options.llama_bench and batch == 1 else []
        of = lambda way, key: [r[key] for r in results if r["batch"] == batch and r["way"] == way]
        for way in options.ways + list(PEERS) + llama:
            speeds = of(way, "tokens_per_second")
            ratios = [statistics.median(a / b for a, b in zip(speeds, of(peer, "tokens_per_second")))
                      for peer in list(PEERS) + llama]
            print(f"| {batch} | {way} | {statistics.median(speeds):.1f} | "
                  f"{100 * statistics.median(of(way, 'share_of_bound')):.0f} % | "
                  f"{', '.join(f'{ratio:.1f}' for ratio in ratios)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--peer-tokens", type=int, default=16, help="tokens of transformers, which is slow")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--batches", type=lambda text: [int(b) for b in text.split(",")], default=[1, 8])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["dense", "0.5", "0.9"])
    parser.add_argument("--torch", default=sys.executable)
    parser.add_argument("--program", default=os.path.join(ROOT, "build/src/cli/espalier"))
    parser.add_argument("--llama-bench", help="program llama-bench of llama.cpp")
    parser.add_argument("--folder", help="keeps the checkpoints there; default: a temporary one")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        os.makedirs(folder, exist_ok=True)
        table(options, measure(options, shape, prepare(options, shape, folder)))


if __name__ == "__main__":
    main()
