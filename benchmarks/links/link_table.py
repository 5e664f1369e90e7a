#!/usr/bin/env python3
"""link_table.py LINES…: Markdown tables of lines of benchmarks/links/link.sh, from one or several calls.

Values are medians over the rounds. The share in brackets is relative to the contender's own speed without a limit.
"""
import collections
import statistics
import sys

cells = collections.defaultdict(lambda: collections.defaultdict(list))
for path in sys.argv[1:]:
    for line in open(path):
        row = dict(item.split("=") for item in line.split())
        for key, value in row.items():
            if key not in ("round", "rate", "contender"):
                cells[row["contender"], row["rate"]][key].append(float(value))
names = list(dict.fromkeys(name for name, _ in cells))
rates = list(dict.fromkeys(rate for _, rate in cells))


def median(name, rate, key):
    values = cells[name, rate][key]
    return statistics.median(values) if values else None


def table(title, columns, text):
    print(f"\n{title}\n\n| contender | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for name in names:
        print(f"| {name} | {' | '.join(text(name, column) for column in columns)} |")


def speed(name, rate):
    here, free = median(name, rate, "tokens_per_s"), median(name, "none", "tokens_per_s")
    if here is None:
        return "–"
    return f"{here:,.0f}" + (f" ({here / free:.2f})" if free and rate != "none" else "")


def over_rates(name, key):
    """Median over all runs: losses and bytes do not depend on the link."""
    return statistics.median(value for rate in rates for value in cells[name, rate][key])


table("Tokens/s (share of the contender's own speed at rate none)", rates, speed)
units = {"bytes a step": ("bytes_a_step", ",.0f"), "bytes of a run": ("link_bytes", ",.0f"),
         "training loss": ("train_loss", ".4f"), "validation loss": ("val_loss", ".4f")}
table("At any rate", list(units), lambda name, column: format(over_rates(name, units[column][0]), units[column][1]))
