"""The systems of a comparison, in the order of their rows, and their commands.

A contender is Espalier with certain settings, or a rival: a program with the options --work and --out
(benchmarks/peers/rival.py). Contenders with the same `curve` compute the same numbers: "dense", or "masked" (the same
pruned weights and masks). None: rounds or omits values on purpose.
"""
import dataclasses
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "benchmarks" / "peers"


@dataclasses.dataclass(frozen=True)
class Contender:
    name: str
    title: str
    needs: str               # "espalier", "torch", "deepspeed"; "" for a command of the user
    curve: str | None
    settings: dict = dataclasses.field(default_factory=dict)  # of Espalier
    command: tuple = ()      # of a rival, without --work and --out; the rivals' python runs a .py file
    masked: bool = False     # starts from the pruned weights
    pipeline: bool = False   # the preset's ranks are stages
    replicas: int = 1        # of a pipeline: each adds the preset's ranks
    apart: tuple = ()        # dtypes in which it differs from the others of its curve
    smaller: bool = False    # another network: smaller.py chooses it and fills `preset`
    preset: dict = dataclasses.field(default_factory=dict)  # values that replace those of the preset


PIPELINE_REPLICAS = 2  # ZeRO-1 shards optimizer states across replicas
MIN_LR = 0.1  # the last learning rate of a run, divided by its peak
SPARSE = {"sparse.storage": "sparse"}
STATES = {**SPARSE, "optimizer.state_bits": 8}
CODEC = {**STATES, "parallel.codec": "maxmin:4"}


def _ours(name, title, curve, settings, **more):
    return Contender("espalier-" + name, "Espalier " + title, "espalier", curve, settings, **more)


def _torch(name, title, curve, *options, **more):
    return Contender(name, "PyTorch " + title, "torch", curve, command=(str(PEERS / "rival_ddp.py"), *options), **more)


def _deepspeed(name, title, script, *options, **more):
    return Contender(name, "DeepSpeed " + title, "deepspeed", "dense", command=(str(PEERS / script), *options), **more)


CONTENDERS = [
    _ours("dense", "dense", "dense", {}),
    _ours("smaller", "smaller dense network, equal time", None, {}, smaller=True),
    _ours("samo", "pruned, SAMO storage", "masked", {"sparse.storage": "dense"}, masked=True),
    _ours("sparse", "pruned, sparse products", "masked", SPARSE, masked=True),
    _ours("sparse-8bit", "sparse, 8-bit states", None, STATES, masked=True),
    _ours("sparse-codec", "sparse, 8-bit states, 4-bit gradients", None, CODEC, masked=True),
    _ours("pipeline", "pipeline, dense", "dense", {}, pipeline=True),
    _ours("pipeline-sparse", "pipeline, sparse products", "masked", SPARSE, masked=True, pipeline=True),
    _ours("pipeline-replicas", "pipeline, 2 replicas, dense", "dense", {}, pipeline=True, replicas=PIPELINE_REPLICAS),
    _ours("pipeline-replicas-sparse", "pipeline, 2 replicas, sparse products", "masked", SPARSE, masked=True,
          pipeline=True, replicas=PIPELINE_REPLICAS),
    _torch("ddp", "DDP eager", "dense"),
    _torch("ddp-compiled", "DDP compiled", "dense", "--compile"),
    _torch("ddp-fp16", "DDP, fp16 hook", None, "--hook", "fp16"),
    _torch("ddp-powersgd", "DDP, PowerSGD hook", None, "--hook", "powersgd"),
    _torch("ddp-masked", "DDP, dense masked", "masked", "--masked", masked=True),
    # In bf16, stage 0 makes fp32 copies of weights that are rounded already, so small first updates are lost.
    _deepspeed("zero-0", "ZeRO-0", "rival_zero.py", "--stage", "0", apart=("bf16",)),
    _deepspeed("zero-1", "ZeRO-1", "rival_zero.py", "--stage", "1"),
    _deepspeed("zero-2", "ZeRO-2", "rival_zero.py", "--stage", "2"),
    _deepspeed("deepspeed-pipeline", "pipeline", "rival_pipeline.py", pipeline=True),
    _deepspeed("deepspeed-pipeline-zero-1", "pipeline, 2 replicas, ZeRO-1", "rival_pipeline.py", "--replicas",
               str(PIPELINE_REPLICAS), "--zero-1", pipeline=True, replicas=PIPELINE_REPLICAS),
]


def own(text):
    """The rival of an option --rival NAME=COMMAND."""
    name, _, command = text.partition("=")
    if not name or not command:
        raise ValueError(f"--rival {text!r} is not of the form NAME=COMMAND")
    return Contender(name, name, "", None, command=tuple(command.split()))


def named(name):
    return next(c for c in CONTENDERS if c.name == name)


def own_preset(contender, preset):
    """The preset with the contender's own values."""
    return {**preset, **contender.preset}


def ranks(contender, preset):
    return preset["ranks"] * contender.replicas


def micro_batch(contender, preset):
    """Sequences of one forward. Without a pipeline, a rank's whole share."""
    return preset["pipeline_micro_batch"] if contender.pipeline else preset["global_batch"] // preset["ranks"]


def espalier_settings(contender, preset, seed, inputs, threads, lr):
    """Settings of `espalier train` for a contender; inputs: see inputs.py; lr: its peak learning rate."""
    preset = own_preset(contender, preset)
    settings = {
        "train.seed": seed, "train.steps": preset["steps"], "train.micro_batch": micro_batch(contender, preset),
        # One rate for all weights, as rivals have: systems of one curve compute the same.
        "train.parametrization": "standard", "train.dtype": preset["dtype"], "train.eval_every": preset["eval_every"],
        "train.eval_batches": preset["eval_batches"], "train.checkpoint_every": -1, "train.global_batch":
        preset["global_batch"], "run.trace": False, "run.threads": threads, "parallel.check_every": 0,
        "run.backend": "cuda" if preset["device"] == "cuda" else "auto",
        **model_settings(preset, inputs), **optimizer_settings(preset, lr), **contender.settings}
    if contender.pipeline:
        settings["parallel.pipeline"] = preset["ranks"]
    return settings


def model_settings(preset, inputs):
    return {
        "model.kind": "gpt", "model.layers": preset["layers"], "model.heads": preset["heads"],
        "model.width": preset["width"], "model.context": preset["context"], "model.tie_embeddings": preset["tie"],
        "model.dropout": 0.0, "model.vocabulary": inputs.vocabulary, "data.kind": "tokens",
        "data.train": [str(inputs.tokens)], "data.token_type": "uint16",
        "data.validation_fraction": preset["validation_fraction"]}


def optimizer_settings(preset, lr):
    return {
        "optimizer.kind": "adamw", "optimizer.lr": lr, "optimizer.min_lr": lr * MIN_LR,
        "optimizer.warmup_steps": preset["warmup"], "optimizer.schedule": "cosine", "optimizer.beta1": preset["beta1"],
        "optimizer.beta2": preset["beta2"], "optimizer.weight_decay": preset["weight_decay"],
        "optimizer.clip": preset["clip"]}
