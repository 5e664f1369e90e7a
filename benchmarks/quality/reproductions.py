#!/usr/bin/env python3
"""The experiments of four papers on small convolutional networks and Fashion-MNIST (docs/reproductions.md).

Papers: samo, 8bit, cgx, spectrain; `list` prints their cases. Images are 14 x 14 (means of 2 x 2 pixels), so that a
training takes seconds on one core. SGD with Nesterov's momentum, warm-up, half a cosine, crop by 1 and flip, each
image once an epoch. Tuned cases take the best of three learning rates (top-1, seed 1); the others take the rate of
their paper's case fp32, so that only the codec differs. Pipelines with delayed updates run on one rank
(parallel.schedule = "async:P"), which equals a pipeline of that many ranks to the bit.

  benchmarks/quality/reproductions.py run OUT.jsonl DATA [--papers samo 8bit cgx spectrain] [--seeds 1 2 3]
  benchmarks/quality/reproductions.py table OUT.jsonl     Markdown
  benchmarks/quality/reproductions.py list
  benchmarks/quality/reproductions.py speed OUT.jsonl DATA [--rates 1gbit 100mbit]
      images/s of SPEED on two hosts that are namespaces (scripts/two_hosts.sh); needs root and an idle machine

DATA: folder of Fashion-MNIST's four uncompressed IDX files. `run` and `speed` continue after the last line of
OUT.jsonl. Standard library only.
"""
import json
import os
import statistics
import sys

import images
import runs

TRAIN, VALIDATION = 12000, 10000
NETWORKS = {
    "convnet": ["conv 16 3", "max 2", "conv 32 3", "max 2", "linear 64"],
    "alexnet-like": ["conv 24 5", "lrn", "max 2", "conv 48 3", "lrn", "conv 48 3", "max 2", "linear 128", "linear 128"],
    "vgg-like": ["2 x conv 16 3 norm", "max 2", "2 x conv 32 3 norm", "max 2", "2 x conv 64 3 norm", "linear 128"],
    "wide-like": ["conv 16 3 plain", "wide 32 stride 2", "wide 64 stride 2", "wide 64", "norm", "mean"],
    "resnet-like": ["conv 16 3 norm", "basic 16", "basic 32 stride 2", "basic 64 stride 2", "mean"],
}
STEPS, BATCH = 375, 64  # two epochs
COMMON = {
    **runs.QUIET, "model.kind": "vision", "data.crop": 1, "data.flip": True, "data.order": "epochs",
    "train.steps": STEPS, "train.global_batch": BATCH, "train.eval_every": 0, "train.eval_batches": 0,
    "train.parametrization": "standard", "optimizer.kind": "sgd", "optimizer.momentum": 0.9,
    "optimizer.nesterov": True, "optimizer.min_lr": 0.0, "optimizer.warmup_steps": 30,
    "optimizer.weight_decay": 5e-4, "optimizer.clip": 0.0,
}
RATES = [0.01, 0.03, 0.1]
EIGHT_BIT = ["dynamic8", "static8", "mantissa8", "linear8", "fp8-e4m3", "fp8-e5m2"]
ONE_SEED = ["gradients-fp8-e4m3", "gradients-fp8-e5m2", "stages-fp8-e4m3", "stages-fp8-e5m2"]  # not of the paper


def early_bird(ranks):
    return {"pruning.method": "early-bird", "pruning.sparsity": 0.9, "pruning.every": 10, "pruning.to_step": 150,
            "sparse.storage": "dense", "ranks": ranks, "tuned": True}


