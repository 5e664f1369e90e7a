#!/usr/bin/env python3
"""Validation loss of sparse and dense training, each at its own best learning rate.

A case is a pruning method with a density, a width and a number of steps. The rate of each case is tuned: with seed 1 the
script walks along powers of two from FIRST_RATE until both neighbours of the best rate are worse. Seeds 2 and 3 repeat the best
rate. Rates are those of a dense network of the base width; hidden weights take the factors of train.parametrization.

  benchmarks/quality/tuned.py run OUT.jsonl TEXT [--cases REGEX] [--setting small] [--jobs 1] [--seeds 3]
  benchmarks/quality/tuned.py table OUT.jsonl               Markdown: best rate, mean and deviation, difference to dense
  benchmarks/quality/tuned.py curves OUT.jsonl              Markdown: loss of every rate that ran
  benchmarks/quality/tuned.py optimum OUT.jsonl [--cases REGEX] [--svg FILE]   Markdown: the best rate, interpolated
  benchmarks/quality/tuned.py speed TEXT [--cases REGEX]    CPU time of a step, divided by that of the dense network
  benchmarks/quality/tuned.py list                          names of cases and settings
  benchmarks/quality/english_text.sh TEXT                   makes an English text of 112 MB

Settings: small is nanoGPT's CPU setting (4 layers, 128 wide, context 64, 2,000 steps); medium has 6 layers, 384 wide,
context 256, 1,000 steps. Runs use one thread. A call of `run` continues after the last line of OUT.jsonl. Standard library only.
"""
import concurrent.futures
import json
import math
import pathlib
import re
import resource
import statistics
import threading

import plot
import runs

SETTINGS = {
    "small": {**runs.NANOGPT, "train.steps": 2000, "train.eval_batches": 100},
    "medium": {**runs.NANOGPT, "model.layers": 6, "model.heads": 6, "model.width": 384, "model.context": 256,
               "train.global_batch": 8, "train.steps": 1000, "train.eval_batches": 40, "train.dtype": "bf16"},
}
SETTINGS["medium-fp32"] = {**SETTINGS["medium"], "train.dtype": "fp32"}
KEYS = ["setting", "case", "lr", "seed"]
FIRST_RATE = {"small": 4e-3, "medium": 1e-3, "medium-fp32": 1e-3}
GRADUAL = {"pruning.method": "magnitude", "share.from_step": 0.2, "share.to_step": 0.8, "share.every": 0.02}


def random(density=0.1, **more):
    return {"pruning.method": "random", "pruning.scope": "layer", "pruning.sparsity": round(1 - density, 4), **more}


# {density: steps of random masks in the time of one dense step}; fp32, one thread (benchmarks/results/tuned.md).
EQUAL_TIME = {0.2: 1.5, 0.1: 1.9, 0.05: 2.15, 0.02: 2.35}

# {width: steps of a smaller dense network in the CPU time of the dense one}; random-1.8x-steps takes that time, too. fp32,
# one thread, AVX2 (benchmarks/results/tuned.md).
SMALLER = {64: 3.4, 80: 2.25, 96: 1.75}

# "share.X" is pruning.X as a share of the steps; "times.X" multiplies a number of the setting; "ranks" are replicas.
CASES = {
    "dense": {},
    "random": random(),
    **{f"random-density-{density}": random(density) for density in (0.5, 0.2, 0.05, 0.02)},
    **{f"random-density-{density}-equal-time": random(density, **{"times.train.steps": factor})
       for density, factor in EQUAL_TIME.items()},
    "gradual": GRADUAL,
    "one-shot": {"pruning.method": "magnitude", "share.at_step": 0.25},
    "rigl": {"pruning.method": "rigl", "share.every": 0.05},
    "set": {"pruning.method": "set", "share.every": 0.05},
    **{f"{method}-{units.replace(':', '-')}": {"pruning.method": f"{method}-{units}", "share.every": 0.05}
       for method in ("rigl", "set") for units in ("block:8", "block:16", "block:32", "nm:2:4", "nm:1:10")},
    **{f"random-block-{edge}": random(**{"pruning.method": f"random-block:{edge}"}) for edge in (4, 8, 16, 32)},
    "snip": {"pruning.method": "snip"},
    "grasp": {"pruning.method": "grasp"},
    "movement": {**GRADUAL, "pruning.method": "movement"},
    "elsa": {"pruning.method": "elsa", "share.from_step": 0.2, "share.to_step": 0.8},
    "early-bird": {"pruning.method": "early-bird", "share.every": 0.025, "share.to_step": 0.5},
    "random-standard": random(**{"train.parametrization": "standard"}),
    "random-supar": random(**{"train.parametrization": "supar"}),
    "gradual-standard": {**GRADUAL, "train.parametrization": "standard"},
    "random-2x-steps": random(**{"times.train.steps": 2}),
    "random-1.8x-steps": random(**{"times.train.steps": 1.8}),
    "random-2x-width": random(**{"times.model.width": 2}),
    "random-3x-width": random(**{"times.model.width": 3}),
    **{f"random-density-{density}-{width}x-width": random(density, **{"times.model.width": width})
       for density in (0.2, 0.05) for width in (2, 4)},
    "random-4x-width": random(**{"times.model.width": 4}),
    "dense-2x-width": {"times.model.width": 2},
    **{f"dense-{width}-wide-equal-time": {"model.width": width, "times.train.steps": factor}
       for width, factor in SMALLER.items()},
    "rigl-2x-steps": {"pruning.method": "rigl", "share.every": 0.05, "times.train.steps": 2},
    "random-8-bit": random(**{"optimizer.state_bits": 8}),
    "random-no-master": random(**{"train.dtype": "bf16", "train.master_copy": False}),
    "random-bf16": random(**{"train.dtype": "bf16"}),
    "random-async-4": random(**{"parallel.schedule": "async:4"}),
    "random-4-bit-gradients": random(**{"ranks": 2, "parallel.codec": "maxmin:4"}),
}


