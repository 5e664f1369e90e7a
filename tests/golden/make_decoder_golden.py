#!/usr/bin/env python3
"""Writes decoder_FAMILY.h5, logits, loss, gradients and twenty AdamW steps of a tiny model of each family, and rotary.h5.

transformers 4.57.6 computes all values in float32. The weights are a formula of (Espalier's name, element), which the
test computes too, so the files hold results only.

  /tokens, /targets   int32 [B, T]
  /logits             float32 [B T, V], at the start
  /gradients          float32: of the mean cross-entropy over all B T tokens, of all parameters in Espalier's forward
                      order, one after the other
  /losses             float32 [20], before each of twenty updates on the same batch
  attributes of the file: lr beta1 beta2 epsilon weight_decay

  rotary.h5: /NAME/frequencies float32 [8] and /NAME/gain of rotary positions of width 16, base 10,000, 64 positions,
  factor 8, old context 32, for each scaling NAME

The optimizer decays parameters of two dimensions (embeddings too), and no biases or norms; no clipping. Espalier's
names and layouts: docs/decoders.md. CONFIGS below and tests/model/decoder_golden_test.cpp hold the same numbers.

    python make_decoder_golden.py [DIRECTORY]
"""
import pathlib
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F
import transformers

LAYERS, WIDTH, HEADS, HEAD, CONTEXT, VOCABULARY, BATCH, HIDDEN = 2, 24, 3, 8, 16, 40, 2, 36
ADAMW = dict(lr=3e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
STEPS = 20

COMMON = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
              attn_implementation="eager", attention_dropout=0.0)
ROTARY = dict(COMMON, intermediate_size=HIDDEN, max_position_embeddings=CONTEXT, num_key_value_heads=1, head_dim=HEAD,
              tie_word_embeddings=False)
