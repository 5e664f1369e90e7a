#!/usr/bin/env python3
"""Time that the checks of state and replicas add to a step.

  benchmarks/steps/checks.py TEXT [REPEATS]

GPTs of 10 M and 85 M parameters, bf16, unpruned and 90 % sparse, as one process with all cores and as two ranks. Pairs
of runs alternate: with the default `parallel.check_every` and the checks of state, and without both. Prints the quotient of
the median step of each pair: median, least and most. Messages carry checksums in all runs.
"""
import json
import os
import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "quality"))
import runs  # noqa: E402

CASES = {"10M": (6, 384, 256, 8, 24), "85M": (12, 768, 512, 4, 8)}
OFF = {"parallel.check_every": 0}  # and ESPALIER_TEST


def settings(case, sparse, ranks, text):
    layers, width, context, batch, steps = CASES[case]
    out = {"model.kind": "gpt", "model.layers": layers, "model.heads": width // 64, "model.width": width,
           "model.context": context, "data.kind": "chars", "data.train": [text], "data.validation_fraction": 0.1,
           "train.dtype": "bf16", "train.global_batch": batch, "train.steps": steps, "train.eval_every": 0,
           "train.eval_batches": 1, "train.checkpoint_every": -1, "run.trace": False,
           "run.threads": os.cpu_count() // ranks}
    if sparse:
        out |= {"pruning.method": "random", "pruning.sparsity": 0.9, "pruning.at_step": 0, "sparse.storage": "sparse"}
    return out


def step_ms(ranks, given, checks=True):
    os.environ["ESPALIER_TEST"] = "" if checks else "parallel.check_state=false"
    launcher = [str(runs.ROOT / "scripts/mpirun.sh"), str(ranks)] if ranks > 1 else []
    with runs.trained([*launcher, runs.PROGRAM], given) as directory:
        rows = [json.loads(line)["step_ms"] for line in (directory / "metrics.jsonl").open()]
    return statistics.median(rows[len(rows) // 4:])


def main():
    text, repeats = str(pathlib.Path(sys.argv[1]).resolve()), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    print("| network | ranks | step, ms | with checks / without: median | least … most |\n|---|---|---|---|---|")
    for case in CASES:
        for sparse in (False, True):
            for ranks in (1, 2):
                given = settings(case, sparse, ranks, text)
                pairs = [(step_ms(ranks, given), step_ms(ranks, given | OFF, checks=False)) for _ in range(repeats)]
                ratios = [on / off for on, off in pairs]
                print(f"| {case}, {'90 % sparse' if sparse else 'unpruned'} | {ranks} | "
                      f"{statistics.median(on for on, _ in pairs):.1f} | {statistics.median(ratios):.3f} | "
                      f"{min(ratios):.3f} … {max(ratios):.3f} |", flush=True)


if __name__ == "__main__":
    main()