def settings_of(run, text):
    """Of `espalier train` for a run."""
    setting, case = SETTINGS[run["setting"]], CASES[run["case"]]
    out = {**runs.QUIET, **setting, "model.tie_embeddings": False, "data.train": [str(text)],
           "data.validation_fraction": 0.1, "train.seed": run["seed"], "train.eval_every": 0,
           "sparse.storage": "auto", "train.parametrization": f"supar-lr:{setting['model.width']}",
           "optimizer.lr": run["lr"], "optimizer.min_lr": run["lr"] / 10}
    for key, value in case.items():
        if key.startswith("times."):
            key = key.removeprefix("times.")
            out[key] = int(out[key] * value)
            if key == "model.width":
                out["model.heads"] *= value
    for key, value in case.items():
        if key.startswith("share."):
            out["pruning." + key.removeprefix("share.")] = int(value * out["train.steps"])
        elif not key.startswith("times.") and key != "ranks":
            out[key] = value
    return out


def command_of(run):
    ranks = CASES[run["case"]].get("ranks", 1)
    return [*([str(runs.ROOT / "scripts/mpirun.sh"), str(ranks)] if ranks > 1 else []), runs.PROGRAM]


class Runs:
    """The runs of a file; makes those that are missing."""

    def __init__(self, path, text):
        self.path, self.text = pathlib.Path(path), pathlib.Path(text).resolve()
        self.lock = threading.Lock()
        self.known = {tuple(line[key] for key in KEYS): line for line in runs.lines(path)}

    def loss(self, *values):
        run = dict(zip(KEYS, values))
        if values not in self.known:
            with runs.trained(command_of(run), settings_of(run, self.text)) as directory:
                run |= {"val_loss": None, "step_ms": None}
                if directory is not None:
                    rows = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
                    run["val_loss"] = json.loads((directory / "summary.json").read_text())["final_val_loss"]
                    run["step_ms"] = statistics.median(row["step_ms"] for row in rows)
            with self.lock:
                runs.write(self.path, [run])
            self.known[values] = run
            print(json.dumps(run), flush=True)
        loss = self.known[values]["val_loss"]
        return float("inf") if loss is None else loss

    def tune(self, setting, case):
        """The best rate with seed 1."""
        return runs.best_rate(FIRST_RATE[setting], lambda rate: self.loss(setting, case, rate, 1))


def cases_of(given):
    return [case for case in CASES if re.fullmatch(given.cases, case)]


def run(given):
    made = Runs(given.file, given.text)

    def one(case):
        rate = made.tune(given.setting, case)
        for seed in range(2, given.seeds + 1):
            made.loss(given.setting, case, rate, seed)

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for done in [pool.submit(one, case) for case in cases_of(given)]:
            done.result()


def grouped(path):
    """{(setting, case): {lr: {seed: loss}}}, in the order of CASES."""
    found = {}
    for line in sorted(runs.lines(path), key=lambda line: list(CASES).index(line["case"])):
        rates = found.setdefault((line["setting"], line["case"]), {})
        rates.setdefault(line["lr"], {})[line["seed"]] = line["val_loss"]
    return found


def finite(loss):
    return float("inf") if loss is None else loss