SCALED = {"factor": 2.0, "original_max_position_embeddings": 8}
CONFIGS = {
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT, n_inner=HIDDEN,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"),
    "llama": transformers.LlamaConfig(
        **ROTARY, rms_norm_eps=1e-5, rope_theta=500.0,
        rope_scaling={"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SCALED}),
    "mistral": transformers.MistralConfig(**ROTARY, rms_norm_eps=1e-5, rope_theta=1e4, sliding_window=5),
    "qwen2": transformers.Qwen2Config(
        **{key: value for key, value in ROTARY.items() if key != "head_dim"}, rms_norm_eps=1e-6, rope_theta=1e4,
        rope_scaling={"rope_type": "yarn", **SCALED}),
    "qwen3": transformers.Qwen3Config(**dict(ROTARY, head_dim=12), rms_norm_eps=1e-6, rope_theta=1e6),
    "neox": transformers.GPTNeoXConfig(
        **COMMON, intermediate_size=HIDDEN, max_position_embeddings=CONTEXT, rotary_pct=0.25, hidden_act="gelu",
        hidden_dropout=0.0, layer_norm_eps=1e-5),
    "opt": transformers.OPTConfig(
        **COMMON, ffn_dim=HIDDEN, max_position_embeddings=CONTEXT, word_embed_proj_dim=WIDTH, dropout=0.0,
        pad_token_id=None),
    "gemma": transformers.GemmaConfig(**dict(ROTARY, tie_word_embeddings=True), rms_norm_eps=1e-6),
    "gemma3": transformers.Gemma3TextConfig(
        **dict(ROTARY, tie_word_embeddings=True), rms_norm_eps=1e-6, query_pre_attn_scalar=12, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"], rope_theta=1e4, rope_local_base_freq=100.0,
        rope_scaling={"rope_type": "linear", "factor": 2.0}),
}


def draw(name, shape):
    """With u in [-1/2, 1/2), a hash of the name and the element: embeddings u, other matrices 2 u / sqrt(inputs), norms
    1 + u / 2, biases u / 2."""
    hash_of_name = np.uint32(2166136261)
    with np.errstate(over="ignore"):
        for c in name.encode():
            hash_of_name = (hash_of_name ^ np.uint32(c)) * np.uint32(16777619)
        x = hash_of_name + np.arange(np.prod(shape), dtype=np.uint32) * np.uint32(2654435761)
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x85EBCA6B)
        x ^= x >> np.uint32(13)
        x *= np.uint32(0xC2B2AE35)
        x ^= x >> np.uint32(16)
    u = ((x >> np.uint32(8)).astype(np.float32) * np.float32(2**-24) - np.float32(0.5)).reshape(shape)
    if len(shape) == 2:
        scale = 1 if name.startswith("embedding") else np.float32(2) / np.sqrt(np.float32(shape[1]))
        return u * np.float32(scale)
    return u * np.float32(0.5) + np.float32("norm" in name and name.endswith("weight"))


class Part:
    """A parameter of Espalier: the tensor of transformers that holds it, which elements, and what it adds."""

    def __init__(self, name, tensor, read=lambda t: t, add=0.0):
        self.name, self.tensor, self.read, self.add = name, tensor, read, add


def parts(family, model):
    """In Espalier's forward order."""
    named = dict(model.named_parameters())
    made = []

    def add(name, theirs, read=lambda t: t, shift=0.0):
        made.append(Part(name, named[theirs], read, shift))

    def vectors(name, theirs, shift=0.0):
        add(name + ".weight", theirs + ".weight", shift=shift)
        if theirs + ".bias" in named:
            add(name + ".bias", theirs + ".bias")

    def linear(name, theirs, read=lambda t: t):
        add(name + ".weight", theirs + ".weight", read)
        if theirs + ".bias" in named:
            add(name + ".bias", theirs + ".bias", lambda t: read(t.unsqueeze(-1)).squeeze(-1))

    if family == "gpt2":
        transposed = lambda t: t.T if t.dim() == 2 and t.shape[1] > 1 else t
        add("embedding.token", "transformer.wte.weight")
        add("embedding.position", "transformer.wpe.weight")
        for i in range(LAYERS):
            own, its = f"blocks.{i}.", f"transformer.h.{i}."
            vectors(own + "norm1", its + "ln_1")
            linear(own + "attention.qkv", its + "attn.c_attn", transposed)
            linear(own + "attention.projection", its + "attn.c_proj", transposed)
            vectors(own + "norm2", its + "ln_2")
            linear(own + "mlp.expand", its + "mlp.c_fc", transposed)
            linear(own + "mlp.contract", its + "mlp.c_proj", transposed)
        vectors("norm", "transformer.ln_f")
        return made
    if family == "opt":
        add("embedding.token", "model.decoder.embed_tokens.weight")
        add("embedding.position", "model.decoder.embed_positions.weight", lambda t: t[2:])
        for i in range(LAYERS):
            own, its = f"blocks.{i}.", f"model.decoder.layers.{i}."
            vectors(own + "norm1", its + "self_attn_layer_norm")
            for ours, theirs in [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("projection", "out_proj")]:
                linear(own + "attention." + ours, its + "self_attn." + theirs)
            vectors(own + "norm2", its + "final_layer_norm")
            linear(own + "mlp.expand", its + "fc1")
            linear(own + "mlp.contract", its + "fc2")
        vectors("norm", "model.decoder.final_layer_norm")
        return made
    if family == "neox":
        one_of_three = lambda k: lambda t: t.view(HEADS, 3, -1, t.shape[1])[:, k].reshape(-1, t.shape[1])
        add("embedding.token", "gpt_neox.embed_in.weight")
        for i in range(LAYERS):
            own, its = f"blocks.{i}.", f"gpt_neox.layers.{i}."
            vectors(own + "norm1", its + "input_layernorm")
            for k, ours in enumerate(["query", "key", "value"]):
                linear(own + "attention." + ours, its + "attention.query_key_value", one_of_three(k))
            linear(own + "attention.projection", its + "attention.dense")
            vectors(own + "norm2", its + "post_attention_layernorm")
            linear(own + "mlp.expand", its + "mlp.dense_h_to_4h")
            linear(own + "mlp.contract", its + "mlp.dense_4h_to_h")
        vectors("norm", "gpt_neox.final_layer_norm")
        add("head.weight", "embed_out.weight")
        return made
    shift = 1.0 if family.startswith("gemma") else 0.0
    post_norm = family == "gemma3"
    add("embedding.token", "model.embed_tokens.weight")
    for i in range(LAYERS):
        own, its = f"blocks.{i}.", f"model.layers.{i}."
        vectors(own + "norm1", its + "input_layernorm", shift)
        for ours, theirs in [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")]:
            linear(own + "attention." + ours, its + "self_attn." + theirs)
        if family in ("qwen3", "gemma3"):
            vectors(own + "attention.query_norm", its + "self_attn.q_norm", shift)
            vectors(own + "attention.key_norm", its + "self_attn.k_norm", shift)
        linear(own + "attention.projection", its + "self_attn.o_proj")
        if post_norm:
            vectors(own + "post_norm1", its + "post_attention_layernorm", shift)
        vectors(own + "norm2", its + ("pre_feedforward_layernorm" if post_norm else "post_attention_layernorm"), shift)
        for ours, theirs in [("gate", "gate_proj"), ("up", "up_proj"), ("contract", "down_proj")]:
            linear(own + "mlp." + ours, its + "mlp." + theirs)
        if post_norm:
            vectors(own + "post_norm2", its + "post_feedforward_layernorm", shift)
    vectors("norm", "model.norm", shift)
    if "lm_head.weight" in named:
        add("head.weight", "lm_head.weight")
    return made


def write(path, family):
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family]).float().eval()
    tensors = parts(family, model)
    assert len({id(p) for p in model.parameters()}) == len({id(part.tensor) for part in tensors})
    with torch.no_grad():
        for part in tensors:
            view = part.read(part.tensor)
            values = torch.from_numpy(np.asarray(draw(part.name, tuple(view.shape)), np.float32)) - part.add
            numbers = part.read(torch.arange(part.tensor.numel()).view(part.tensor.shape))
            part.tensor.view(-1)[numbers.reshape(-1)] = values.reshape(-1)

    random = np.random.Generator(np.random.PCG64(20261128))
    text = random.integers(0, VOCABULARY, (BATCH, CONTEXT + 1))
    tokens, targets = torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": ADAMW["weight_decay"]},
         {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}],
        lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["epsilon"])
    losses, first_logits, gradients = [], None, None
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=tokens).logits.flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten())
        loss.backward()
        if gradients is None:
            first_logits = logits.detach().numpy().copy()
            gradients = [part.read(part.tensor.grad).reshape(-1).numpy().copy() for part in tensors]
        losses.append(loss.item())
        optimizer.step()

    with h5py.File(path, "w", libver="earliest", track_order=False) as f:
        f.attrs.update(**ADAMW)
        f["tokens"], f["targets"] = text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int32)
        f["logits"] = first_logits.astype(np.float32)
        f["gradients"] = np.concatenate(gradients).astype(np.float32)
        f["losses"] = np.float32(losses)
    print(f"{path.name}: {path.stat().st_size} bytes, losses {losses[0]:.6f} … {losses[-1]:.6f}")


def write_rotary(path):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    scaling = {"factor": 8.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    with h5py.File(path, "w", libver="earliest", track_order=False) as f:
        for ours in ["none", "linear", "dynamic", "llama3", "yarn"]:
            theirs = "default" if ours == "none" else ours
            config = transformers.LlamaConfig(
                hidden_size=16, num_attention_heads=1, max_position_embeddings=32 if ours == "dynamic" else 64)
            config.rope_scaling = dict(scaling, rope_type=theirs)
            frequencies, gain = ROPE_INIT_FUNCTIONS[theirs](config, "cpu", seq_len=64)
            f[f"{ours}/frequencies"], f[f"{ours}/gain"] = frequencies.numpy().astype(np.float32), np.float32(gain)


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for name in CONFIGS:
        write(directory / f"decoder_{name}.h5", name)
    write_rotary(directory / "rotary.h5")
