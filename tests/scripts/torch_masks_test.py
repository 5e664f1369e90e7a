#!/usr/bin/env python3
"""torch_masks_test.py ROOT PROGRAM VENV [SEED]: models that torch.nn.utils.prune pruned, by way of HDF5 files.

Models like nanoGPT (with and without biases), GPT-2 and Llama of transformers, VGG (with and without batch norm) and
ResNet of torchvision, with random weights, are pruned by several methods of torch, saved by h5py by several conventions,
and imported: masks must be equal, and the loss that of torch's masked model to 1e-3. Then the scripts of
docs/bring-your-masks.md that need torch or scipy.

Needs the libraries below, of the Python that TORCH_MASKS_PYTHON names, or of the virtual environment VENV, which pip
makes when it is missing. Exit code 77 (skipped) if it cannot be made.
"""
import pathlib
import random
import subprocess
import sys
import tempfile

from python_with import restart_with

restart_with("import torch, transformers, torchvision, h5py, scipy",
             ["torch", "transformers", "torchvision", "h5py", "scipy"], sys.argv[3], "TORCH_MASKS_PYTHON")

import h5py
import numpy as np
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
import transformers

from masks_in_hdf5 import Program, blocks, checkpoint_arrays, network

ROOT, PROGRAM = (pathlib.Path(path).absolute() for path in sys.argv[1:3])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 and sys.argv[4].isdigit() else 0
PAGE = ROOT / "docs" / "bring-your-masks.md"
CONTEXT, VOCABULARY, CLASSES = 16, 96, 10


class NanoBlock(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.attn.c_proj = nn.Linear(width, width, bias=bias)
        self.mlp.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.mlp.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2)
                   for part in self.attn.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.attn.c_proj(y)
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate=self.gelu))


class NanoGpt(nn.Module):
    """The module names of nanoGPT; `gelu`: the form of the config."""

    def __init__(self, layers=2, heads=2, width=32, bias=True, tied=True, vocabulary=VOCABULARY):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(CONTEXT, width),
            "h": nn.ModuleList([NanoBlock(width, heads, bias) for _ in range(layers)]),
            "ln_f": nn.LayerNorm(width, bias=bias)})
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.transformer.wte.weight
        for block in self.transformer.h:
            block.gelu = "tanh"

    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def vgg(norm):
    layers, channels = [], 3
    for out in (16, "M", 24, "M", 24):
        if out == "M":
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layers += [nn.Conv2d(channels, out, 3, padding=1)] + ([nn.BatchNorm2d(out)] if norm else []) + [nn.ReLU(True)]
        channels = out
    model = torchvision.models.VGG(nn.Sequential(*layers), num_classes=CLASSES, init_weights=False)
    model.classifier = nn.Sequential(nn.Linear(channels * 49, 40), nn.ReLU(True), nn.Dropout(), nn.Linear(40, 40),
                                     nn.ReLU(True), nn.Dropout(), nn.Linear(40, CLASSES))
    return model


def randomize(model):
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            fan = parameter[0].numel()
            nn.init.normal_(parameter, std=min(0.3, 1.5 / fan**0.5) if parameter.dim() == 4 else 0.2)
        else:
            nn.init.normal_(parameter, mean=1.0 if "weight" in name else 0.0, std=0.2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)


GPT = """[model]
kind = "gpt"
layers = 2
heads = 2
width = 32
context = 16
tie_embeddings = {tied}
"""
TOKENS = '[data]\nkind = "tokens"\ntrain = ["t.bin"]\n'
IMAGES = '[data]\nkind = "images"\ntrain = ["images", "labels"]\nvalidation = ["v-images", "v-labels"]\n'


