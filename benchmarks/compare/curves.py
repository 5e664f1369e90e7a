#!/usr/bin/env python3
"""curves.py COMPARISON.json OUT.svg [NAME …]: validation loss over seconds of training of the named systems, or of all
(--list of compare.sh shows names); seed 1; systems other than Espalier dashed."""
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "quality"))
import plot  # noqa: E402


def main():
    if len(sys.argv) < 3:
        sys.exit(f"usage: {__doc__}")
    comparison = json.loads(pathlib.Path(sys.argv[1]).read_text())
    names = sys.argv[3:] or [row["name"] for row in comparison["rows"]]
    rows = {row["name"]: row for row in comparison["rows"] if row["status"] == "ok"}
    missing = [name for name in names if name not in rows]
    if missing:
        sys.exit(f"{sys.argv[1]} has no numbers of {', '.join(missing)}; it has those of {', '.join(rows)}")
    series = {rows[name]["title"]: ([(seconds, loss) for seconds, _, loss in rows[name]["curve_points"]],
                                    not name.startswith("espalier-")) for name in names}
    last = max(x for points, _ in series.values() for x, _ in points)
    first = min(x for points, _ in series.values() for x, _ in points)
    title = f"Validation loss over time, {comparison['preset']['steps']:,} steps each"
    ticks = [x for x in plot.nice_steps(0, last) if x >= first]
    pathlib.Path(sys.argv[2]).write_text(plot.chart(title, "seconds of training", "validation loss", series, ticks, False,
                                                    None))


if __name__ == "__main__":
    main()
