"""From results to the rows of the table: medians and spreads over seeds, and whether equal systems computed the same."""
import math
import statistics

from measuring import steady

EQUAL_STEPS = 50  # of the loss curves that must coincide
# Measure and limit of the difference between loss curves, in nats. Measured over 50 steps: in fp32 at most 7e-7 between any
# two systems; in bf16 at most 7e-3 between Espalier and PyTorch, but 0.01 on average to DeepSpeed, which rounds weights
# and activations to bf16 everywhere, and 0.2 in a step in which all losses jump. So the check is sharp in fp32 only.
TOLERANCE = {"fp32": ("largest", 1e-4), "bf16": ("mean", 0.02)}
# At a high learning rate differences of rounding grow exponentially, and equal systems part. NUDGE is a relative change of
# the rate whose effect is about 10 times that of PyTorch's rounding (fp32): once it exceeds the limit, curves say nothing.
NUDGE = 1e-5
LEAST_STEPS = 10  # that curves must coincide for


def step_seconds(result):
    """Time of each step without start-up: a step of over five times the median (compiling, tuning) counts as the median."""
    median = statistics.median(result["step_seconds"])
    return [s if s <= 5 * median else median for s in result["step_seconds"]]


def startup(result):
    return sum(result["step_seconds"]) - sum(step_seconds(result))


def seconds_at(result):
    """[(seconds of training, step, validation loss)] of each evaluation."""
    elapsed, total = [0.0], 0.0
    for seconds in step_seconds(result):
        total += seconds
        elapsed.append(total)
    return [(elapsed[step], step, loss) for step, loss in result["evaluations"]]


def seconds_to(result, target):
    """Seconds of training until the validation loss is at most target, interpolated linearly between evaluations; None:
    never."""
    before = None
    for seconds, _, loss in seconds_at(result):
        if loss <= target:
            if before is None:
                return seconds
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (seconds - before[0])
        before = (seconds, loss)
    return None


def spread(values):
    """{"median", "low", "high", "mean", "deviation", "count"} of the finite numbers, or None without one."""
    values = [v for v in values if v is not None and math.isfinite(v)]
    if not values:
        return None
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "count": len(values),
            "mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else None}


def row(contender, results, preset, parameters):
    """The row of a contender from its results, one per seed. `status`: "ok" with numbers, else the reason without."""
    done = [r for r in results if r["status"] == "ok"]
    base = {"name": contender.name, "title": contender.title, "curve": contender.curve, "preset": contender.preset,
            "system": next((r["system"] for r in done), None), "seeds": len(done)}
    other = [r for r in results if r["status"] != "ok"]
    if other:
        base |= {"trouble": other[-1]["status"], "why": other[-1]["why"]}
    if not done:
        return base | {"status": other[-1]["status"] if other else "left"}
    tokens = preset["global_batch"] * preset["context"]
    memory = [r["device_peak"] if preset["device"] == "cuda" else max(r["peak_rss"], default=0) for r in done]
    return base | {
        "status": "ok", "lr": done[0]["lr"],
        "tokens_per_s": spread([tokens / statistics.median(steady(r["step_seconds"])) for r in done]),
        "step_ms": spread([1e3 * statistics.median(steady(r["step_seconds"])) for r in done]),
        "peak_bytes": spread([m or None for m in memory]),
        "state_bytes_per_parameter": spread([(r["state_bytes"] or math.nan) / parameters for r in done]),
        "sent_bytes": spread([r["sent_bytes"] for r in done]),
        "sent_counted": done[0]["sent_counted"],
        # Over the whole run with start and evaluations: at the first host's interface, and Espalier's own count.
        "link_bytes": spread([r.get("link_bytes") for r in done]),
        "sent_bytes_run": spread([r.get("sent_bytes_run") for r in done]),
        "waiting_share": spread([sum(steady(r["waiting_seconds"])) / sum(steady(r["step_seconds"])) for r in done
                                 if "waiting_seconds" in r]),
        "val_loss": spread([r["evaluations"][-1][1] for r in done]),
        "seconds_to_target": spread([seconds_to(r, preset["target"]) for r in done]),
        "reached": sum(seconds_to(r, preset["target"]) is not None for r in done),
        "startup_s": spread([startup(r) for r in done]),
        "wall_s": spread([r["wall_seconds"] for r in done]),
        "curve_points": seconds_at(done[0]),
    }


def difference(a, b):
    apart = [abs(x - y) for x, y in zip(a, b)]
    return {"largest": max(apart), "mean": statistics.mean(apart)}


def coincidence(contenders, results, preset, nudged=lambda name, seed: None):
    """Differences of training losses in the first steps, for each group of contenders that compute the same numbers:
    [{"curve", "seed", "reference", "name", "steps", "largest", "mean", "equal"}]; the first of a group is the reference.
    nudged(name, seed): losses at a learning rate 1 + NUDGE times as high, or None; they end the steps that count."""
    measure, limit = TOLERANCE[preset["dtype"]]
    found = []
    for curve in ("dense", "masked"):
        for seed in sorted({r["seed"] for r in results}):
            names = [c.name for c in contenders if c.curve == curve and preset["dtype"] not in c.apart]
            runs = {r["name"]: r for r in results if r["seed"] == seed and r["status"] == "ok"}
            present = [name for name in names if name in runs]
            for name in present[1:]:
                a, b = (runs[n]["losses"][:EQUAL_STEPS] for n in (present[0], name))
                other, least = nudged(present[0], seed), min(LEAST_STEPS, len(a))
                while other and len(a) > least and difference(a, other)[measure] > limit:
                    a = a[:-1]
                apart = difference(a, b)
                found.append({"curve": curve, "seed": seed, "reference": present[0], "name": name, "steps": len(a),
                              **apart, "equal": apart[measure] <= limit})
    return found