def cases_of(paper):
    """{case: settings; "ranks", and "tuned": has its own learning rate}."""
    if paper == "samo":
        return {"dense": {"ranks": 2, "tuned": True}, "early-bird": early_bird(2)}
    if paper == "8bit":
        gradients = {"ranks": 2}
        stages = {"ranks": 2, "parallel.pipeline": 2, "train.micro_batch": BATCH // 2, "parallel.schedule": "1f1b"}
        return {"fp32": {**gradients, "tuned": True}, "stages-fp32": stages,
                **{f"gradients-{codec}": {**gradients, "parallel.codec": codec} for codec in EIGHT_BIT},
                **{f"stages-{codec}": {**stages, "parallel.activation_codec": codec} for codec in EIGHT_BIT}}
    if paper == "cgx":
        four = {"ranks": 2, "parallel.codec": "maxmin:4"}
        return {"fp32": {"ranks": 2, "tuned": True},
                "4 bits": four,
                "4 bits, all layers": {**four, "test": "parallel.codec_min_size=0"},
                "4 bits, first and last layer fp32": {
                    "ranks": 2, "parallel.codec": {"default": "maxmin:4", "0.*": "fp32", "classifier.*": "fp32"}},
                "adaptive": {"ranks": 2, "parallel.codec": "adaptive:50"}}
    out = {"synchronous": {"tuned": True}}
    for stages in (2, 4):
        for prediction in ("none", "spectrain"):
            out[f"{stages} stages, {prediction}"] = {
                "parallel.schedule": f"async:{stages}",
                "parallel.weight_prediction": prediction, "tuned": True}
    return out


BASE = {"8bit": "fp32", "cgx": "fp32"}  # whose rate the cases take that are not tuned
PAPERS = {"samo": ["vgg-like", "wide-like"], "8bit": ["convnet", "alexnet-like"], "cgx": ["resnet-like", "vgg-like"],
          "spectrain": ["vgg-like", "resnet-like"]}


def settings_of(run, data):
    case = cases_of(run["paper"])[run["case"]]
    return {**COMMON, **data, "model.network": NETWORKS[run["network"]], "optimizer.lr": run["lr"],
            "train.seed": run["seed"], **{key: value for key, value in case.items() if "." in key}}


def launcher(ranks, test=""):
    return ["env", f"ESPALIER_TEST={test}", *([str(runs.ROOT / "scripts/mpirun.sh"), str(ranks)] if ranks > 1 else []), runs.PROGRAM]


def train(run, data):
    case = cases_of(run["paper"])[run["case"]]
    line = {**run, "val_top1": None}
    with runs.trained(launcher(case.get("ranks", 1), case.get("test", "")), settings_of(run, data)) as directory:
        if directory is not None:
            rows = runs.lines(directory / "metrics.jsonl")
            summary = json.loads((directory / "summary.json").read_text())
            last = rows[-1]
            line |= {"val_top1": summary["final_val_top1"], "val_loss": summary["final_val_loss"],
                     "sent": statistics.median(row["comm_bytes_sent"] for row in rows[-20:]),
                     "between_stages": last["p2p_bytes"], "gradient_bytes": last["allreduce_bytes"],
                     "sparsity": last["sparsity"],
                     "state": sum(summary["memory"]["total"][kind]["bytes"]
                                  for kind in ("weight", "gradient", "master", "moment", "index")),
                     "seconds": round(sum(row["step_ms"] for row in rows) / 1e3, 1)}
    print(json.dumps(line), flush=True)
    return line


def top1(line):
    return line["val_top1"] or 0


def best_rate(lines, paper, network, case):
    if not cases_of(paper)[case].get("tuned"):
        case = BASE[paper]
    swept = [line for line in lines if (line["paper"], line["network"], line["case"], line["seed"]) == (paper, network, case, 1)]
    return max(swept, key=top1)["lr"]


def run_all(given):
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    data = images.subset(given.data, given.data_out, TRAIN, VALIDATION, True)

    def make(wanted):
        runs.write(given.out, (train(run, data) for run in runs.left(given.out, wanted)))

    for seed in given.seeds:
        for paper in given.papers:
            for network in PAPERS[paper]:
                for case, settings in cases_of(paper).items():
                    if seed != 1 and case in ONE_SEED:
                        continue
                    key = {"paper": paper, "network": network, "case": case}
                    if seed == 1 and settings.get("tuned"):
                        make({**key, "lr": lr, "seed": 1} for lr in RATES)
                    lr = best_rate(runs.lines(given.out), paper, network, case)
                    make([{**key, "lr": lr, "seed": seed}])


SHOWN = {"samo": {"bytes sent a step": "sent", "state, both replicas": "state"}, "8bit": {"bytes sent a step": "sent"},
         "cgx": {"bytes sent a step": "sent"}, "spectrain": {}}


def span(values):
    """Least and most, if they differ."""
    low, high = round(min(values)), round(max(values))
    return f"{low:,}" if low == high else f"{low:,} … {high:,}"


def table(given):
    lines = runs.lines(given.out)
    for paper in dict.fromkeys(line["paper"] for line in lines):
        first = next(iter(cases_of(paper)))
        heads = ["network", "case", "learning rate", "top-1 (%)", f"minus {first}", *SHOWN[paper]]
        print(f"\n{paper}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        mine = [line for line in lines if line["paper"] == paper]
        for network, case in dict.fromkeys((line["network"], line["case"]) for line in mine):
            def at_best(name):
                lr = best_rate(lines, paper, network, name)
                return {line["seed"]: line for line in mine
                        if (line["network"], line["case"], line["lr"]) == (network, name, lr)}, lr
            reference = "stages-fp32" if case.startswith("stages-") else first
            (seeds, lr), (base, _) = at_best(case), at_best(reference)
            apart = [100 * (top1(seeds[seed]) - top1(base[seed])) for seed in seeds if seed in base]
            cells = [network, case, f"{lr:g}", runs.mean_and_spread([100 * top1(line) for line in seeds.values()], 2),
                     "" if case == reference else runs.mean_and_spread(apart, 2, "+"),
                     *(span([line[key] for line in seeds.values()]) for key in SHOWN[paper].values())]
            print(f"| {' | '.join(cells)} |")


SPEED = {  # pipelines of two hosts against replicas, when weights are large: VGG's linear layers
    "data parallel": {"parallel.pipeline": 1},
    "data parallel, 4 bits": {"parallel.pipeline": 1, "parallel.codec": "maxmin:4"},
    "2 stages, 1f1b": {"parallel.pipeline": 2, "train.micro_batch": 16},
    "2 stages, async, spectrain": {"parallel.pipeline": 2, "parallel.schedule": "async", "train.micro_batch": 16,
                                   "parallel.weight_prediction": "spectrain"},
}
SPEED_NETWORK = [*NETWORKS["vgg-like"][:-1], "linear 1024", "linear 1024"]


def speed(given):
    data = images.subset(given.data, given.data_out, TRAIN, VALIDATION, True)
    wanted = [{"speed": name, "rate": rate, "round": number}
              for number in range(3) for rate in given.rates for name in SPEED]
    for run in runs.left(given.out, wanted):
        settings = {**COMMON, **data, "model.network": SPEED_NETWORK, "train.steps": 40, "train.eval_batches": 1,
                    "optimizer.lr": 0.01, **SPEED[run["speed"]]}
        start = [str(runs.ROOT / "scripts/two_hosts.sh"), "--rate", run["rate"], "mpirun", runs.PROGRAM]
        with runs.trained(start, settings) as directory:
            if directory is None:
                sys.exit(f"{run} diverged")
            rows = runs.lines(directory / "metrics.jsonl")[10:]
            runs.write(given.out, [{**run, "images_per_s": statistics.median(row["images_per_s"] for row in rows),
                                    "sent": statistics.median(row["comm_bytes_sent"] for row in rows)}])


def names(_):
    for paper, networks in PAPERS.items():
        print(f"{paper}: {', '.join(networks)}", *cases_of(paper), sep="\n  ")


if __name__ == "__main__":
    DATA = {"out": {}, "data": {}, "--data-out": {"default": "/tmp/fashion-subsets"}}
    runs.main(__doc__, run=(run_all, {
        **DATA, "--papers": {"nargs": "+", "default": list(PAPERS), "choices": list(PAPERS)},
        "--seeds": {"type": int, "nargs": "+", "default": runs.SEEDS}}),
        table=(table, {"out": {}}), speed=(speed, {**DATA, "--rates": {"nargs": "+", "default": ["1gbit", "100mbit"]}}),
        list=(names, {}))
