"""The peak learning rates of a comparison: one for dense networks, one for pruned ones; smaller.py finds its own.

All systems of a curve compute the same numbers, so one of them finds its rate, with the first seed: the rate with the
least last validation loss among powers of two, walked until both neighbours are no better. Systems that round or omit
values train at the rate of the network that they change.
"""
import math
import sys

import contenders

sys.path.append(str(contenders.ROOT / "benchmarks" / "quality"))
from runs import best_rate  # noqa: E402

# Those that look for the rate, by preference: PyTorch's own for dense networks, the fastest one for pruned ones.
SWEEPERS = {"dense": ["ddp", "espalier-dense"], "masked": ["espalier-sparse"]}
SEED = 1


def curve(contender):
    return "smaller" if contender.smaller else "masked" if contender.masked else "dense"


def loss(result):
    """The last validation loss; infinite where a run diverged or failed."""
    last = result["evaluations"][-1][1] if result["status"] == "ok" else math.nan
    return last if math.isfinite(last) else math.inf


def rates(wanted, first, skipped, run):
    """({curve: rate}, [notes], [problems]) of the contenders `wanted`. skipped(contender): why it cannot run, or None;
    run(contender, seed, lr): its result. Where every sweep fails, the rate is `first`, and a problem states the reasons."""
    found, notes, problems = {}, [], []
    # A smaller dense network begins at the rate of the dense one.
    for name in dict.fromkeys("dense" if c.smaller else curve(c) for c in wanted):
        found[name], reasons = first, []
        for sweeper in map(contenders.named, SWEEPERS[name]):
            reason = skipped(sweeper)
            if reason is None:
                rate = best_rate(first, lambda lr, c=sweeper: loss(run(c, SEED, lr)))
                result = run(sweeper, SEED, rate)
                reason = None if math.isfinite(loss(result)) else result.get("why", "the loss is not finite")
            if reason is None:
                found[name] = rate
                notes.append(f"Learning rate of {'pruned' if name == 'masked' else 'dense'} networks: {rate:g}, the best "
                             f"power of two times {first:g} for {sweeper.title} with seed {SEED}.")
                break
            reasons.append(f"{sweeper.title}: {reason}")
        else:
            problems.append(f"No sweep of the learning rate of {'pruned' if name == 'masked' else 'dense'} networks was "
                            f"possible, so it is {first:g}: {'; '.join(reasons)}")
    return found, notes, problems
