"""tutorial_test.py ROOT PROGRAM VENV: runs the commands of docs/tutorial.md, in order.

Code blocks `sh` are run by bash, `python` by the Python of VENV; a block `toml` becomes the file that the line before
it names. In place of the published model there is a tiny random one of the same family, made by `transformers`, with a
tokenizer trained on pages of ROOT.

Needs `transformers` and `torch`: of the Python that TRANSFORMERS_PYTHON names, or of the virtual environment VENV, which
is made by pip when it is missing. Exit code 77 (skipped) if it cannot be made."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from python_with import restart_with

ROOT, PROGRAM, VENV = (pathlib.Path(path).absolute() for path in sys.argv[1:4])


def make_model(folder, text):
    """A Qwen 2 model of 2 layers with a tokenizer of 1,000 tokens."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    torch.manual_seed(1)
    config = Qwen2Config(vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=160,
                         num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=2048, tie_word_embeddings=True)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)


def blocks(page):
    """(kind, text, the file that the line before names) of each code block of a page."""
    for match in re.finditer(r"(?:^`([\w.]+)`:\n\n)?^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield match[2], match[3], match[1]


def main():
    restart_with("import torch, transformers", ["torch", "transformers<5", "numpy"], VENV, "TRANSFORMERS_PYTHON")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md")))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_model(folder / "hub" / "Qwen2.5-0.5B", text)
        (folder / "text.txt").write_text(text, encoding="utf-8")
        (folder / "test.txt").write_text(text[-20000:], encoding="utf-8")
        ranks = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        environment = {**os.environ, **ranks, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
        counts = {"sh": 0, "python": 0, "toml": 0}
        for kind, code, file in blocks((ROOT / "docs/tutorial.md").read_text(encoding="utf-8")):
            counts[kind] += 1
            if kind == "toml":
                (folder / file).write_text(code, encoding="utf-8")
                continue
            command = ["bash", "-euxo", "pipefail", "-c", code] if kind == "sh" else [sys.executable, "-c", code]
            done = subprocess.run(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=300)
            print(done.stdout, flush=True)
            if done.returncode:
                sys.exit(f"exit code {done.returncode} of:\n{code}")
        if counts != {"sh": 8, "python": 1, "toml": 1}:
            sys.exit(f"docs/tutorial.md has other blocks than expected: {counts}")
        compare(folder)


def compare(folder):
    """The exported model has the zeros of the masks, and other weights than the original."""
    from transformers import AutoModelForCausalLM
    before = AutoModelForCausalLM.from_pretrained(folder / "hub" / "Qwen2.5-0.5B").state_dict()
    after = AutoModelForCausalLM.from_pretrained(folder / "hub" / "my-model").state_dict()
    if before.keys() != after.keys():
        sys.exit(f"names differ: {sorted(before.keys() ^ after.keys())}")
    for name, values in after.items():
        zeros = (values == 0).float().mean().item()
        projection = name.endswith("_proj.weight")
        if projection and not 0.88 < zeros < 0.92:
            sys.exit(f"{name}: {zeros:.1%} are zeros")
        if not projection and zeros > 0.05 and "bias" not in name:
            sys.exit(f"{name} is not prunable and has {zeros:.1%} zeros")
        if projection and (before[name] == values)[values != 0].all():
            sys.exit(f"{name} was not trained")
    config = json.loads((folder / "hub" / "my-model" / "config.json").read_text(encoding="utf-8"))
    if config["architectures"] != ["Qwen2ForCausalLM"]:
        sys.exit(f"config.json: architectures = {config['architectures']}")


main()
