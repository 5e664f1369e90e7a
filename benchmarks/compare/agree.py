#!/usr/bin/env python3
"""agree.py A/comparison.json B/comparison.json: do two comparisons rank the systems alike?

Each pair of systems is in the same order by median tokens/s in both comparisons; or swapped, with overlapping ranges of
the seeds in one of them; or contradictory, with separate ranges in both. Exit code 1 if a pair is contradictory.
"""
import itertools
import json
import sys


def speeds(path):
    with open(path) as file:
        return {row["name"]: row["tokens_per_s"] for row in json.load(file)["rows"] if row["status"] == "ok"}


def sure(a, b):
    """The ranges of two systems do not overlap."""
    return a["low"] > b["high"] or b["low"] > a["high"]


def pairs(first, second):
    """(same, swapped, contradictory): lists of pairs of names."""
    same, swapped, contradictory = [], [], []
    for a, b in itertools.combinations([name for name in first if name in second], 2):
        order = [run[a]["median"] > run[b]["median"] for run in (first, second)]
        if order[0] == order[1]:
            same.append((a, b))
        elif all(sure(run[a], run[b]) for run in (first, second)):
            contradictory.append((a, b))
        else:
            swapped.append((a, b))
    return same, swapped, contradictory


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: agree.py A/comparison.json B/comparison.json")
    first, second = map(speeds, sys.argv[1:])
    for run in (first, second):
        print(" > ".join(sorted(run, key=lambda name: -run[name]["median"])))
    same, swapped, contradictory = pairs(first, second)
    print(f"pairs in the same order: {len(same)}; swapped within their ranges: {len(swapped)} "
          f"{swapped or ''}; contradictory: {len(contradictory)} {contradictory or ''}")
    sys.exit(bool(contradictory))


if __name__ == "__main__":
    main()