def cases():
    """(name, model, config, whether a module's weight is pruned by name)."""
    def in_blocks(name):
        return "lm_head" not in name
    for bias in (True, False):
        for tied in (True, False):
            yield (f"nanogpt bias={bias} tied={tied}", NanoGpt(bias=bias, tied=tied),
                   GPT.format(tied=str(tied).lower()) + TOKENS, in_blocks)
    gpt2 = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2)
    yield "transformers gpt2", transformers.GPT2LMHeadModel(gpt2), GPT.format(tied="true") + TOKENS, in_blocks
    for tied in (False, True):
        llama = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=56,
                                         num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                         max_position_embeddings=CONTEXT, tie_word_embeddings=tied)
        config = ('[model]\nkind = "decoder"\nfamily = "llama:norm_epsilon=1e-6"\nlayers = 2\nheads = 4\nkv_heads = 2\nwidth = 32\n'
                  f'mlp_width = 56\ncontext = 16\ntie_embeddings = {str(tied).lower()}\n')
        yield f"transformers llama tied={tied}", transformers.LlamaForCausalLM(llama), config + TOKENS, in_blocks
    for norm in (False, True):
        word = " norm" if norm else ""
        layers = [f"conv 16 3{word}", "max 2", f"conv 24 3{word}", "max 2", f"conv 24 3{word}", "linear 40", "linear 40"]
        config = f'[model]\nkind = "vision"\nimage = [28, 28, 3]\nclasses = 10\nnetwork = {layers}\n'.replace("'", '"')
        yield f"torchvision vgg norm={norm}", vgg(norm), config + IMAGES, lambda name: name != "classifier.6"
    for block, sizes, layers in (
            ("basic", [1, 1, 1, 1], ["basic 64", "basic 128 stride 2", "basic 256 stride 2", "basic 512 stride 2"]),
            ("bottleneck", [1, 2, 1, 1], ["bottleneck 256", "bottleneck 512 stride 2", "bottleneck 512",
                                          "bottleneck 1024 stride 2", "bottleneck 2048 stride 2"])):
        kind = torchvision.models.resnet.BasicBlock if block == "basic" else torchvision.models.resnet.Bottleneck
        layers = ["conv 64 7 stride 2 norm", "max 3 stride 2 padding 1", *layers, "mean"]
        config = f'[model]\nkind = "vision"\nimage = [28, 28, 3]\nclasses = 10\nnetwork = {layers}\n'.replace("'", '"')
        yield (f"torchvision resnet {block}", torchvision.models.ResNet(kind, sizes, num_classes=CLASSES),
               config + IMAGES, lambda name: name != "fc")


def prune_randomly(model, prunes, draw):
    kinds = (nn.Linear, nn.Conv2d, transformers.pytorch_utils.Conv1D)
    chosen = [(module, "weight") for name, module in model.named_modules() if isinstance(module, kinds) and prunes(name)]
    if draw.random() < 0.3:
        prune.global_unstructured(chosen, prune.L1Unstructured, amount=draw.uniform(0.3, 0.9))
    else:
        for module, name in chosen:
            kind = draw.choice(["l1", "random", "rows", "twice"])
            if kind == "rows":
                prune.ln_structured(module, name, amount=0.3, n=2, dim=draw.choice([0, 1]))
            else:
                (prune.random_unstructured if kind == "random" else prune.l1_unstructured)(module, name, amount=0.6)
            if kind == "twice":
                prune.random_unstructured(module, name, amount=0.5)


def save(model, path, draw):
    """The state_dict by one of the conventions; returns name → mask."""
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    masks = {name.removesuffix("_mask"): array for name, array in state.items() if name.endswith("_mask")}
    convention = draw.choice(["torch", "torch", "tree", "beside", "scipy"])
    slashes, prefix = draw.random() < 0.5, draw.choice(["", "", "module.", "model."])
    options = {"compression": draw.choice([None, "gzip", "lzf"]), "shuffle": draw.random() < 0.3}
    with h5py.File(path, "w", libver=draw.choice([None, "latest"])) as file:
        def put(name, array):
            path = (prefix + name).replace(".", "/") if slashes else prefix + name
            keywords = options if array.ndim else {}
            file.create_dataset(path, data=array, **keywords)
        for name, array in state.items():
            base = name.removesuffix("_orig").removesuffix("_mask")
            if base not in masks:
                put(name, array)
            elif convention == "torch":
                put(name, array)
            elif name.endswith("_orig"):
                if convention == "scipy" and array.ndim == 2:
                    import scipy.sparse
                    rows, columns = np.nonzero(masks[base])  # stored zeros would count as kept
                    matrix = scipy.sparse.coo_matrix((array[rows, columns], (rows, columns)), array.shape)
                    form = draw.choice(["coo", "csr", "csc"])
                    matrix = matrix.asformat(form)
                    parts = ({"row": matrix.row, "col": matrix.col} if form == "coo" else
                             {"indices": matrix.indices, "indptr": matrix.indptr})
                    group = prefix + base
                    for part, values in {**parts, "data": matrix.data, "shape": array.shape, "format": form}.items():
                        file[f"{group}/{part}"] = values
                else:
                    put(base, array)
                    if convention == "tree":
                        file.create_dataset("masks/" + (prefix + base).replace(".", "/"), data=masks[base] > 0)
                    else:
                        put(base + "_mask", masks[base].astype("u1"))
    return masks, convention


def sorted_values(values, kept):
    """Kept values and the number of pruned ones, in any layout."""
    return np.sort(values[kept]), int((~kept).sum())


