"""hub_differential.py PROGRAM VENV [--cases N] [--seed S] [--families A,B] [--case FAMILY:SEED] [--jobs J] [--keep DIR]

Random config.json files and weight files of every family, read by `espalier import` and by transformers 4 and 5.

A case is drawn from its family and its seed: sizes, then a few keys that some version of transformers reads (in the
forms of both versions, with null, absent and wrong values), and changes to the weight files (types, shards, prefixes,
heads, extra and missing tensors). Its verdict is one of

    equal       `espalier eval` gives the loss of transformers within 1e-3, and so does transformers with the exported
                folder, loaded without missing, unexpected or mismatched tensors
    refused     exit code 1, and the message names a key of config.json, a tensor or an architecture
    unverified  neither version of transformers is a reference, and espalier imports the folder
    wrong       anything else

A case of own-FAMILY is a network that Espalier trains from the start and exports ("refused as by transformers": there
is no such network).

The reference is transformers 5, or 4 where 5 does not load the folder whole (with all tensors, and a finite loss) and
the folder has nothing that 4 ignores: rope_parameters, or a head of its own beside tie_word_embeddings.
Exit code 1 if a case is wrong. Needs torch, gguf and accelerate: of the Python that TRANSFORMERS_PYTHON names, or of
the virtual environment VENV; and both versions of transformers, in the folders VENV/transformers-4 and -5, or those
that TRANSFORMERS_4 and TRANSFORMERS_5 name. Missing ones are installed by pip; exit code 1 if that fails.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

from python_with import folder_with, python_with_torch

HERE = pathlib.Path(__file__).parent
CONTEXT, WINDOWS, VOCABULARY, TOLERANCE = 48, 3, 80, 1e-3
ABSENT, OWN = object(), "own-"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


# --- Configs ---------------------------------------------------------------------------------------------------------

def llama_sizes(draw, **more):
    heads = draw.choice([2, 4])
    width = heads * draw.choice([8, 12])
    return {"vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": draw.choice([40, 64]),
            "num_hidden_layers": draw.choice([1, 2, 3]), "num_attention_heads": heads,
            "num_key_value_heads": draw.choice([heads, heads // 2]),
            "max_position_embeddings": draw.choice([CONTEXT, CONTEXT, 64, 256]), **more}


def gpt2_sizes(draw):
    heads = draw.choice([2, 4])
    return {"vocab_size": VOCABULARY, "n_embd": heads * 12, "n_layer": draw.choice([1, 2, 3]), "n_head": heads,
            "n_positions": draw.choice([CONTEXT, CONTEXT, 64])}


def neox_sizes(draw):
    sizes = llama_sizes(draw)
    del sizes["num_key_value_heads"]
    sizes["hidden_size"] = 16 * sizes["num_attention_heads"]
    return {**sizes, "rotary_pct": draw.choice([0.25, 0.5, 1.0])}


def opt_sizes(draw):
    sizes = llama_sizes(draw)
    del sizes["num_key_value_heads"]
    return {**sizes, "ffn_dim": sizes.pop("intermediate_size"), "word_embed_proj_dim": sizes["hidden_size"]}


class Family:

    def __init__(self, kind, architecture, sizes, tied, prefix, head="lm_head.weight",
                 embedding="model.embed_tokens.weight", rotary=True):
        self.kind, self.architecture, self.sizes, self.tied = kind, architecture, sizes, tied
        self.prefix, self.head, self.embedding, self.rotary = prefix, head, embedding, rotary
        self.base = architecture.replace("LMHeadModel", "Model").replace("ForCausalLM", "Model")


def with_head_width(draw):
    return llama_sizes(draw, head_dim=draw.choice([8, 16]))


FAMILIES = {
    "gpt2": Family("gpt2", "GPT2LMHeadModel", gpt2_sizes, True, "transformer.", embedding="transformer.wte.weight",
                   rotary=False),
    "opt": Family("opt", "OPTForCausalLM", opt_sizes, True, "model.", rotary=False,
                  embedding="model.decoder.embed_tokens.weight"),
    "neox": Family("gpt_neox", "GPTNeoXForCausalLM", neox_sizes, False, "gpt_neox.", head="embed_out.weight",
                   embedding="gpt_neox.embed_in.weight"),
    "llama": Family("llama", "LlamaForCausalLM", llama_sizes, False, "model."),
    "mistral": Family("mistral", "MistralForCausalLM", llama_sizes, False, "model."),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", llama_sizes, False, "model."),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", with_head_width, False, "model."),
    "gemma": Family("gemma", "GemmaForCausalLM", with_head_width, True, "model."),
    "gemma3": Family("gemma3_text", "Gemma3ForCausalLM", with_head_width, True, "model."),
}

ACTIVATIONS = ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "swish", "gelu_fast", "quick_gelu", "mish",
               "gelu_10", "gelu_python", "relu2", "relu6", "tanh", "sigmoid", "linear", "SiLU", None, ABSENT]
EPSILONS = [1e-5, 1e-6, 1e-3, 0.1, 1, 0, None, ABSENT]
WIDTHS = [8, 12, 16, 24, None, ABSENT]


def any_layers(*types):
    return lambda draw, config: [draw.choice(types) for _ in range(config.get("num_hidden_layers") or 2)]


def every_nth(draw, config):
    n = draw.choice([1, 2, 3])
    return ["full_attention" if (i + 1) % n == 0 else "sliding_attention"
            for i in range(config.get("num_hidden_layers") or 2)]


LAYER_TYPES = [any_layers("full_attention"), any_layers("sliding_attention"), every_nth, every_nth,
               any_layers("full_attention", "sliding_attention"), any_layers("attention", "full_attention"),
               any_layers("chunked_attention"), ["full_attention"], [], None, ABSENT]

# Keys that transformers reads for every model, or that files on the Hub have.
COMMON = {
    "tie_word_embeddings": [True, False, None, ABSENT],
    "torch_dtype": ["float32", "bfloat16", "float16", None, ABSENT],
    "dtype": ["float32", "bfloat16", None],
    "quantization_config": [None, {}, {"quant_method": "bitsandbytes", "load_in_4bit": True}],
    "is_encoder_decoder": [True, False, None],
    "is_decoder": [True, False],
    "is_causal": [True, False, None],
    "use_cache": [True, False],
    "add_cross_attention": [True, False],
    "cross_attention_hidden_size": [None, 16],
    "initializer_range": [0.02, 0.3],
    "chunk_size_feed_forward": [0, 4],
    "pruned_heads": [{}, {"0": [0]}],
    "pretraining_tp": [1, 2],
    "num_labels": [2, 5],
    "id2label": [{"0": "A"}, None],
    "problem_type": [None, "regression"],
    "pad_token_id": [None, 0, 3, -1, VOCABULARY],
    "bos_token_id": [1, None],
    "eos_token_id": [2, [2, 3], None],
    "attention_dropout": [0.0, 0.5],
    "output_attentions": [True, False],
    "output_hidden_states": [True, False],
    "return_dict": [True, False],
    "attn_implementation": ["eager", "sdpa"],
    "_name_or_path": ["x/y"],
    "name_or_path": ["x/y"],
    "transformers_version": ["4.31.0", "4.57.6", "5.0.0"],
    "transformers_weights": [None, "model.safetensors", "other.safetensors"],
    "per_layer_config": [None, {"0": {"hidden_act": "relu"}}],
    "auto_map": [{"AutoConfig": "configuration_x.XConfig"}],
    "task_specific_params": [{"text-generation": {"do_sample": True}}],
    "gradient_checkpointing": [True, False],
    "layer_types": LAYER_TYPES,
    "sliding_window": [4, 16, 0, None, ABSENT],
    "use_sliding_window": [True, False, None],
    "max_window_layers": [0, 1, 2, 28],
    "attention_chunk_size": [8],
    "head_dim": WIDTHS,
    "attention_bias": [True, False, None],
    "mlp_bias": [True, False, None],
    "use_bidirectional_attention": [True, False, None],
    "attn_logit_softcapping": [50.0, None],
    "final_logit_softcapping": [2.0, None],
    "rope_theta": [100.0, 10000.0, 500000, None, ABSENT],
    "partial_rotary_factor": [0.5, 1.0, None],
    "unknown_key": [0, "text", {"a": 1}],
    "embedding_multiplier": [2.0],
    "logits_scaling": [2.0],
    "residual_multiplier": [0.5],
    "embd_pdrop": [0.5],
    "n_ctx": [16],
    "model_max_length": [16],
}
GPT2_KEYS = {
    "n_inner": [None, 40, 48, 96, ABSENT], "activation_function": ACTIVATIONS, "resid_pdrop": [0.0, 0.5],
    "attn_pdrop": [0.0, 0.5], "layer_norm_epsilon": EPSILONS, "scale_attn_weights": [True, False, None],
    "scale_attn_by_inverse_layer_idx": [True, False, None], "reorder_and_upcast_attn": [True, False],
    "summary_type": ["cls_index"], "summary_use_proj": [True], "hidden_size": [24, 48, 32], "num_hidden_layers": [1, 2],
    "num_attention_heads": [2, 4], "max_position_embeddings": [CONTEXT, 32], "n_positions": [CONTEXT, ABSENT, None],
    "n_head": [2, ABSENT], "intermediate_size": [40],
}
OPT_KEYS = {
    "word_embed_proj_dim": [16, None, ABSENT], "do_layer_norm_before": [True, False, None],
    "_remove_final_layer_norm": [True, False, None], "activation_function": ACTIVATIONS, "dropout": [0.0, 0.5],
    "layerdrop": [0.0, 0.9], "init_std": [0.02], "enable_bias": [True, False, None],
    "layer_norm_elementwise_affine": [True, False], "ffn_dim": [40, 64, ABSENT], "prefix": ["</s>", None],
    "activation_dropout": [0.0, 0.5], "layer_norm_eps": [0.1],
}
NEOX_KEYS = {
    "rotary_pct": [0.25, 0.5, 1.0, 0.1, 0, None, ABSENT], "rotary_emb_base": [10000, 100.0, None, ABSENT],
    "hidden_act": ACTIVATIONS, "layer_norm_eps": EPSILONS, "use_parallel_residual": [True, False, None, ABSENT],
    "hidden_dropout": [0.0, 0.5], "classifier_dropout": [0.1], "rotary_dim": [4],
}
LLAMA_KEYS = {
    "hidden_act": ACTIVATIONS, "rms_norm_eps": EPSILONS, "num_key_value_heads": [1, 2, None, ABSENT],
    "max_position_embeddings": [CONTEXT, 64, 4096, ABSENT],
}
GEMMA_KEYS = {"hidden_activation": ["gelu_pytorch_tanh", "gelu", "silu", "relu", None, ABSENT], **LLAMA_KEYS}
GEMMA3_KEYS = {
    "query_pre_attn_scalar": [8, 16, 20.5, 256, None, ABSENT], "sliding_window_pattern": [1, 2, 3, 6, None],
    "_sliding_window_pattern": [2], "rope_local_base_freq": [100.0, 10000, None], "cache_implementation": ["hybrid"],
    **GEMMA_KEYS,
}
KEYS = {"gpt2": GPT2_KEYS, "opt": OPT_KEYS, "neox": NEOX_KEYS, "gemma": GEMMA_KEYS, "gemma3": GEMMA3_KEYS}


def put(draw, config, key, values):
    value = draw.choice(values)
    if callable(value):
        value = value(draw, config)
    if value is ABSENT:
        config.pop(key, None)
    else:
        config[key] = value


def some(draw, *values):
    """One of the values, or ABSENT, in the members of a dict."""
    return draw.choice(values)


def scaling(draw, config):
    """A scaling of rotary positions, without its base."""
    kind = draw.choice(["linear", "linear", "yarn", "yarn", "llama3", "llama3", "longrope", "dynamic", "default",
                        "proportional", "su", "mrope"])
    dims = max(1, config.get("hidden_size", 32) // config.get("num_attention_heads", 4) // 2)
    factors = [2.0, 4.0, 8.0, 1.0, 3] if draw.random() < 0.95 else [None, ABSENT, 0.5]
    all_members = {"factor": draw.choice(factors)}
    old = some(draw, 8, 16, 24, 16, ABSENT, None)
    if kind == "default":
        all_members = {"factor": some(draw, 2.0, ABSENT, ABSENT, ABSENT)}
    elif kind == "yarn":
        all_members.update(original_max_position_embeddings=old, beta_fast=some(draw, 32, 4.0, ABSENT, ABSENT, None),
                           beta_slow=some(draw, 1, 0.5, 2.0, ABSENT, ABSENT),
                           attention_factor=some(draw, 1.0, 1.5, ABSENT, ABSENT, None),
                           mscale=some(draw, 1.0, 0.7, None, *[ABSENT] * 5),
                           mscale_all_dim=some(draw, 1.0, 0.5, *[ABSENT] * 5),
                           truncate=some(draw, True, False, *[ABSENT] * 5))
    elif kind == "llama3":
        all_members.update(original_max_position_embeddings=old if draw.random() < 0.3 else 16,
                           low_freq_factor=some(draw, 1.0, 1, 2.0, *([1.0] * 5), ABSENT),
                           high_freq_factor=some(draw, 4.0, 3.0, *([4.0] * 5), ABSENT))
    elif kind in ("longrope", "su"):
        all_members.update(short_factor=[1.0 + draw.random() for _ in range(dims)],
                           long_factor=[1.0 + 4 * draw.random() for _ in range(dims)],
                           original_max_position_embeddings=old)
    elif draw.random() < 0.2:
        all_members.update(original_max_position_embeddings=old)
    names = draw.choice([("rope_type",)] * 6 + [("type",)] * 3 + [("rope_type", "type"), ()])
    all_members.update({name: kind for name in names})
    if names == ("rope_type", "type") and draw.random() < 0.5:
        all_members["type"] = "linear"
    members = [(key, value) for key, value in all_members.items() if value is not ABSENT]
    draw.shuffle(members)
    return dict(members)


def put_rotary(draw, name, config):
    """The base, share and scaling of rotary positions, in the places of transformers 4, 5 or both."""
    base_key = "rotary_emb_base" if name == "neox" else "rope_theta"
    base = draw.choice([100.0, 1000.0, 10000.0, 10000, 500000.0])
    scaled = scaling(draw, config) if draw.random() < 0.7 else draw.choice([None, {}, {"rope_type": "default"}])
    form = draw.choice(["4", "4", "5", "5", "both", "mixed"])
    config.pop("rotary_pct", None) if name == "neox" and form == "5" else None
    if form in ("4", "both", "mixed"):
        config[base_key] = base
        if scaled is not None or draw.random() < 0.3:
            config["rope_scaling"] = scaled
    if form in ("5", "both", "mixed"):
        member = dict(scaled or {"rope_type": "default"}) if form != "mixed" or draw.random() < 0.5 else {}
        if draw.random() < 0.8 or form == "5":
            member["rope_theta"] = base if draw.random() < 0.85 else 777.0
        if name == "neox" and draw.random() < 0.8:
            member["partial_rotary_factor"] = config.get("rotary_pct", draw.choice([0.25, 0.5]))
        elif draw.random() < 0.08:
            member["partial_rotary_factor"] = draw.choice([0.5, 1.0, None])
        if form == "mixed" and draw.random() < 0.5:
            config.pop("rope_scaling", None)
        nested = draw.random() < (0.7 if name == "gemma3" else 0.06)
        if nested:
            local = {"rope_type": "default", "rope_theta": draw.choice([100.0, 10000.0])}
            if draw.random() < 0.15:
                local = draw.choice([None, {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}, {}])
            member = {"full_attention": member, "sliding_attention": local}
            if draw.random() < 0.1:
                del member[draw.choice(list(member))]
        config["rope_parameters"] = member
        if draw.random() < 0.1:
            config["rope_parameters"] = None
    if draw.random() < 0.15:
        config["original_max_position_embeddings"] = draw.choice([4, 8, 24, CONTEXT, None])


def put_architecture(draw, family, config):
    config["architectures"] = draw.choice(
        [None, [], [family.base], [family.base], [family.architecture, "X"], family.architecture,
         [family.architecture.replace("LMHeadModel", "ForSequenceClassification").replace(
             "ForCausalLM", "ForSequenceClassification")], ["MambaForCausalLM"], [family.architecture + "X"]])
    if draw.random() < 0.2:
        del config["architectures"]
    if draw.random() < 0.1:
        put(draw, config, "model_type", [ABSENT, None, "llama", "mistral"])


def draw_config(draw, name):
    """The plain config of a family, and one with changes."""
    family = FAMILIES[name]
    plain = {"architectures": [family.architecture], "model_type": family.kind, **family.sizes(draw)}
    config = dict(plain)
    if draw.random() < 0.35:
        put(draw, config, "tie_word_embeddings", [True, False])
    if family.rotary and draw.random() < 0.5:
        put_rotary(draw, name, config)
    keys = {**COMMON, **(KEYS.get(name) or LLAMA_KEYS)}
    own = list(KEYS.get(name) or LLAMA_KEYS)
    for _ in range(draw.choice([0, 0, 1, 1, 1, 2, 2, 3, 5])):
        key = draw.choice(own) if draw.random() < 0.45 else draw.choice(list(keys))
        put(draw, config, key, keys[key])
    if draw.random() < 0.08:
        put_architecture(draw, family, config)
    members = list(config.items())
    draw.shuffle(members)
    return plain, dict(members)


# --- Weight files ----------------------------------------------------------------------------------------------------

def random_like(draw, shape):
    import torch
    return torch.randn(shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30))) * 0.3


def change_tensors(draw, name, config, tensors):
    """What files in the wild have: heads, prefixes, buffers, gaps and types."""
    import torch
    family = FAMILIES[name]
    tie = config.get("tie_word_embeddings", family.tied)
    notes = []

    def note(text, condition=True):
        notes.append(text) if condition else None
        return condition
    head, embedding = family.head, family.embedding
    if name == "neox" and "lm_head.weight" in tensors and draw.random() < 0.95:
        tensors[head] = tensors.pop("lm_head.weight")  # transformers 5 renames it in loading and saving
    if head in tensors and embedding in tensors:
        if tie:
            kind = draw.choice(["absent"] * 4 + ["equal", "equal", "other", "other", "only head"])
            note(f"tied head: {kind}", kind != "absent")
            if kind == "absent" or tensors[head].shape != tensors[embedding].shape:
                del tensors[head]
            elif kind in ("equal", "only head"):
                tensors[head] = tensors[embedding].clone()
                if kind == "only head":
                    del tensors[embedding]
        elif note("no head", draw.random() < 0.04):
            del tensors[head]
    if draw.random() < 0.12:
        kind = draw.choice(["rotary", "causal", "unknown", "bias", "layer", "score", "half buffer"])
        note(f"extra tensor: {kind}")
        firsts = [key for key in tensors if re.search(r"\.(h|layers)\.0\.", key)]
        layer = re.match(r"(.*\.(?:h|layers)\.)0\.", firsts[0])[1] if firsts else family.prefix
        if kind == "rotary":
            tensors[layer + "0." + ("attention" if name == "neox" else "self_attn") + ".rotary_emb.inv_freq"] = \
                torch.arange(4.0)
        elif kind == "causal":
            own = "attn" if name == "gpt2" else "attention"
            tensors[layer + f"0.{own}.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.uint8)
            tensors[layer + f"0.{own}.masked_bias"] = torch.tensor(-1e9)
        elif kind == "bias":
            tensors[layer + "0.self_attn.q_proj.bias"] = random_like(draw, (16,))
        elif kind == "layer":
            for key in [key for key in tensors if key.startswith(layer + "0.")]:
                tensors[key.replace(layer + "0.", layer + "7.")] = tensors[key].clone()
        else:
            extra = {"score": "score.weight", "unknown": "extra.weight"}.get(kind, "position_ids")
            tensors[extra] = random_like(draw, (2, 8))
    if note("missing tensor", draw.random() < 0.04):
        del tensors[draw.choice(list(tensors))]
    if note("another shape", draw.random() < 0.03):
        key = draw.choice(list(tensors))
        tensors[key] = random_like(draw, (tensors[key].shape[0] + draw.choice([1, 8]), *tensors[key].shape[1:]))
    if draw.random() < 0.15:
        kind = draw.choice(["base", "base", "base", "twice", "last"])
        note(f"prefix: {kind}")
        for key in list(tensors):
            other = key
            if kind == "base" and key.startswith(family.prefix):
                other = key[len(family.prefix):]
            elif kind == "twice":
                other = family.prefix + key
            elif kind == "last" and key.startswith("model.decoder."):
                other = key[len("model.decoder."):]
            tensors[other] = tensors.pop(key)
    types = draw.choice([[torch.float32]] * 4 + [[torch.bfloat16], [torch.float16], [torch.bfloat16, torch.float32],
                                                 [torch.float16, torch.bfloat16, torch.float32, torch.float64]])
    note(f"types: {types}", types != [torch.float32])
    for key, value in tensors.items():
        if value.is_floating_point():
            tensors[key] = value.to(draw.choice(types)).contiguous()
    return notes


def write_tensors(draw, folder, tensors):
    from safetensors.torch import save_file
    shards = draw.choice([1, 1, 1, 2, 3])
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"} if draw.random() < 0.9 else None)
        return
    names = {}
    order = list(tensors)
    draw.shuffle(order)
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in order[i::shards]}
        save_file(part, folder / file, {"format": "pt"})
        names.update({key: file for key in part})
    index = {"metadata": {"total_size": 0}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


# --- Verdicts --------------------------------------------------------------------------------------------------------

class Wrong(Exception):
    pass


class Reference:
    """transformers of one version, in a process of its own."""

    def __init__(self, python, libraries):
        environment = {**ENVIRONMENT, "PYTHONPATH": libraries}
        self.process = subprocess.Popen([python, str(HERE / "hub_reference.py")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        self.version = json.loads(self.process.stdout.readline())["version"]

    def answer(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"transformers {self.version} ended at {request}")
        return json.loads(line)


def is_whole(answer):
    return "error" not in answer and answer["loss"] is not None and not answer["missing"] and not answer["mismatched"]


def keys_in(value):
    """Names of members at any depth."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from keys_in(member)