def table(given):
    print("| setting | case | best lr | validation loss | seeds | minus dense |\n|---|---|---|---|---|---|")
    found = grouped(given.file)
    best = {}
    for key, rates in found.items():
        lr = min(rates, key=lambda rate: finite(rates[rate].get(1)))
        best[key] = (lr, rates[lr])
    for (setting, case), (lr, seeds) in best.items():
        dense = best.get((setting, "dense"), (0, {}))[1]
        apart = [seeds[seed] - dense[seed] for seed in seeds if seed in dense]
        difference = f"{statistics.mean(apart):+.4f}" if apart and case != "dense" else ""
        print(f"| {setting} | {case} | {lr:g} | {runs.mean_and_spread(list(seeds.values()), 4)} | {len(seeds)} | "
              f"{difference} |")


def curves(given):
    print("| setting | case | loss by learning rate, seed 1 |\n|---|---|---|")
    for (setting, case), rates in grouped(given.file).items():
        texts = [f"{lr:g}: {'diverged' if seeds[1] is None else format(seeds[1], '.4f')}"
                 for lr, seeds in sorted(rates.items()) if 1 in seeds]
        print(f"| {setting} | {case} | {', '.join(texts)} |")


def vertex(rates):
    """The rate of the least loss of the parabola through the best rate and its neighbours, over log2 of the rate; None
    without a neighbour on both sides. rates: {lr: loss}."""
    best = min(rates, key=rates.get)
    if not all(math.isfinite(rates.get(best * f, math.inf)) for f in (0.5, 2)):
        return None
    below, above = rates[best / 2] - rates[best], rates[best * 2] - rates[best]
    return best * 2.0 ** ((below - above) / (2 * (below + above)))


def optimum(given):
    print("| setting | case | best rate, interpolated |\n|---|---|---|")
    series, found = {}, []
    for (setting, case), seeds in grouped(given.file).items():
        rates = {lr: finite(losses.get(1)) for lr, losses in seeds.items()}
        best = vertex(rates) if re.fullmatch(given.cases, case) else None
        if best:
            found.append(best)
            print(f"| {setting} | {case} | {best:.2g} |")
            least = min(rates.values())
            label = case.removeprefix("random-").replace("density-", "density ")  # short, for the legend
            series[label if given.setting == setting else f"{setting} {label}"] = ([(lr, loss - least) for lr, loss in rates.items() if loss < least + 0.15], False)
    if found:
        print(f"\nLargest divided by least: {max(found) / min(found):.2f}")
    if given.svg:
        ticks = sorted({lr for points, _ in series.values() for lr, _ in points})
        pathlib.Path(given.svg).write_text(plot.chart("Loss over the learning rate", "learning rate of the dense base network",
                                                      "validation loss above the best", series, ticks, True, 0))


def cpu_seconds(settings):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with runs.trained([runs.PROGRAM], settings):
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def step_seconds(case, given):
    """CPU seconds of a step, without those of the start."""
    settings = settings_of({"setting": given.setting, "case": case, "lr": 1e-3, "seed": 1},
                           pathlib.Path(given.text).resolve())
    # Masks at once: the speed of the density that pruning reaches.
    for key in ("from_step", "to_step", "at_step"):
        settings.pop("pruning." + key, None)
    short, long = (cpu_seconds({**settings, "train.steps": steps, "train.eval_batches": 1}) for steps in (20, 120))
    return (long - short) / 100


def speed(given):
    print("| case | step time / dense | least … most of 5 pairs |\n|---|---|---|")
    for case in cases_of(given):
        ratios = [step_seconds(case, given) / step_seconds("dense", given) for _ in range(5)]
        print(f"| {case} | {statistics.median(ratios):.3f} | {min(ratios):.3f} … {max(ratios):.3f} |", flush=True)


def names(_):
    print("cases:", *CASES, sep="\n  ")
    print("settings:", *SETTINGS, sep="\n  ")


if __name__ == "__main__":
    CHOICE = {"--cases": {"default": ".*", "metavar": "REGEX", "help": "names that match as a whole"},
              "--setting": {"default": "small", "choices": list(SETTINGS)}}
    runs.main(__doc__, run=(run, {"file": {}, "text": {}, **CHOICE, "--jobs": {"type": int, "default": 1},
                                  "--seeds": {"type": int, "default": 3}}),
              table=(table, {"file": {}}), curves=(curves, {"file": {}}),
              optimum=(optimum, {"file": {}, **CHOICE, "--svg": {}}), speed=(speed, {"text": {}, **CHOICE}),
              list=(names, {}))