def write_data(folder, seed):
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, VOCABULARY, 40 * CONTEXT).astype("u2")
    tokens[0] = VOCABULARY - 1
    tokens.tofile(folder / "t.bin")
    images = generator.integers(0, 256, (24, 28, 28, 3)).astype("u1")
    labels = np.arange(24) % CLASSES
    for prefix in ("", "v-"):
        head = np.array([0x804, 24, 28, 28, 3], ">u4").tobytes()
        (folder / f"{prefix}images").write_bytes(head + images.tobytes())
        (folder / f"{prefix}labels").write_bytes(np.array([0x801, 24], ">u4").tobytes() + labels.astype("u1").tobytes())
    return torch.tensor(tokens.astype("i8")), torch.tensor(images).permute(0, 3, 1, 2) / 255, torch.tensor(labels)


def torch_loss(model, config, tokens, images, labels):
    model.eval()
    with torch.no_grad():
        if "images" in config:
            return float(F.cross_entropy(model(images), labels))
        x = tokens.view(-1, CONTEXT)  # `eval --data` predicts all but the first token of a window
        logits = model(x)
        logits = logits if torch.is_tensor(logits) else logits.logits
        return float(F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), x[:, 1:].reshape(-1)))


def test_models(folder, seed):
    worst = 0.0
    run = Program(PROGRAM, folder)
    for number, (name, model, config, prunes) in enumerate(cases()):
        draw = random.Random(1000 * seed + number)
        torch.manual_seed(1000 * seed + number)
        randomize(model)
        prune_randomly(model, prunes, draw)
        tokens, images, labels = write_data(folder, seed)
        right = torch_loss(model, config, tokens, images, labels)
        masks, convention = save(model, folder / "theirs.h5", draw)
        (folder / "net.toml").write_text(config, encoding="utf-8")
        run("import", "theirs.h5", "-o", "ours.h5", "--config", "net.toml")
        loss = run.loss("ours.h5") if "images" in config else run.loss("ours.h5", "--data", "t.bin")
        assert abs(loss - right) < 1e-3, f"{name} ({convention}): loss {loss}, torch {right}"
        worst = max(worst, abs(loss - right))
        # Each mask is that of one parameter: the same kept values, however the layout moves them.
        ours = [sorted_values(*both) for both in checkpoint_arrays(folder / "ours.h5").values()]
        state = model.state_dict()
        for weight, mask in masks.items():
            wanted = sorted_values(state[weight + "_orig"].numpy(), mask > 0)
            assert any(pruned == wanted[1] and np.array_equal(values, wanted[0]) for values, pruned in ours), \
                f"{name} ({convention}): the mask of {weight} differs"
        print(f"{name}, {convention}: {len(masks)} masks equal, loss {loss:.4f}, torch {right:.4f}")
    return worst


def test_page(folder):
    """The scripts that need torch or scipy; masks compared, and the loss with the masked model."""
    run = Program(PROGRAM, folder)
    (folder / "net.toml").write_text(network(PAGE), encoding="utf-8")
    scripts = blocks(PAGE, "python")
    generator = np.random.default_rng(1)
    weights = {row.split()[0]: generator.normal(size=tuple(map(int, row[row.index("[") + 1 : -1].split(",")))).astype("f4")
               for row in map(str.rstrip, run("import", "--names", "net.toml").splitlines()[1:]) if row.endswith("]")}
    np.savez(folder / "weights.npz", **weights)
    torch.manual_seed(1)
    model = NanoGpt(tied=False, vocabulary=256)
    randomize(model)
    torch.save(model.state_dict(), folder / "start.pt")
    (folder / "my_model.py").write_text(
        f"import sys, torch\nsys.argv = ['', {str(ROOT)!r}, {str(PROGRAM)!r}, '', '--inside']\n"
        f"sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\nfrom torch_masks_test import NanoGpt\n"
        "model = NanoGpt(tied=False, vocabulary=256)\nmodel.load_state_dict(torch.load('start.pt'))\n")
    for name in ("torch_prune.py", "scipy_sparse.py"):
        subprocess.run([sys.executable, "-c", scripts[name]], cwd=folder, check=True)
        run("import", "masked.h5", "-o", "start.h5", "--config", "net.toml")
        arrays = checkpoint_arrays(folder / "start.h5")
        if name == "scipy_sparse.py":
            for parameter, (values, kept) in arrays.items():
                weight = weights[parameter]
                pruned = parameter.startswith("blocks.") and weight.ndim == 2
                assert np.array_equal(kept, abs(weight) > 1 if pruned else np.ones(weight.shape, bool)), parameter
        else:
            pruned = sum((~kept).sum() for _, kept in arrays.values())
            total = sum(kept.size for n, (_, kept) in arrays.items() if n.startswith("blocks.") and kept.ndim == 2)
            assert abs(pruned / total - 0.9) < 1e-3, pruned / total
        print(f"{name}: masks equal")


def main():
    with tempfile.TemporaryDirectory() as folder:
        worst = test_models(pathlib.Path(folder), SEED)
        test_page(pathlib.Path(folder))
        print(f"largest difference of a loss: {worst:.2e}")


if __name__ == "__main__":
    main()
