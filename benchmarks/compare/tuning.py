"""The peak learning rates of a comparison: one for dense networks and one for pruned ones.

All systems of a curve compute the same numbers, so one of them finds its rate, with the first seed: the rate with the
least last validation loss among powers of two, walked until both neighbours are no better. Systems that round or omit
values train at the rate of the network that they change.
"""
import math
import sys

import contenders

sys.path.append(str(contenders.ROOT / "benchmarks" / "quality"))
import runs  # noqa: E402

# Those that look for the rate, by preference: PyTorch's own for dense networks, the fastest one for pruned ones.
SWEEPERS = {"dense": ["ddp", "espalier-dense"], "masked": ["espalier-sparse"]}
SEED = 1


def curve(contender):
    return "masked" if contender.masked else "dense"


def loss(result):
    """The last validation loss; infinite where a run diverged or failed."""
    last = result["evaluations"][-1][1] if result["status"] == "ok" else math.nan
    return last if math.isfinite(last) else math.inf


def rates(wanted, first, skipped, run):
    """({curve: rate}, [notes]) of the contenders `wanted`. skipped(contender): why it cannot run, or None; run(contender,
    seed, lr): its result. Where no sweep is possible, the rate is `first`."""
    found, notes = {}, []
    for name in dict.fromkeys(map(curve, wanted)):
        able = [c for choice in SWEEPERS[name] for c in contenders.CONTENDERS if c.name == choice and skipped(c) is None]
        found[name] = runs.best_rate(first, lambda lr: loss(run(able[0], SEED, lr))) if able else first
        if able and math.isfinite(loss(run(able[0], SEED, found[name]))):
            notes.append(f"Learning rate of {'pruned' if name == 'masked' else 'dense'} networks: {found[name]:g}, the best "
                         f"power of two times {first:g} for {able[0].title} with seed {SEED}.")
        else:
            notes.append(f"No sweep of the learning rate was possible: {first:g}.")
    return found, notes
