#!/usr/bin/env python3
"""Compares the planner with published step times of Megatron-LM on A100 (docs/planner.md).

  published.py PROGRAM MACHINE.toml          a table: published, predicted, error
  published.py PROGRAM MACHINE.toml --fit    the shares that fit the rows marked "fit" best, by a search
                                             over a grid: those of table 1, then of table 5

Rows: Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", SC 2021, table 1 (full recomputation; vocabulary 51,200, context 2,048); Korthikanti et
al., "Reducing activation recomputation in large transformer models", 2022, table 5: full
recomputation, and selective with sequence parallelism.

Table 5 is of a newer software: its network of 10^12 parameters takes 94.4 s where the same layout and
the same work for each device takes 102.6 s in table 1. So `product_share` is fitted for each table.
"""
import itertools
import sys

import published_common as common

# billions, width, layers, heads, tensor, stages, virtual stages, micro-batch, devices, batch,
# published TFLOP/s a device; "fit": used to fit the machine file.
TABLE_1 = [
    (1.7, 2304, 24, 24, 1, 1, 1, 16, 32, 512, 137, "fit"),
    (3.6, 3072, 30, 32, 2, 1, 1, 16, 64, 512, 138, ""),
    (7.5, 4096, 36, 32, 4, 1, 1, 16, 128, 512, 142, ""),
    (18.4, 6144, 40, 48, 8, 1, 1, 8, 256, 1024, 135, "fit"),
    (39.1, 8192, 48, 64, 8, 2, 1, 4, 512, 1536, 138, ""),
    (76.1, 10240, 60, 80, 8, 4, 3, 2, 1024, 1792, 140, ""),
    (145.6, 12288, 80, 96, 8, 8, 2, 2, 1536, 2304, 148, ""),
    (310.1, 16384, 96, 128, 8, 16, 2, 1, 1920, 2160, 155, ""),
    (529.6, 20480, 105, 128, 8, 35, 3, 1, 2520, 2520, 163, "fit"),
    (1008.0, 25600, 128, 160, 8, 64, 1, 1, 3072, 3072, 163, ""),
]
# billions, width, layers, heads, stages, virtual stages, micro-batch, devices, batch, seconds with
# full recomputation, seconds with selective recomputation and sequence parallelism.
TABLE_5 = [
    (22, 6144, 48, 64, 1, 1, 4, 8, 4, 1.42, 1.10),
    (175, 12288, 96, 96, 8, 3, 1, 64, 64, 18.13, 13.75),
    (530, 20480, 105, 128, 35, 3, 1, 280, 280, 49.05, 37.83),
    (1000, 25600, 128, 160, 64, 1, 1, 512, 512, 94.42, 71.49),
]
CONTEXT, VOCABULARY = 2048, 51200
TABLE_5_SHARES = {"product_share": 0.71}  # instead of the machine file's; fitted to full recomputation


def row_of(width, layers, heads, tensor, stages, virtual, micro, devices, batch, **more):
    return {"width": width, "layers": layers, "heads": heads, "context": CONTEXT, "vocabulary": VOCABULARY,
            "tensor": tensor, "stages": stages, "virtual": virtual, "micro": micro, "devices": devices,
            "batch": batch, **more}


def rows():
    for billions, width, layers, heads, tensor, stages, virtual, micro, devices, batch, rate, use in TABLE_1:
        flops = common.flops_of(width, layers, CONTEXT, VOCABULARY, batch)
        yield row_of(width, layers, heads, tensor, stages, virtual, micro, devices, batch, source="table 1",
                     name=f"{billions:g}B, full", use=use, seconds=flops / (rate * 1e12 * devices))
    for billions, width, layers, heads, stages, virtual, micro, devices, batch, full, selective in TABLE_5:
        for recompute, seconds in (("full", full), ("selective", selective)):
            yield row_of(width, layers, heads, 8, stages, virtual, micro, devices, batch, source="table 5",
                         name=f"{billions:g}B, {recompute}", use="fit" if recompute == "full" else "",
                         seconds=seconds, recompute=recompute,
                         sequence=recompute == "selective")


def predicted(program, machine, row, shares=None):
    """Seconds of a step. `machine`: the text of a machine file; `shares`: instead of its own."""
    if shares is None and row["source"] == "table 5":
        shares = TABLE_5_SHARES
    return common.predicted_plan(program, common.with_values(machine, shares or {}), row)["step_ms"] / 1e3


def fit(program, machine):
    table_1 = [{"product_share": p, "attention_share": a, "memory_share": m}
               for p, a, m in itertools.product((0.64, 0.66, 0.68, 0.7, 0.72),
                                                (0.07, 0.08, 0.09, 0.1, 0.12),
                                                (0.25, 0.3, 0.35, 0.4, 0.5, 0.6))]
    table_5 = [{"product_share": p / 100} for p in range(64, 79)]
    for source, grid in (("table 1", table_1), ("table 5", table_5)):
        used = [row for row in rows() if row["use"] == "fit" and row["source"] == source]

        def error_of(shares, used=used):
            return max(abs(predicted(program, machine, row, shares) / row["seconds"] - 1) for row in used)

        shares, error = common.least(error_of, grid)
        print(f"{source}: worst error of the fitted rows {error:.2%}: {shares}")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    program, machine = sys.argv[1], common.read_machine(sys.argv[2])
    if "--fit" in sys.argv[3:]:
        fit(program, machine)
        return
    errors = []
    print("| source | model | devices | published, s | predicted, s | error |\n|---|---|---|---|---|---|")
    for row in rows():
        seconds = predicted(program, machine, row)
        error = seconds / row["seconds"] - 1
        mark = " (fitted)" if row["use"] else ""
        print(f"| {row['source']} | {row['name']} | {row['devices']} | {row['seconds']:.2f} | "
              f"{seconds:.2f} | {error:+.1%}{mark} |")
        if not row["use"]:
            errors.append(abs(error))
    print(f"\n{len(errors)} rows not fitted: mean error {sum(errors) / len(errors):.1%}, "
          f"worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
