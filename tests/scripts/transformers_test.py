"""transformers_test.py PROGRAM VENV: models of Hugging Face's library `transformers` in and out of Espalier.

For each family: transformers saves a small model with random weights, `espalier import` reads it, and `espalier eval`
gives the loss of transformers on the same tokens, within 1e-4. `espalier export` writes it, and transformers loads
the same bits. Also: shards, bf16, pruned weights, ends of texts, a checkpoint of a training run.

Needs torch and transformers: of the Python that TRANSFORMERS_PYTHON names, or of the virtual environment VENV, which is
made by pip when it is missing. Exit code 77 (skipped) if it cannot be made."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from python_with import restart_with

PROGRAM, VENV = (pathlib.Path(path).absolute() for path in sys.argv[1:3])
CONTEXT, VOCABULARY, WINDOWS = 48, 211, 6


def configs():
    """(name, config) of each family, with what may vary in it."""
    import transformers as t
    llama = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
                 num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=CONTEXT)
    yield "gpt2", t.GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=3, n_head=4, n_positions=CONTEXT,
                               resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    yield "llama", t.LlamaConfig(**llama)
    yield "llama tied", t.LlamaConfig(**llama, tie_word_embeddings=True, head_dim=12, rope_theta=500000.0)
    yield "llama3 scaling", t.LlamaConfig(**llama, rope_scaling={
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16})
    yield "linear scaling", t.LlamaConfig(**llama, rope_scaling={"rope_type": "linear", "factor": 2.0})
    yield "yarn scaling", t.LlamaConfig(**llama, rope_scaling={
        "rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16})
    yield "mistral", t.MistralConfig(**llama, sliding_window=None)
    yield "mistral window", t.MistralConfig(**llama, sliding_window=11)
    yield "qwen2", t.Qwen2Config(**llama)
    yield "qwen2 tied", t.Qwen2Config(**llama, tie_word_embeddings=True)
    yield "qwen3", t.Qwen3Config(**{**llama, "head_dim": 16})
    yield "gemma", t.GemmaConfig(**{**llama, "head_dim": 16})
    gemma3 = {**llama, "head_dim": 16, "sliding_window": 11}
    yield "gemma3", t.Gemma3TextConfig(**gemma3, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    yield "gemma3 scaled", t.Gemma3TextConfig(
        **gemma3, query_pre_attn_scalar=20, rope_local_base_freq=500.0, rope_scaling={"rope_type": "linear", "factor": 8.0})
    neox = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=128, num_hidden_layers=3,
                num_attention_heads=3, max_position_embeddings=CONTEXT, attention_dropout=0, hidden_dropout=0,
                rotary_pct=0.5)
    yield "neox", t.GPTNeoXConfig(**neox)
    yield "neox sequential", t.GPTNeoXConfig(**neox, use_parallel_residual=False)
    yield "neox without biases", t.GPTNeoXConfig(**neox, attention_bias=False)
    opt = dict(vocab_size=VOCABULARY, hidden_size=48, ffn_dim=112, num_hidden_layers=3, num_attention_heads=4,
               max_position_embeddings=CONTEXT, word_embed_proj_dim=48, dropout=0, attention_dropout=0)
    yield "opt", t.OPTConfig(**opt)
    yield "opt without biases", t.OPTConfig(**opt, enable_bias=False)
    yield "gpt2 wide", t.GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=CONTEXT,
                                    n_inner=100, activation_function="relu", layer_norm_epsilon=1e-3,
                                    tie_word_embeddings=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)


def run(folder, *arguments, fails=False):
    done = subprocess.run([str(PROGRAM), *map(str, arguments)], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "2"})
    if bool(done.returncode) != fails:
        raise AssertionError(f"espalier {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stdout}"
                             f"{done.stderr}")
    return done


def model_of(config, dtype=None):
    """With weights that make the loss sensitive to each of them."""
    import torch
    import transformers
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
            else:
                weight.copy_(torch.randn_like(weight) * (0.8 / weight.shape[-1]**0.5 if "embed" not in name else 0.4))
    return model.to(dtype) if dtype else model


def tokens():
    import torch
    torch.manual_seed(3)
    return torch.randint(0, VOCABULARY, (WINDOWS * CONTEXT + 1,))


def write_tokens(path, ids):
    path.write_bytes(b"".join(int(i).to_bytes(2, "little") for i in ids))


def loss_of(model, ids):
    """Mean over windows of CONTEXT tokens, as `espalier eval` takes them."""
    import torch
    with torch.no_grad():
        inputs = torch.stack([ids[w * CONTEXT:(w + 1) * CONTEXT] for w in range(WINDOWS)])
        targets = torch.stack([ids[w * CONTEXT + 1:(w + 1) * CONTEXT + 1] for w in range(WINDOWS)])
        logits = model(inputs).logits.double()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


def eval_of(folder, file, *more):
    return json.loads(run(folder, "eval", file, "--json", "--set", 'data.train=["t.bin"]', "--set",
                          'data.validation=["v.bin"]', "--set", "train.eval_batches=0", *more).stdout)["val_loss"]


def text_loss_of(model, ids, stride):
    """The loop of transformers' documentation ("Perplexity of fixed-length models"), with each window's mean weighted
    by the number of tokens that it predicts; and that number in all."""
    import torch
    total, predicted, before = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + CONTEXT, len(ids))
        targets = ids[begin:end].clone()[None]
        targets[:, :-(end - before)] = -100
        count = int((targets[:, 1:] != -100).sum())
        if count:
            with torch.no_grad():
                total += model(ids[begin:end][None], labels=targets).loss.item() * count
            predicted += count
        before = end
        if end == len(ids):
            break
    return total / predicted, predicted


def differences(a, b):
    """Of state dicts, bit by bit."""
    import torch
    found = [f"only in one: {sorted(set(a) ^ set(b))}"] if set(a) != set(b) else []
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    for name in set(a) & set(b):
        one, other = a[name], b[name]
        if one.dtype != other.dtype or one.shape != other.shape or not torch.equal(
                one.contiguous().view(bits[one.element_size()]), other.contiguous().view(bits[other.element_size()])):
            found.append(name)
    return found


class Transformers(unittest.TestCase):

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.dir = pathlib.Path(self.scratch.name)
        self.ids = tokens()
        write_tokens(self.dir / "v.bin", self.ids)
        write_tokens(self.dir / "t.bin", self.ids.flip(0))

    def loaded(self, folder):
        import transformers
        return transformers.AutoModelForCausalLM.from_pretrained(self.dir / folder, attn_implementation="eager",
                                                                 dtype="auto").eval()

    def imported(self, name, config, dtype=None):
        """A folder with the model of transformers (hub) and its checkpoint (dense.h5); the model."""
        folder = self.dir / f"{name.replace(' ', '-')}-{dtype}"
        folder.mkdir()
        model = model_of(config, dtype)
        model.save_pretrained(folder / "hub", max_shard_size="60KB" if name == "gpt2" else "5GB")
        run(self.dir, "import", folder / "hub", "-o", folder / "dense.h5")
        return folder, model

    def test_each_family(self):
        import torch
        for name, config in configs():
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                with self.subTest(name, dtype=dtype):
                    folder, model = self.imported(name, config, dtype)
                    run(self.dir, "export", folder / "dense.h5", "-o", folder / "back", "--shard-size", "100kB")
                    self.assertEqual(differences(model.state_dict(), self.loaded(folder / "back").state_dict()), [])
                    if dtype == torch.float32:
                        self.assertEqual((folder / "back" / "config.json").read_text(),
                                         (folder / "hub" / "config.json").read_text())
                    mine = eval_of(self.dir, folder / "dense.h5", "--set", "train.dtype=fp32")
                    same = model_of(config)  # Gemma 3 keeps sqrt(hidden_size) rounded in a model that was in bf16
                    same.load_state_dict(model.float().state_dict())
                    theirs = loss_of(same, self.ids)
                    print(f"{name} {dtype}: loss {theirs:.6f}, espalier {mine - theirs:+.1e}")
                    self.assertAlmostEqual(mine, theirs, delta=1e-4)
                    self.assertGreater(abs(theirs - 5.35), 0.02, "the weights matter")

    def test_perplexity_by_sliding_windows(self):
        for name, config in configs():
            folder, model = self.imported(name, config)
            for stride in (CONTEXT, CONTEXT // 2, 7):
                with self.subTest(name, stride=stride):
                    mine = json.loads(run(self.dir, "eval", folder / "dense.h5", "--data", "v.bin", "--stride", stride,
                                          "--json").stdout)
                    theirs, predicted = text_loss_of(model, self.ids, stride)
                    self.assertEqual(mine["predictions"], predicted)
                    self.assertAlmostEqual(mine["loss"], theirs, delta=1e-5)

    def test_pruned_models(self):
        import torch
        for name, config in configs():
            with self.subTest(name):
                folder, model = self.imported(name, config)
                run(self.dir, "prune", folder / "dense.h5", "-o", folder / "pruned.h5", "--method", "magnitude",
                    "--sparsity", "0.7")
                run(self.dir, "export", folder / "pruned.h5", "-o", folder / "back", "--sparse")
                back = self.loaded(folder / "back")
                zeros = sum(int((weight == 0).sum()) for weight in back.state_dict().values())
                self.assertGreater(zeros, 0.3 * sum(weight.numel() for weight in back.state_dict().values()))
                for key, weight in back.state_dict().items():
                    was = model.state_dict()[key]
                    self.assertTrue(torch.equal(weight[weight != 0], was[weight != 0]), key)
                mine, theirs = eval_of(self.dir, folder / "pruned.h5"), loss_of(back, self.ids)
                self.assertAlmostEqual(mine, theirs, delta=1e-4)
                # transformers' zeros become masks again.
                run(self.dir, "import", folder / "back", "-o", folder / "again.h5", "--zeros-are-pruned")
                facts = [json.loads(run(self.dir, "inspect", folder / file, "--json").stdout)["kept_parameters"]
                         for file in ("pruned.h5", "again.h5")]
                self.assertEqual(*facts)

    def test_texts_end_as_those_of_generate(self):
        import torch
        config = dict(configs())["llama"]
        config.eos_token_id = None
        model = model_of(config)
        prompt = [5, 17, 23]
        for case in range(5):
            with self.subTest(case=case):
                folder = self.dir / f"end-{case}"
                model.save_pretrained(folder)
                (folder / "generation_config.json").unlink()
                loaded = self.loaded(folder)
                greedy = loaded.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0].tolist()[3:]
                ends = {"config.json": [None, greedy[7], [greedy[9], greedy[4]], greedy[5], 3 * VOCABULARY][case],
                        "generation_config.json": [None, None, None, [greedy[11], greedy[2]], None][case]}
                facts = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps({**facts, "eos_token_id": ends["config.json"]}))
                if ends["generation_config.json"]:
                    (folder / "generation_config.json").write_text(
                        json.dumps({"eos_token_id": ends["generation_config.json"]}))
                run(self.dir, "import", folder, "-o", "dense.h5")
                run(self.dir, "prune", "dense.h5", "-o", "same.h5", "--method", "magnitude", "--sparsity", "0")
                run(self.dir, "export", "same.h5", "-o", folder / "back")
                for of in (folder, folder / "back"):
                    theirs = self.loaded(of).generate(torch.tensor([prompt]), max_new_tokens=20,
                                                      do_sample=False)[0].tolist()[3:]
                    mine = json.loads(run(self.dir, "sample", "same.h5", "--prompt", " ".join(map(str, prompt)),
                                          "--temperature", "0", "--tokens", "20", "--json").stdout)["texts"][0]
                    self.assertEqual(mine["tokens"], theirs)
                    self.assertEqual(mine["finish"], "length" if len(theirs) == 20 else "end token")
                self.assertEqual(len(theirs) == 20, case in (0, 4))

    def test_a_run_goes_back(self):
        name, config = next(configs())
        model_of(config).save_pretrained(self.dir / "hub")
        run(self.dir, "import", "hub", "-o", "dense.h5")
        (self.dir / "c.toml").write_text('[data]\nkind = "tokens"\ntrain = ["t.bin"]\nvalidation = ["v.bin"]\n'
                                         '[train]\nsteps = 4\n'
                                         'global_batch = 2\n[run]\nout = "run"\n')
        run(self.dir, "train", "c.toml", "--init", "dense.h5")
        run(self.dir, "export", "run/checkpoints/step-000004.h5", "-o", "back")
        mine = eval_of(self.dir, "run/checkpoints/step-000004.h5")
        self.assertAlmostEqual(mine, loss_of(self.loaded("back"), self.ids), delta=1e-4)

    def test_a_model_of_a_run_without_import(self):
        import transformers
        (self.dir / "c.toml").write_text(
            f'[model]\nlayers = 2\nheads = 2\nwidth = 32\ncontext = {CONTEXT}\nvocabulary = {VOCABULARY}\n[data]\n'
            'kind = "tokens"\ntrain = ["t.bin"]\nvalidation = ["v.bin"]\n[train]\nsteps = 3\nglobal_batch = 2\n'
            '[run]\nout = "run"\n')
        run(self.dir, "train", "c.toml")
        run(self.dir, "export", "run/checkpoints/step-000003.h5", "-o", "out")
        model = self.loaded("out")
        self.assertIsInstance(model, transformers.GPT2LMHeadModel)
        self.assertAlmostEqual(eval_of(self.dir, "run/checkpoints/step-000003.h5"), loss_of(model, self.ids),
                               delta=1e-4)


if __name__ == "__main__":
    restart_with("import torch, transformers", ["torch", "transformers==4.57.6", "numpy"], VENV, "TRANSFORMERS_PYTHON")
    unittest.main(argv=sys.argv[:1] + [argument for argument in sys.argv[3:] if argument != "--inside"])
