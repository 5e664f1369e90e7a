"""The smaller dense network of equal time: the row that pruning must beat.

Pruning makes a step shorter. So does a smaller dense network, which needs no masks and no sparse products. Each candidate
has fewer layers or columns than the preset's network, and trains for as many steps as fit into the time of the pruned run.
Steps of the candidates and of the pruned network are timed alternating. The candidates train with seed 1 at the rate of the
dense network; the two best ones then find their own rates, and the better of them is the row.
"""
import dataclasses
import json
import statistics

import contenders
import measuring
import tuning

ROUNDS = 3      # of timed runs
TIMED_STEPS = 25
TUNED = 2       # candidates that find their own rates
PRUNED = "espalier-sparse"  # the pruned network whose time they have


def shapes(preset):
    """[(layers, width)]: the same layers with 1/2 to 7/8 of the columns; half of the layers with 3/4 and all columns."""
    layers, width, heads = preset["layers"], preset["width"], preset["heads"]
    wanted = [(layers, eighths) for eighths in (4, 5, 6, 7)] + [(max(1, layers // 2), eighths) for eighths in (6, 8)]
    found = [(count, width * eighths // 8 // heads * heads) for count, eighths in wanted]
    return list(dict.fromkeys(shape for shape in found if shape[1] > 0 and shape != (layers, width)))


def equal_time(preset, layers, width, ratio):
    """Values of a candidate whose step takes `ratio` of the pruned network's step."""
    steps = max(2, round(preset["steps"] / ratio))
    share = steps / preset["steps"]
    return {"layers": layers, "width": width, "steps": steps, "warmup": min(round(preset["warmup"] * share), steps // 2),
            "eval_every": max(1, round(preset["eval_every"] * share))}


def timed(preset, bench):
    """{shape: time of a step, divided by that of the pruned network}; raises RuntimeError if a run failed."""
    steps = min(preset["steps"], TIMED_STEPS)
    short = {"steps": steps, "warmup": 1, "eval_every": steps}
    pruned, candidate = contenders.named(PRUNED), contenders.named("espalier-smaller")

    def step_seconds(contender, values):
        result = bench.run(dataclasses.replace(contender, preset={**short, **values}), tuning.SEED, preset["lr"])
        if result["status"] != "ok":
            raise RuntimeError(f"a timed run of {contender.title} failed: {result['why']}")
        return statistics.median(measuring.steady(result["step_seconds"]))

    found = {shape: [] for shape in shapes(preset)}
    for _ in range(ROUNDS):
        base = step_seconds(pruned, {})
        for layers, width in found:
            found[layers, width].append(step_seconds(candidate, {"layers": layers, "width": width}) / base)
    return {shape: statistics.median(ratios) for shape, ratios in found.items()}


def candidates(preset, bench, file, version):
    """The candidates, with their steps. `file` keeps the times, so that another call trains the same networks."""
    kept = json.loads(file.read_text()) if file.exists() else {}
    if kept.get("version") != version:
        kept = {"version": version, "ratios": [[*shape, ratio] for shape, ratio in timed(preset, bench).items()]}
        file.write_text(json.dumps(kept))
    base = contenders.named("espalier-smaller")
    return [dataclasses.replace(base, preset=equal_time(preset, *one),
                                title=f"Espalier smaller dense network, equal time ({one[0]} layers, {one[1]} wide)")
            for one in kept["ratios"]]


def choose(preset, options, rate, sweep, run):
    """(best candidate, its rate). sweep: False keeps `rate`; run(contender, seed, lr): the result. Raises RuntimeError if
    all runs fail."""
    def loss(contender, lr):
        return tuning.loss(run(contender, tuning.SEED, lr))

    ordered = sorted(options, key=lambda c: loss(c, rate))
    found = [(c, tuning.best_rate(rate, lambda lr, c=c: loss(c, lr)) if sweep else rate) for c in ordered[:TUNED]]
    contender, rate = min(found, key=lambda pair: loss(*pair))
    if loss(contender, rate) == float("inf"):
        raise RuntimeError(f"no smaller dense network could be trained: {run(contender, tuning.SEED, rate).get('why')}")
    return contender, rate
