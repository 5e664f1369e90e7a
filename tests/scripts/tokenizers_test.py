"""tokenizers_test.py ROOT PROGRAM VENV [STRINGS]: io::Tokenizer against the libraries `tokenizers` and `sentencepiece`.

Trains small tokenizers with the parts of each family of models on pages of ROOT, encodes and decodes STRINGS random
texts (default 100,000) with each library, and lets PROGRAM (io_tests) compare: equal ids, equal texts.

Needs both (`sentencepiece` before 0.2, as in Debian 12): of the Python that TOKENIZERS_PYTHON names, or of the virtual
environment VENV, which is made by pip when it is missing. Exit code 77 (skipped) if it cannot be made."""
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from python_with import restart_with

ROOT, PROGRAM, VENV = (pathlib.Path(path).absolute() for path in sys.argv[1:4])
STRINGS = int(sys.argv[4]) if len(sys.argv) > 4 and sys.argv[4].isdigit() else 100_000

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARK = "\u2581"


def corpus():
    pages = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md"))[:12]]
    code = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("io/*/*.cpp"))[:8]]
    others = ("Съешь же ещё этих мягких французских булок. Ζαφείρι δέξου πάγκαλο. 私は日本語を話します。"
              "我喜欢学习语言。 हिन्दी में लिखा हुआ. Zażółć gęślą jaźń. déjà vu; naïve café. 🙂👩‍👩‍👧 ") * 40
    return "\n".join(pages + code + [others])


