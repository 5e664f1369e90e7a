#!/usr/bin/env python3
"""Compares the planner with published runs of SAMO and AxoNN on Summit's V100 (docs/planner.md).

  published_v100.py PROGRAM MACHINE.toml          tables: published, predicted, error
  published_v100.py PROGRAM MACHINE.toml --fit    product_share and sparse_share that fit the rows of
                                                  13B at 256 GPUs best, by a search over a grid
  published_v100.py PROGRAM MACHINE.toml --variants   errors of other assumptions, each with its own fit

PROGRAM: the program espalier; MACHINE.toml: machines/summit.toml.

Rows: Singh and Bhatele, "Exploiting Sparsity in Pruned Neural Networks to Optimize Large Model
Training", IPDPS 2023 (seconds read off its plots; table II), and "AxoNN: an asynchronous,
message-driven parallel framework for extreme-scale deep learning", IPDPS 2022 (weak scaling).

The first paper does not state the layouts. One rule chooses them:

  stages       the smallest power of two whose largest stage (with the embedding) fits LIMIT bytes
               with micro-batches of one sequence
  micro-batch  1, 2, 4 or 8 sequences that fit: the fastest in the plan
  state        bytes a parameter: AxoNN 20; SAMO 24 f + 2; Sputnik 24 f (f = 0.1: kept elements);
               DeepSpeed-3D (4 + 16 / replicas) / 2
  activations  AxoNN's formula: a checkpoint each `group` blocks, and one group recomputed; group:
               the divisor of a stage's blocks nearest to sqrt(blocks). DeepSpeed-3D: one block
  DeepSpeed-3D all three dimensions: 2 devices divide each layer (the only size that divides a node's
               6 and the GPUs), and at least 2 stages. After the step it gathers the new values: half
               the time of the sum of gradients, added to the plan
"""
import contextlib
import io
import sys

import published_common as common

PEAK = 125e12
CONTEXT, VOCABULARY = 2048, 51200
KEPT = 0.1
# A V100 has 16 GiB; 2 are left to the CUDA context, NCCL and MPI. With more, SAMO's 2.7B would fit
# one device, and the paper states 20.28 GB.
LIMIT = 14 * 2**30
# width, blocks, heads, batch, fewest GPUs. 13B: table II's shares and the seconds agree with each
# other for 32 blocks (3.67e17 flops a step), not for GPT-3 13B's 40 (4.57e17).
MODELS = {
    "XL": (2048, 24, 16, 512, 64),
    "2.7B": (2560, 32, 32, 512, 64),
    "6.7B": (4096, 32, 32, 1024, 128),
    "13B": (5120, 32, 40, 2048, 256),
}
SYSTEMS = ("Sputnik", "DeepSpeed-3D", "AxoNN", "SAMO")
# At 1, 2, 4 and 8 times the fewest GPUs.
SECONDS = {
    "XL": ((9.78, 4.97, 2.25, 1.20), (4.56, 2.60, 1.65, 1.29), (4.12, 2.43, 1.60, 1.19),
           (3.70, 1.92, 1.05, 0.63)),
    "2.7B": ((17.1, 8.85, 4.71, 2.83), (9.36, 5.28, 3.19, 2.24), (8.58, 5.08, 3.27, 2.27),
             (7.73, 4.11, 2.38, 1.50)),
    "6.7B": ((38.3, 20.8, 12.0, 8.00), (16.8, 10.1, 6.92, 5.33), (16.7, 9.71, 6.28, 4.25),
             (14.8, 8.18, 4.90, 3.29)),
    "13B": ((60.7, 31.0, 17.0, 11.8), (25.7, 14.4, 9.51, 6.97), (26.5, 14.4, 8.90, 6.25),
            (21.5, 11.7, 6.97, 4.62)),
}
# Percent of the peak, 13B.
TABLE_2 = ((18.9, 18.5, 16.8, 12.2), (44.6, 39.9, 30.1, 20.6), (43.3, 39.7, 32.2, 22.9),
           (53.4, 48.8, 41.1, 31.0))