def names_something(message, config, names):
    words = set(re.findall(r'"([^"]+)"', message)) | {word for quoted in re.findall(r'"([^"]+)"', message)
                                                       for word in re.split(r"[.]", quoted)}
    missing = {"max_position_embeddings", "n_positions", "num_hidden_layers", "ffn_dim", "n_head", "vocab_size",
               "rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    known = set(keys_in(config)) | set(names) | missing
    return bool(words & known) or "architecture" in message or re.search(r"model\.\w+", message) is not None


class Runner:

    def __init__(self, program, python, libraries, keep):
        self.program, self.keep = program, keep
        self.references = {version: Reference(python, folder) for version, folder in libraries.items()}

    def espalier(self, folder, *arguments):
        done = subprocess.run([str(self.program), *map(str, arguments)], cwd=folder, capture_output=True, text=True,
                              env=ENVIRONMENT, errors="replace", timeout=300)
        if done.returncode not in (0, 1):
            raise Wrong(f"espalier {arguments[0]}: exit code {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
        return done

    def loss_of(self, folder, file):
        done = self.espalier(folder, "eval", file, "--data", "t.bin", "--json", "--set", 'train.dtype="fp32"')
        if done.returncode:
            raise Wrong(f"eval fails: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)["loss"]

    def run(self, name, seed):
        """(verdict, text, notes of the case)"""
        draw = random.Random(f"{name}:{seed}")
        top = pathlib.Path(tempfile.mkdtemp(prefix=f"hub-{name}-{seed}-"))
        notes = []
        try:
            if name.startswith(OWN):
                return *self.judge_own(draw, name.removeprefix(OWN), top, notes), notes
            return *self.judge(draw, name, top, notes), notes
        except Wrong as wrong:
            if self.keep:
                shutil.copytree(top, self.keep / f"{name}-{seed}", dirs_exist_ok=True)
            return "wrong", str(wrong), notes
        finally:
            shutil.rmtree(top, ignore_errors=True)

    def judge_own(self, draw, name, top, notes):
        """A network that was not imported: both versions load the exported folder and have its loss."""
        ids = [[draw.randrange(VOCABULARY) for _ in range(CONTEXT)] for _ in range(WINDOWS)]
        (top / "t.bin").write_bytes(b"".join(i.to_bytes(2, "little") for row in ids for i in row))
        (top / "v.bin").write_bytes((top / "t.bin").read_bytes())
        model = {**draw_network(draw, name), "vocabulary": VOCABULARY}
        notes += [f"{key}={json.dumps(value)}" for key, value in model.items()]
        # Each step moves weights by about the learning rate: losses depend on all of them.
        sections = {"model": model, "data": {"kind": "tokens", "train": ["t.bin"], "validation": ["v.bin"]},
                    "train": {"steps": 3, "global_batch": 2, "eval_every": 0, "seed": draw.randrange(1000)},
                    "optimizer": {"lr": 0.3, "min_lr": 0.2, "warmup_steps": 0, "clip": 0.0}, "run": {"out": "run"}}
        (top / "c.toml").write_text("".join(f"[{section}]\n" + "".join(
            f"{key} = {json.dumps(value)}\n" for key, value in keys.items()) for section, keys in sections.items()))
        done = self.espalier(top, "train", "c.toml")
        if done.returncode:
            return "refused as by transformers", done.stderr.strip()  # no such network
        done = self.espalier(top, "export", "run/checkpoints/last.h5", "-o", "back")
        if done.returncode:
            if "model." not in done.stderr and "architecture" not in done.stderr:
                raise Wrong(f"export refused without a name: {done.stderr.strip()}")
            return "refused", done.stderr.strip()
        right = self.loss_of(top, "run/checkpoints/last.h5")
        for version, reference in self.references.items():
            back = reference.answer(load=str(top / "back"), tokens=ids)
            if not is_whole(back) or back["unexpected"]:
                raise Wrong(f"transformers {version} does not load the export: {json.dumps(back)[:400]}")
            if abs(back["loss"] - right) > TOLERANCE * max(1.0, abs(right)):
                raise Wrong(f"export: loss {back['loss']:.5f} in transformers {version}, here {right:.5f}")
        return "equal", ""

    def judge(self, draw, name, top, notes):
        from safetensors.torch import load_file
        plain, config = draw_config(draw, name)
        notes += [f"{key}={json.dumps(config.get(key, 'absent'))}" for key in {**plain, **config}
                  if config.get(key, ABSENT) != plain.get(key, ABSENT)]
        folder = top / "hub"
        folder.mkdir()
        file = top / "made.safetensors"
        seed = draw.randrange(1 << 30)
        for version, text in [("5", config), ("4", config), ("5", plain)]:
            left_out = ("model_type", "quantization_config", "architectures")
            facts = {key: value for key, value in text.items() if key not in left_out}
            made = self.references[version].answer(make={"model_type": FAMILIES[name].kind, **facts}, file=str(file),
                                                   seed=seed)
            if "error" not in made:
                break
        else:
            raise RuntimeError(f"{name}: {made}")
        tensors = load_file(file)
        notes += change_tensors(draw, name, config, tensors)
        write_tensors(draw, folder, tensors)
        (folder / "config.json").write_text(json.dumps(config, indent=draw.choice([None, 2])))
        ids = [[draw.randrange(VOCABULARY) for _ in range(CONTEXT)] for _ in range(WINDOWS)]
        (top / "t.bin").write_bytes(b"".join(i.to_bytes(2, "little") for row in ids for i in row))

        answers = {v: r.answer(load=str(folder), tokens=ids) for v, r in self.references.items()}
        whole = [v for v in ("5", "4") if is_whole(answers[v])]
        if whole == ["4"] and (config.get("rope_parameters") or "tied head: other" in notes):
            whole = []
        positions = config.get("n_positions" if name == "gpt2" else "max_position_embeddings")
        context = [] if positions == CONTEXT else ["--context", CONTEXT]
        done = self.espalier(top, "import", "hub", "-o", "m.h5", "--no-tokenizer", *context)
        if done.returncode == 1:
            message = done.stderr.strip()
            if not names_something(message, config, tensors):
                raise Wrong(f"refused without a name: {message[-300:]}")
            return "refused" if whole else "refused as by transformers", message
        if not whole:
            partly = any("error" not in answer for answer in answers.values())
            if partly and any(answer.get("missing") or answer.get("mismatched") for answer in answers.values()):
                raise Wrong(f"imported, and transformers fills tensors with random values: {answers}")
            return "unverified", json.dumps(answers)
        right = answers[whole[0]]["loss"]
        got = self.loss_of(top, "m.h5")
        if abs(got - right) > TOLERANCE * max(1.0, abs(right)):
            theirs = {version: answer.get("loss", answer) for version, answer in answers.items()}
            raise Wrong(f"loss {got:.5f}, transformers {json.dumps(theirs)}")
        done = self.espalier(top, "export", "m.h5", "-o", "back")
        if done.returncode:
            raise Wrong(f"export fails: {done.stderr.strip()[-300:]}")
        for version in whole:
            if abs(answers[version]["loss"] - right) > TOLERANCE * max(1.0, abs(right)):
                continue  # this version differs from the reference in the original folder too
            back = self.references[version].answer(load=str(top / "back"), tokens=ids)
            if not is_whole(back) or back["unexpected"]:
                raise Wrong(f"transformers {version} does not load the export: {json.dumps(back)[:400]}")
            if abs(back["loss"] - right) > TOLERANCE * max(1.0, abs(right)):
                raise Wrong(f"export: loss {back['loss']:.5f} in transformers {version}, before {right:.5f}")
        return "equal", ""


def draw_network(draw, name):
    """[model] of a network that Espalier trains from the start."""
    if name == "gpt":
        heads = draw.choice([2, 4])
        model = {"layers": draw.choice([1, 2, 3]), "heads": heads, "width": heads * 12, "context": CONTEXT}
        return {**model, **draw_some(draw, {"mlp_ratio": [1, 2, 4], "tie_embeddings": [True, False]}, 0.5)}
    heads = draw.choice([2, 4])
    head_width = draw.choice([8, 16])
    model = {"kind": "decoder", "layers": draw.choice([1, 2, 3]), "heads": heads,
             "width": heads * head_width, "context": CONTEXT, "mlp_width": draw.choice([40, 64])}
    share = draw.choice([0.05, 0.2])
    own = {"tie_embeddings": [True, False], "window": [4, 16], "full_every": [1, 2, 3]}
    family = draw_some(draw, {"activation": ["gelu", "gelu_erf", "relu", "silu"],
                              "norm_epsilon": [1e-5, 1e-6, 1e-2], "residual": ["sequential", "parallel"],
                              "biases": ["mlp", "none"], "attention_scale": [0.2, 0.3333, 0.25]}, share)
    kind, rotary = "none", {}
    if name not in ("gpt2", "opt"):
        own |= {"head_width": [8, 24], "kv_heads": [1, heads]}
        rotary = draw_some(draw, {"base": [100.0, 10000.0], "local_base": [100.0], "share": [0.5, 1.0]}, share)
        if draw.random() < 0.4:
            kind = draw.choice(["linear", "llama3", "yarn", "dynamic"])
            rotary["factor"] = draw.choice([1.5, 2.0, 8.0])
            more = {"context": [8, 16, 24]}
            if kind in ("llama3", "yarn"):
                more |= {"low": [1.0, 2.0], "high": [4.0, 20.0], "gain": [1.2]}
            rotary |= draw_some(draw, more, 0.5)
    return {**model, **draw_some(draw, own, share), "family": with_options(name, family), "rotary": with_options(kind, rotary)}


def with_options(word, options):
    return ":".join([word, *(f"{label}={value}" for label, value in options.items())])


def draw_some(draw, keys, share):
    return {key: draw.choice(values) for key, values in keys.items() if draw.random() < share}


# --- Main ------------------------------------------------------------------------------------------------------------

def libraries_of(python, venv):
    """Folder of each version of transformers."""
    return {version: folder_with(python, [wanted], venv / f"transformers-{version}", f"TRANSFORMERS_{version}")
            for version, wanted in {"4": "transformers<5", "5": "transformers>=5,<6"}.items()}


def start(*arguments):
    global RUNNER
    RUNNER = Runner(*arguments)


def work(case):
    return *case, *RUNNER.run(*case)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("venv", type=pathlib.Path)
    parser.add_argument("--cases", type=int, default=50, help="of each family; of own-FAMILY a quarter")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--families", default=",".join([*FAMILIES, *(OWN + name for name in [*FAMILIES, "gpt"])]))
    parser.add_argument("--case", action="append", help="FAMILY:SEED; only these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for copies of wrong cases")
    parser.add_argument("--reasons", action="store_true", help="lists how often each refusal occurs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    venv, program = options.venv.absolute(), options.program.absolute()
    python = python_with_torch(venv)  # a skipped comparison compares nothing
    libraries = libraries_of(python, venv)
    if not options.inside:
        environment = {**ENVIRONMENT, "PYTHONPATH": libraries["5"]}
        os.execve(python, [python, *sys.argv, "--inside"], environment)
    cases = [(name, seed) for seed in range(options.seed, options.seed + options.cases)
             for name in options.families.split(",") if not name.startswith(OWN) or seed % 4 == 0]
    if options.case:
        cases = [(case.split(":")[0], int(case.split(":")[1])) for case in options.case]
    jobs = min(options.jobs, len(cases))
    counts, reasons = collections.defaultdict(collections.Counter), collections.Counter()
    with concurrent.futures.ProcessPoolExecutor(jobs, initializer=start,
                                                initargs=(program, python, libraries, options.keep)) as pool:
        for name, seed, verdict, text, notes in pool.map(work, cases):
            counts[name][verdict] += 1
            if verdict == "wrong" or options.case or (options.reasons and verdict == "unverified"):
                print(f"{verdict} {name}:{seed}: {text}\n    {'; '.join(notes)}", flush=True)
            if verdict == "refused":
                reasons[f"{name}: " + re.sub(r"^espalier[^:]*: |[^ ]*config\.json: ", "", text)[:150]] += 1
    columns = ["equal", "refused", "refused as by transformers", "unverified", "wrong"]
    if options.reasons:
        print(*(f"{count:5} {reason}" for reason, count in reasons.most_common()), sep="\n")
    print(f"{'family':9}" + "".join(f"{column:>28}" for column in columns))
    for name, row in counts.items():
        print(f"{name:9}" + "".join(f"{row[column]:28}" for column in columns))
    total = {column: sum(row[column] for row in counts.values()) for column in columns}
    print(f"{'all':9}" + "".join(f"{total[column]:28}" for column in columns))
    print(f"{len(cases)} configs, seeds {options.seed} to {options.seed + options.cases - 1}: {total['wrong']} wrong")
    return 1 if total["wrong"] or not total["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
