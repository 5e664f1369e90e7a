#!/usr/bin/env python3
"""Tables and line charts (SVG, without packages) of the lines that benchmark scripts print.

    plot.py density LINES [SVG] ["NAME=TOKENS_PER_S" …]   tokens/s over density (benchmarks/steps/density.sh)
    plot.py time LINES [SVG]                              validation loss over minutes (benchmarks/quality/equal_time.sh)

LINES holds rows of key=value. Several rows for one point of a density count as their median.
"""
import collections
import math
import statistics
import sys

COLOURS = ["#3b6fb6", "#c8553d", "#4a8f4f", "#8a5fa8", "#b8860b", "#2f8f9d", "#7a7a7a", "#d06c9f"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 70, 190, 40, 50


def rows_of(path):
    return [dict(item.split("=", 1) for item in line.split()) for line in open(path) if "=" in line]


def nice_steps(low, high, count=6):
    raw = (high - low) / count
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw)
    first = math.ceil(low / step)
    return [step * i for i in range(first, int(high / step + 1e-9) + 1)]


def decade_steps(low, high):
    """1, 2 and 5 times powers of ten."""
    return [unit * 10.0 ** power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for unit in (1, 2, 5) if low <= unit * 10.0 ** power <= high]


def chart(title, x_label, y_label, series, x_ticks, logarithmic, y_low, logarithmic_y=False):
    """series: name -> (points, dashed). Returns SVG text."""
    xs = [x for points, _ in series.values() for x, _ in points]
    ys = [y for points, _ in series.values() for _, y in points]
    scale = math.log if logarithmic else float
    x0, x1 = scale(min(xs)), scale(max(xs))
    y0, y1 = (min(ys) if y_low is None else y_low), max(ys) * (1.05 if y_low is not None else 1.0)
    scale_y = math.log if logarithmic_y else float

    def place(x, y):
        return (LEFT + (scale(x) - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - (scale_y(y) - scale_y(y0)) / (scale_y(y1) - scale_y(y0)) * (HEIGHT - TOP - BOTTOM))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="22" font-size="15">{title}</text>']
    right = WIDTH - RIGHT
    for y in (decade_steps if logarithmic_y else nice_steps)(y0, y1):
        _, py = place(min(xs), y)
        out += [f'<line x1="{LEFT}" x2="{right}" y1="{py:.1f}" y2="{py:.1f}" stroke="#e4e4e4"/>',
                f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{y:g}</text>']
    for x in x_ticks:
        px, _ = place(x, y0)
        out.append(f'<text x="{px:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>')
    out += [f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{x_label}</text>',
            f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">{y_label}</text>']
    for i, (name, (points, dashed)) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in sorted(points))
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        out += [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
                f'<line x1="{right + 12}" x2="{right + 32}" y1="{TOP + 18 * i}" y2="{TOP + 18 * i}" stroke="{colour}" stroke-width="2"{dash}/>',
                f'<text x="{right + 38}" y="{TOP + 18 * i + 4}">{name}</text>']
    return "\n".join(out + ["</svg>", ""])


def density(path, svg, constants):
    cells = collections.defaultdict(list)
    for row in rows_of(path):
        cells[row["dtype"], row["storage"], float(row["density"])].append(float(row["tokens_per_s"]))
    median = {key: statistics.median(values) for key, values in cells.items()}
    densities = sorted({d for _, s, d in median if s != "unpruned"}, reverse=True)
    series = {}
    for dtype in ("fp32", "bf16"):
        for storage in ("dense", "expanded", "sparse"):
            series[f"{dtype} {storage}"] = ([(d, median[dtype, storage, d]) for d in densities
                                             if (dtype, storage, d) in median], False)
        series[f"{dtype} unpruned"] = ([(d, median[dtype, "unpruned", 1.0]) for d in densities], True)
    for text in constants:
        name, value = text.rsplit("=", 1)
        series[name] = ([(d, float(value)) for d in densities], True)
    print("\n| density | " + " | ".join(series) + " |")
    print("|---" * (len(series) + 1) + "|")
    for d in densities:
        print(f"| {d:g} | " + " | ".join(f"{dict(points)[d]:.0f}" for points, _ in series.values()) + " |")
    if svg:
        open(svg, "w").write(chart("Training speed over density, GPT 6 layers, 384 wide", "density (kept / all)",
                                   "tokens/s", series, densities, True, 0))


def over_time(path, svg):
    series = collections.defaultdict(list)
    for row in rows_of(path):
        series[row["run"].replace("_", " ")].append((float(row["minutes"]), float(row["val_loss"])))
    print("\n| run | validation loss at the end | best |\n|---|---|---|")
    for name, points in series.items():
        print(f"| {name} | {sorted(points)[-1][1]:.4f} | {min(y for _, y in points):.4f} |")
    if svg:
        low = min(y for points in series.values() for _, y in points)
        shown = {name: ([(x, y) for x, y in points if y < low + 1], False) for name, points in series.items()}
        open(svg, "w").write(chart("Validation loss over time, 2 cores", "minutes", "validation loss", shown,
                                   range(0, 11), False, None))


def main():
    kind, path, *rest = sys.argv[1:]
    svg = rest[0] if rest else ""
    if kind == "density":
        density(path, svg, rest[1:])
    else:
        over_time(path, svg)


if __name__ == "__main__":
    main()