# Percent that SAMO's step is shorter, 2.7B on 512 GPUs.
SAVED = {"AxoNN": 34, "DeepSpeed-3D": 32, "Sputnik": 46}
# GB over the devices of one copy, 2.7B.
MEMORY = {"AxoNN": 80.16, "SAMO": 20.28}
FITTED = ("13B", 0)
VARIANTS = {
    "": "the rule above",
    "fused": "attention without passes over its scores (score_passes near 0)",
    "slow": "the same, and attention_share 0.08, which was fitted for A100",
    "no gather": "DeepSpeed-3D without the gather of new values",
    "pruned embedding": "SAMO and Sputnik prune the embedding, too, so that sums have fewer bytes",
    "no head": "plans without embedding and head (256 words): no stage is longer than the others",
    "replicas first": "the replicas of a stage have consecutive ranks in all systems",
    "rings by node": "sums by rings that enter and leave a node once (reduction nccl in the plan)",
    "Sputnik as SAMO": "Sputnik with SAMO's stages",
    "micro-batch 1": "micro-batches of one sequence everywhere",
    "all rows": "fitted to all rows, for the least worst error: first product_share, then sparse_share",
}
variant = ""
# AxoNN's weak scaling, % of the peak: the paper's range over four networks. 100B has the least: it is
# 1.18 times DeepSpeed's, which has at most 42. Billions, devices, blocks, width, heads, micro-batch,
# stages. Assumed, because the facts at hand lack them: blocks, widths and heads (12 blocks width^2 is
# right), and the steps.
WEAK_RANGE = (49.4, 54.78)
WEAK = ((12, 48, 48, 4512, 24, 8, 6), (24, 96, 48, 6336, 36, 4, 12), (50, 192, 96, 6528, 48, 4, 24),
        (100, 384, 96, 9360, 60, 2, 48))
WEAK_STEPS = ((512, 16384), (1024, 8192), (2048, 4096))  # tokens of a sequence, sequences of a step
# Seconds of 12B on 48 GPUs (figure 5), by stages. Assumed: steps an eighth as long, micro-batch 8.
STAGES = {6: 37.5, 12: 39.7, 24: 46.1, 48: 58.6}


def largest_stage(model, stages):
    """Parameters."""
    width, blocks = MODELS[model][:2]
    return 12 * width**2 * blocks // stages + VOCABULARY * width