def families():
    """(name, tokenizer.json as a dict) of each."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, \
        trainers
    text = corpus()

    def trained(pre, normalizer=None, size=1500, specials=(), alphabet=True, whole=False, **model):
        tokenizer = Tokenizer(models.BPE(**model))
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre:
            tokenizer.pre_tokenizer = pre
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(specials), show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [])
        tokenizer.train_from_iterator(text.splitlines() if whole else [text], trainer)
        return tokenizer

    def template(tokenizer, before=(), after=()):
        pieces = [*before, "$A", *after]
        return processors.TemplateProcessing(
            single=" ".join(pieces), special_tokens=[(name, tokenizer.token_to_id(name)) for name in {*before, *after}])

    byte_level = pre_tokenizers.ByteLevel
    gpt2 = trained(byte_level(add_prefix_space=False), specials=["<|endoftext|>"])
    gpt2.decoder, gpt2.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    yield "gpt2", json.loads(gpt2.to_str())

    opt = trained(byte_level(add_prefix_space=True), specials=["<s>", "</s>", "<pad>"])
    opt.decoder, opt.post_processor = decoders.ByteLevel(), template(opt, ["</s>"])
    yield "opt", json.loads(opt.to_str())

    neox = trained(byte_level(add_prefix_space=False), normalizers.NFC(), specials=["<|endoftext|>", "<|padding|>"])
    neox.decoder = decoders.ByteLevel()
    neox.add_tokens([AddedToken(" " * count, normalized=True) for count in range(2, 12)])
    yield "neox", json.loads(neox.to_str())

    for name, pattern in (("llama3", LLAMA3), ("qwen2", QWEN2), ("gpt4o", GPT4O)):
        parts = [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(add_prefix_space=False, use_regex=False)]
        each = trained(pre_tokenizers.Sequence(parts), normalizers.NFC() if name == "qwen2" else None,
                       specials=["<|begin|>", "<|end|>"])
        each.decoder = decoders.ByteLevel()
        if name == "llama3":
            each.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                                       template(each, ["<|begin|>"])])
        if name == "qwen2":  # not special, and composed by the normalizer or not
            each.add_tokens([AddedToken("<think>", normalized=False), AddedToken("cafe\u0301", normalized=True)])
        config = json.loads(each.to_str())
        if name == "llama3":
            config["model"]["ignore_merges"] = True
            merges = config["model"]["merges"]
            config["model"]["merges"] = merges[: len(merges) // 2]  # so that whole words matter
        yield name, config

    starcoder = trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 byte_level(add_prefix_space=False)]), specials=["<|endoftext|>"])
    starcoder.decoder = decoders.ByteLevel()
    yield "starcoder", json.loads(starcoder.to_str())

    digits = trained(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\r\n]"), "merged_with_previous"), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(" ", "contiguous"), byte_level(add_prefix_space=False, use_regex=False)]))
    digits.decoder = decoders.ByteLevel()
    yield "digits", json.loads(digits.to_str())

    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    specials = ["<unk>", "<s>", "</s>", *bytes_of]
    fallback = {"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    space = normalizers.Replace(" ", MARK)
    to_text = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]

    def without_bytes(config):
        """Byte tokens belong to the vocabulary only."""
        config["added_tokens"] = [token for token in config["added_tokens"] if not token["content"].startswith("<0x")]
        return config

    for name, pre in (("llama2", pre_tokenizers.Metaspace(prepend_scheme="never")), ("llama2_crossing", None)):
        llama2 = trained(pre, normalizers.Sequence([normalizers.Prepend(MARK), space]), specials=specials,
                         alphabet=False, whole=pre is None, **fallback)
        llama2.pre_tokenizer = None
        llama2.decoder = decoders.Sequence([*to_text, decoders.Strip(" ", 1, 0)])
        llama2.post_processor = template(llama2, ["<s>"])
        yield name, without_bytes(json.loads(llama2.to_str()))

    mistral = trained(pre_tokenizers.Metaspace(prepend_scheme="first", split=True), specials=specials, alphabet=False,
                      **fallback)
    mistral.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    mistral.decoder = decoders.Sequence([*to_text, decoders.Strip(" ", 1, 0)])
    mistral.post_processor = template(mistral, ["<s>"], ["</s>"])
    yield "mistral", without_bytes(json.loads(mistral.to_str()))

    gemma = trained(pre_tokenizers.Metaspace(prepend_scheme="never"), space, specials=specials, alphabet=False,
                    **fallback)
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.decoder = decoders.Sequence(to_text)
    gemma.post_processor = template(gemma, ["<s>"])
    yield "gemma", without_bytes(json.loads(gemma.to_str()))

    metaspace = trained(pre_tokenizers.Metaspace(), specials=["<unk>", "<s>"], alphabet=False, unk_token="<unk>")
    metaspace.decoder = decoders.Metaspace()
    metaspace.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<sep>", rstrip=True),
                                  AddedToken("<both>", lstrip=True, rstrip=True)])
    metaspace.add_tokens([AddedToken("data", single_word=True), AddedToken("ab", single_word=True, lstrip=True),
                          AddedToken("bc", normalized=False), AddedToken("  x", normalized=False)])
    yield "metaspace", json.loads(metaspace.to_str())

    unknown = trained(pre_tokenizers.Metaspace(), specials=["<unk>"], alphabet=False, unk_token="<unk>", fuse_unk=True)
    yield "unknown", json.loads(unknown.to_str())


def sentencepiece_models():
    """(name, bytes of tokenizer.model) of each."""
    import sentencepiece
    lines = [line for line in corpus().splitlines() if line.strip()]

    def trained(**options):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2,
            input_sentence_size=0, max_sentence_length=1 << 20, hard_vocab_limit=False, **options)
        return model.getvalue()

    keeps = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    llama = {"model_type": "bpe", "byte_fallback": True, "character_coverage": 0.995, **keeps}
    yield "spm_llama", trained(**llama, vocab_size=1500, split_digits=True, allow_whitespace_only_pieces=True)
    yield "spm_gemma", trained(**llama, vocab_size=1500, add_dummy_prefix=False, user_defined_symbols=[
        MARK * count for count in range(2, 12)] + ["\n" * count for count in range(1, 6)] + [
        "\t", "\t\t", "<mask>", "<h1>", "==="])
    yield "spm_crossing", trained(**llama, vocab_size=1500, split_by_whitespace=False)
    yield "spm_bpe", trained(model_type="bpe", vocab_size=1500)
    yield "spm_folded", trained(model_type="bpe", vocab_size=1500, normalization_rule_name="nmt_nfkc_cf",
                                add_dummy_prefix=False)
    yield "spm_suffix", trained(model_type="bpe", vocab_size=1500, treat_whitespace_as_suffix=True)
    yield "spm_characters", trained(model_type="char", vocab_size=1500)
    yield "spm_t5", trained(model_type="unigram", vocab_size=1500, bos_id=-1, pad_id=3, user_defined_symbols=[
        f"<extra_id_{number}>" for number in range(12)])
    yield "spm_unigram_bytes", trained(model_type="unigram", vocab_size=1500, byte_fallback=True, **keeps)


class Texts:
    """Random texts: words and code, scripts, white space, marks, contractions, added tokens."""

    def __init__(self, seed, added):
        self.random = random.Random(seed)
        self.words = corpus().split(" ")
        self.added = added
        # Characters of old versions of Unicode, on which all libraries agree.
        old = unicodedata.ucd_3_2_0
        self.points = [chr(point) for point in range(1, 0x30000) if not 0xd800 <= point < 0xe000 and
                       old.category(chr(point)) != "Cn" and point != 0x180e]
        self.marks = [c for c in self.points if old.category(c).startswith("M")]
        self.spaces = [" ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\u0085", "\u2028", "\v"]
        self.pieces = [self.word, self.word, self.word, self.space, self.character, self.characters, self.number,
                       self.composed, self.short, self.token, self.run]

    def word(self):
        return self.random.choice(self.words) + " "

    def space(self):
        return self.random.choice(self.spaces) * self.random.randint(1, 4)

    def character(self):
        return self.random.choice(self.points)

    def characters(self):
        begin = self.random.randrange(len(self.points) - 64)
        return "".join(self.points[begin + self.random.randrange(64)] for _ in range(self.random.randint(1, 8)))

    def number(self):
        return str(self.random.randrange(10 ** self.random.randint(1, 9)))

    def composed(self):
        return self.random.choice("aeiouAEIOUnNcgk") + "".join(
            self.random.choice("\u0301\u0300\u0308\u0327\u0323\u0344" + self.random.choice(self.marks))
            for _ in range(self.random.randint(0, 3)))

    def short(self):
        return self.random.choice(["'s", "'S", "'ll", "'LL", "'Ve", "'re ", "'\u017f", "n't", "\u2019s", "\u212a", MARK,
                                   MARK * 3, "<0x0A>", "\U0001f468\u200d\U0001f469", "\u0130", "\ufffd", "//", "{}\n"])

    def token(self):
        text = self.random.choice(self.added) if self.added else ""
        return self.random.choice(["", " ", "  "]) + text + self.random.choice(["", " ", " \n", "a"])

    def run(self):
        return self.random.choice(["a", "ab", " ", "\n", "=", "é", "字"]) * self.random.randint(1, 90)

    def text(self):
        return "".join(self.random.choice(self.pieces)() for _ in range(self.random.choice([1, 2, 3, 5, 9, 20])))


def write_cases(folder):
    from tokenizers import Tokenizer
    configs = dict(families())
    for seed, (name, config) in enumerate(configs.items()):
        text = json.dumps(config, ensure_ascii=seed % 2 == 0)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
        tokenizer = Tokenizer.from_str(text)
        texts = Texts(seed, [token["content"] for token in config["added_tokens"]])
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for count in range(-(-STRINGS // len(configs))):
                string = texts.text() if count else ""
                ids = tokenizer.encode(string).ids
                json.dump({"text": string, "ids": ids,
                           "plain": tokenizer.encode(string, add_special_tokens=False).ids,
                           "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                           "skipped": tokenizer.decode(ids, skip_special_tokens=True)}, file)
                file.write("\n")


def write_sentencepiece_cases(folder):
    import sentencepiece
    models = dict(sentencepiece_models())
    for seed, (name, model) in enumerate(models.items()):
        (folder / f"{name}.model").write_bytes(model)
        library = sentencepiece.SentencePieceProcessor(model_proto=model)
        before = [library.bos_id()] if library.bos_id() >= 0 else []
        texts = Texts(100 + seed, ["<s>", "</s>", "<mask>", "<h1>", "===", "<extra_id_1>", "<extra_id_11>"])
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for count in range(-(-STRINGS // len(models))):
                string = texts.text() if count else ""
                plain = library.encode(string)
                known = [token for token in plain if token != library.unk_id()]
                json.dump({"text": string, "ids": before + plain, "plain": plain,
                           "decoded": "".join(map(library.id_to_piece, before)) + library.decode(plain),
                           "skipped": library.decode(known)}, file)
                file.write("\n")


def main():
    # From 0.2 on, unigram models take another one of two equally good divisions.
    restart_with("import tokenizers, sentencepiece; assert sentencepiece.__version__ < '0.2'",
                 ["tokenizers", "sentencepiece<0.2"], VENV, "TOKENIZERS_PYTHON")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(os.environ.get("TOKENIZERS_CASES", name))
        folder.mkdir(exist_ok=True)
        write_cases(folder)
        write_sentencepiece_cases(folder)
        done = subprocess.run([PROGRAM, "--gtest_filter=TokenizerReference.*"],
                              env={**os.environ, "ESPALIER_TOKENIZER_CASES": str(folder)}, text=True,
                              capture_output=True)
        print(done.stdout[-20000:] + done.stderr[-2000:])
        if done.returncode or "[  PASSED  ] 1 test" not in done.stdout:
            sys.exit(1)


main()
