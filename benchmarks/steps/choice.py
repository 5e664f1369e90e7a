#!/usr/bin/env python3
"""Compares the layout that the planner picks with the fastest of all: runs them on this machine.

    benchmarks/steps/choice.py TEXT TWO.toml [LAYERS,WIDTH,CONTEXT,BATCH ...]

TWO.toml is a machine file of `espalier plan --calibrate` with 2 ranks. The environment variables LINK,
ESPALIER and RUNS are those of planner.py. The time of a layout is the first decile of its steps.

Networks are 90 % pruned, in fp32 and bf16 (DTYPES; default: one of 4 blocks and one of 6). Layouts have two ranks:
two replicas with each storage, micro-batch, reduction and ZeRO stage, and two stages with each storage,
micro-batch and schedule. With TRY=10 the layout that `espalier plan --search --try 10` picks is measured
beside them. The script prints a line of JSON for each layout. Then it prints for each network
the fastest layout, the planner's pick, and how much longer the pick takes.
"""
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile

import planner

TRY = os.environ.get("TRY", "")
# What a search chooses.
FREE = {"sparse.storage": "auto", "parallel.schedule": "auto", "train.micro_batch": 0}


def layouts(batch):
    for storage, micro in itertools.product(("sparse", "expanded"), (1, 2, 4, 8)):
        settings = {"sparse.storage": storage, "train.micro_batch": micro}
        if batch // 2 % micro == 0:
            for reduction, zero in itertools.product(("sra", "ring"), (0, 1)):
                yield settings | {"parallel.reduction": reduction, "parallel.zero": zero}
        if batch % micro == 0 and batch // micro >= 2:
            for schedule in ("gpipe", "1f1b", "zb-h1", "zb-v"):
                yield settings | {"parallel.pipeline": 2, "parallel.schedule": schedule}


def network(text, dtype):
    layers, width, context, batch = map(int, text.split(","))
    return batch, {"model.layers": layers, "model.width": width, "model.heads": width // 64,
                   "model.context": context, "model.tie_embeddings": False, "train.dtype": dtype,
                   "train.global_batch": batch, "pruning.method": "random", "pruning.scope": "layer",
                   "pruning.at_step": 0, "pruning.sparsity": 0.9}


def tried_pick(common, machine, text):
    """The layout of --try, as settings."""
    launch = [f"{planner.ROOT}/scripts/mpirun.sh", "2"]
    if planner.LINK:
        launch = [f"{planner.ROOT}/scripts/two_hosts.sh", "--rate", planner.LINK, "mpirun"]
    run = subprocess.run([*launch, planner.PROGRAM, "plan", str(planner.ROOT / "configs/shakespeare-char.toml"),
                          "--machine", machine, "--search", "--try", TRY, "--json",
                          *planner.words(common | FREE | {"data.train": [text]})],
                         capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr[-2000:])
    pairs = (setting.split("=", 1) for setting in json.loads(run.stdout[:run.stdout.rindex("}") + 1])["settings"])
    return {key: json.loads(value) for key, value in pairs}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    text, machine = (os.path.abspath(path) for path in sys.argv[1:3])
    results = []
    dtypes = os.environ.get("DTYPES", "fp32,bf16").split(",")
    with tempfile.TemporaryDirectory() as folder:
        for shape, dtype in itertools.product(sys.argv[3:] or ["4,512,128,8", "6,384,256,8"], dtypes):
            batch, common = network(shape, dtype)
            tried = list(layouts(batch))
            predicted = [planner.predicted(common | more, 2, machine)["step_ms"] for more in tried]
            own = len(tried)
            if TRY:
                tried.append(FREE | tried_pick(common, machine, text))
                predicted.append(planner.predicted(common | tried[-1], 2, machine)["step_ms"])
            steps = [[] for _ in tried]
            for _, (number, more) in itertools.product(range(planner.RUNS), enumerate(tried)):
                count = max(planner.STEPS, min(200, int(planner.SECONDS * 1e3 / predicted[number])))
                times, _, _ = planner.measured(common | more, 2, count, text, f"{folder}/run")
                steps[number] += times[planner.WARM_UP:]
                shutil.rmtree(f"{folder}/run")
            measured = [sorted(times)[len(times) // 10] for times in steps]
            for more, prediction, measurement in zip(tried, predicted, measured):
                print(json.dumps({"network": shape, "dtype": dtype, **more, "predicted_ms": round(prediction, 2),
                                  "measured_ms": round(measurement, 2)}), flush=True)
            best = min(range(own), key=measured.__getitem__)
            pick = min(range(own), key=predicted.__getitem__)
            results.append(f"{shape} {dtype}: {own} layouts, {max(measured[:own]):.1f} to {measured[best]:.1f} ms; "
                           f"fastest {tried[best]}; pick {tried[pick]}: {measured[pick]:.1f} ms, "
                           f"{measured[pick] / measured[best] - 1:+.1%}" +
                           (f"; by --try {tried[-1]}: {measured[-1]:.1f} ms, "
                            f"{measured[-1] / measured[best] - 1:+.1%}" if TRY else ""))
    print("\n".join(results))


if __name__ == "__main__":
    main()