def activations(model, stages, micro, tensor):
    """Bytes of a device."""
    width, blocks, heads = MODELS[model][:3]
    mine = blocks // stages
    group = 1 if tensor > 1 else min((n for n in range(1, mine + 1) if mine % n == 0),
                                     key=lambda n: abs(n - blocks**0.5))
    block = 34 * CONTEXT * width + 5 * heads * CONTEXT**2
    return micro * (blocks // group * 2 * CONTEXT * width + group * block // tensor)


def state(system, replicas):
    """Bytes a parameter."""
    if variant == "Sputnik as SAMO" and system == "Sputnik":
        system = "SAMO"
    return {"AxoNN": 20, "SAMO": 24 * KEPT + 2, "Sputnik": 24 * KEPT,
            "DeepSpeed-3D": (4 + 16 / replicas) / 2}[system]


def needed(system, model, devices, stages, micro):
    """Bytes of the device that needs most."""
    tensor = 2 if system == "DeepSpeed-3D" else 1
    replicas = devices // (stages * tensor)
    return (state(system, replicas) * largest_stage(model, stages) +
            activations(model, stages, micro, tensor))


def order_of(system):
    """Of ranks. AxoNN (communication.py of its first release), and with it SAMO and Sputnik, gives the
    stages of a replica consecutive ranks; Megatron-LM and DeepSpeed the replicas of a stage."""
    return "replicas_first" if system == "DeepSpeed-3D" or variant == "replicas first" else "stages_first"


def rows_of(system, model, devices):
    """Layouts of the rule: one for each micro-batch that fits."""
    width, blocks, heads, batch = MODELS[model][:4]
    tensor = 2 if system == "DeepSpeed-3D" else 1
    stages = tensor
    while needed(system, model, devices, stages, 1) > LIMIT:
        stages *= 2
        if stages > blocks:
            sys.exit(f"{system}, {model}: no layout fits {LIMIT / 2**30:g} GiB")
    share = batch * stages * tensor // devices
    settings = [] if system in ("AxoNN", "DeepSpeed-3D") else [
        "pruning.method=random", f"pruning.sparsity={1 - KEPT:g}",
        f"sparse.storage={'expanded' if system == 'SAMO' else 'sparse'}"]
    words = 256 if variant == "no head" else VOCABULARY
    return [{"width": width, "layers": blocks, "heads": heads, "context": CONTEXT, "vocabulary": words,
             "batch": batch, "micro": micro, "stages": stages, "devices": devices, "tensor": tensor,
             "order": order_of(system), "reduction": "nccl" if variant == "rings by node" else "sra", "settings": settings}
            for micro in ((1,) if variant == "micro-batch 1" else (1, 2, 4, 8))
            if micro == 1 or micro <= share and needed(system, model, devices, stages, micro) <= LIMIT]


def correction(system, model, row, plan):
    """Milliseconds beside the plan's."""
    if system == "DeepSpeed-3D" and variant != "no gather":
        return plan["reduction_ms"] / 2
    if system in ("SAMO", "Sputnik") and variant == "pruned embedding":
        table = VOCABULARY * row["width"]
        blocks = largest_stage(model, row["stages"]) - table
        return plan["reduction_ms"] * (KEPT * (blocks + table) / (KEPT * blocks + table) - 1)
    return 0


def predicted(program, machine, system, model, devices):
    """(seconds, row) of the fastest layout."""
    found = []
    for row in rows_of(system, model, devices):
        plan = common.predicted_plan(program, machine, row)
        found.append(((plan["step_ms"] + correction(system, model, row, plan)) / 1e3, row))
    return min(found, key=lambda one: one[0])


def fit(program, machine):
    """The machine file with the shares that fit best, and these."""
    rows = [FITTED] if variant != "all rows" else [(model, i) for model in MODELS for i in range(4)]

    def cost(systems):
        def of(values):
            text = common.with_values(machine, values)
            errors = [predicted(program, text, system, model, MODELS[model][4] << i)[0] /
                      SECONDS[model][SYSTEMS.index(system)][i] - 1 for system in systems for model, i in rows]
            return max(map(abs, errors)) if variant == "all rows" else sum(error**2 for error in errors)
        return of

    values, _ = common.least(cost(SYSTEMS[1:]), [{"product_share": n / 100} for n in range(70, 100)])
    machine = common.with_values(machine, values)
    sparse, _ = common.least(cost(SYSTEMS[:1]), [{"sparse_share": n / 4000} for n in range(60, 101)])
    return common.with_values(machine, sparse), values | sparse


def all_seconds(program, machine):
    """[model][system]: (seconds, row) of each number of GPUs."""
    return {model: {system: common.in_parallel(
        lambda i, s=system, m=model: predicted(program, machine, s, m, MODELS[m][4] << i), range(4))
        for system in SYSTEMS} for model in MODELS}


def saved(seconds):
    """Percent by which SAMO's step is shorter, 2.7B on 512 GPUs."""
    mine = {system: one[3][0] for system, one in seconds["2.7B"].items()}
    return ", ".join(f"{system} {known} → {100 * (1 - mine['SAMO'] / mine[system]):.1f} %"
                     for system, known in SAVED.items())


def print_variants(program, machine):
    global variant
    print("Errors: mean, worst. Shares: product_share, sparse_share.\n\n| variant | shares | " +
          " | ".join(SYSTEMS) + " | all | wrong order | SAMO's step is shorter |\n|" + "---|" * 9)
    for variant, what in VARIANTS.items():
        text = common.with_values(machine, {"fused": {"score_passes": 1e-6},
                                            "slow": {"score_passes": 1e-6, "attention_share": 0.08}
                                            }.get(variant, {}))
        text, values = fit(program, text)
        seconds = all_seconds(program, text)
        with contextlib.redirect_stdout(io.StringIO()):
            errors = print_seconds(seconds)
            wrong = print_order(seconds)
        print(f"| {what} | {' '.join(f'{value:g}' for value in values.values())} | " +
              " | ".join(f"{sum(one) / len(one):.1f}, {max(one):.1f}" for one in errors.values()) +
              f" | {wrong} | {saved(seconds)} |")


def print_seconds(seconds):
    """The table of all steps; seconds[model][system]: of each number of GPUs, with the layout."""
    print("Shortest to largest number of GPUs; layout: stages x devices of a layer, micro-batch.\n\n"
          "| model, GPUs | system | layout | published, s | predicted, s | error, % |\n|" + "---|" * 6)
    errors = {system: [] for system in SYSTEMS}
    for model, (*_, fewest) in MODELS.items():
        for system, published in zip(SYSTEMS, SECONDS[model]):
            mine = seconds[model][system]
            error = [100 * (one[0] / known - 1) for one, known in zip(mine, published)]
            layouts = [f"{row['stages']}x{row['tensor']}, {row['micro']}" for _, row in mine]
            marks = ["*" if (model, i) == FITTED else "" for i in range(len(mine))]
            print(f"| {model}, {fewest}–{8 * fewest} | {system} | {'; '.join(dict.fromkeys(layouts))} | "
                  f"{' / '.join(f'{known:.3g}' for known in published)} | "
                  f"{' / '.join(f'{one[0]:.3g}' for one in mine)} | "
                  f"{' / '.join(f'{e:+.1f}{mark}' for e, mark in zip(error, marks))} |")
            errors[system] += [abs(e) for e, mark in zip(error, marks) if not mark]
    print("\n* fitted; not in the errors below.\n")
    errors["all"] = [one for system in SYSTEMS for one in errors[system]]
    for system, all_of in errors.items():
        print(f"{system}: {len(all_of)} rows, mean error {sum(all_of) / len(all_of):.1f} %, worst "
              f"{max(all_of):.1f} %, {sum(one > 15 for one in all_of)} beyond 15 %")
    return errors


def print_order(seconds):
    pairs, wrong = 0, []
    for model, (*_, fewest) in MODELS.items():
        for i in range(4):
            for a, first in enumerate(SYSTEMS):
                for b in range(a + 1, len(SYSTEMS)):
                    known = SECONDS[model][a][i] / SECONDS[model][b][i] - 1
                    mine = seconds[model][first][i][0] / seconds[model][SYSTEMS[b]][i][0] - 1
                    pairs += known != 0
                    if known * mine < 0:
                        wrong.append(f"{model} on {fewest << i}: {first} / {SYSTEMS[b]} published "
                                     f"{known:+.1%}, predicted {mine:+.1%}")
    print(f"\nOrder: {pairs - len(wrong)} of {pairs} pairs of systems.")
    for one in wrong:
        print(f"  {one}")
    return len(wrong)


def print_table_2(seconds):
    width, blocks, _, batch, fewest = MODELS["13B"]
    flops = common.flops_of(width, blocks, CONTEXT, VOCABULARY, batch)
    implied = [share / 100 * PEAK * (fewest << i) * time for shares, times in zip(TABLE_2, SECONDS["13B"])
               for i, (share, time) in enumerate(zip(shares, times))]
    print(f"\nFlops of a step of 13B: {min(implied):.3g} to {max(implied):.3g} by table II and the seconds; "
          f"by the formula {flops:.3g} with {blocks} blocks, "
          f"{common.flops_of(width, 40, CONTEXT, VOCABULARY, batch):.3g} with 40.")
    print("\nTable II, % of the peak, published → predicted:\n\n| GPUs | " + " | ".join(SYSTEMS) +
          " |\n|" + "---|" * 5)
    for i in range(4):
        print(f"| {fewest << i} | " + " | ".join(
            f"{known[i]} → {100 * flops / (seconds['13B'][system][i][0] * PEAK * (fewest << i)):.1f}"
            for system, known in zip(SYSTEMS, TABLE_2)) + " |")


def print_memory():
    width = MODELS["2.7B"][0]
    for system, published in MEMORY.items():
        stages = rows_of(system, "2.7B", 512)[0]["stages"]
        kept = stages * activations("2.7B", stages, 1, 1)
        total = state(system, 1) * largest_stage("2.7B", 1) + kept
        dense = (20 - state(system, 1)) * VOCABULARY * width
        print(f"Memory of 2.7B over {stages} devices, {system}: published {published} GB, by the rule's "
              f"formula {total / 1e9:.2f}; {(total + dense) / 1e9:.2f} with a dense embedding")


def weak_share(program, machine, network, context, batch):
    """Percent of the peak."""
    _, devices, blocks, width, heads, micro, stages = network
    plan = common.predicted_plan(program, machine, {
        "width": width, "layers": blocks, "heads": heads, "context": context, "vocabulary": VOCABULARY,
        "batch": batch, "micro": micro, "stages": stages, "devices": devices, "order": order_of("AxoNN")})
    return 100 * common.flops_of(width, blocks, context, VOCABULARY, batch) / (
        plan["step_ms"] / 1e3 * PEAK * devices)


def stage_times(program, machine, context, batch):
    _, devices, blocks, width, heads, micro, _ = WEAK[0]
    return common.in_parallel(lambda stages: common.predicted_plan(program, machine, {
        "width": width, "layers": blocks, "heads": heads, "context": context, "vocabulary": VOCABULARY,
        "batch": batch, "micro": micro, "stages": stages, "devices": devices, "order": order_of("AxoNN")})["step_ms"], STAGES)


def print_weak(program, machine):
    low, high = WEAK_RANGE
    print(f"\nAxoNN's weak scaling, 12B, 24B, 50B and 100B, % of the peak; published: {low:g} to {high:g}, "
          f"100B least.\nFitted: product_share, so that 12B has {high:g}; error: of 100B.\n\n"
          "| tokens × sequences | by the machine file | product_share | with it | error |\n|" + "---|" * 5)
    longer = []
    for context, batch in WEAK_STEPS:
        def shares(text):
            return common.in_parallel(lambda one: weak_share(program, text, one, context, batch), WEAK)
        first = shares(machine)
        points = [{"product_share": n / 100} for n in range(40, 90)]
        while len(points) > 1:  # the share of the peak grows with product_share
            middle = points[len(points) // 2 - 1]
            text = common.with_values(machine, middle)
            below = weak_share(program, text, WEAK[0], context, batch) < high
            points = points[len(points) // 2:] if below else points[:len(points) // 2]
        fitted = shares(common.with_values(machine, points[0]))
        print(f"| {context} × {batch} | {' / '.join(f'{one:.1f}' for one in first)} | "
              f"{points[0]['product_share']:g} | {' / '.join(f'{one:.1f}' for one in fitted)} | "
              f"{100 * (fitted[-1] / low - 1):+.1f} % |")
        text = common.with_values(machine, points[0])
        longer.append((context, batch // 8, stage_times(program, text, context, batch // 8)))
    print("\n12B on 48 GPUs by stages, time relative to 6 stages, with the same product_share:\n\n"
          f"| | {' | '.join(map(str, STAGES))} |\n|" + "---|" * 5 +
          f"\n| published | {' | '.join(f'{one / STAGES[6]:.2f}' for one in STAGES.values())} |")
    for context, batch, times in longer:
        print(f"| {context} × {batch} | {' | '.join(f'{one / times[0]:.2f}' for one in times)} |")


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["--fit"], ["--variants"]):
        sys.exit(__doc__)
    program, machine = sys.argv[1], common.read_machine(sys.argv[2])
    if sys.argv[3:] == ["--fit"]:
        for key, value in fit(program, machine)[1].items():
            print(f"{key} = {value:g}")
        return
    if sys.argv[3:]:
        print_variants(program, machine)
        return
    seconds = all_seconds(program, machine)
    print_seconds(seconds)
    print_order(seconds)
    print(f"\nSAMO's step is shorter, 2.7B on 512 GPUs, published → predicted: {saved(seconds)}")
    print_table_2(seconds)
    print()
    print_memory()
    print_weak(program, machine)


if __name__ == "__main__":
    main()
