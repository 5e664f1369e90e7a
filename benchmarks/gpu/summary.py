"""summary.md: the results as tables, without numbers that were not measured."""
from kinds import SHAPES
from peaks import mfu, peak_flops

# Counters of benchmarks, by the steps that have them.
TABLES = [(("kernels", "gemms"), ["%bound", "best_us", "GB/s", "GFLOP/s"]),
          (("gemms-tuned",), ["%bound", "best_us", "GB/s", "GFLOP/s"]),
          (("attention", "peer-attention"), ["best_us", "TFLOP/s"]),
          (("figure-1", "figure-1-small", "slabs"), ["dense_ms", "sparse_ms", "own_ms", "expanded_ms"]),
          (("blocks",), ["dense_ms", "block_ms", "ell_ms", "x_dense", "%speed", "%bound"])]
SPEED_COLUMNS = ["GPT-2", "storage", "tokens/s", "MFU, %", "causal MFU, %", "x PyTorch", "x our dense", "state, B a parameter",
                 "device's peak, GiB"]
MOST_OPERATIONS = 40
LARGEST_COLUMNS = ["largest GPT", "parameters", "kept", "planned of the device, GiB", "planned pinned, GiB",
                   "arena's peak, GiB", "s a step", "losses"]


def number(value, form="{:.2f}"):
    return form.format(value) if isinstance(value, (int, float)) else "-"


def rows_of(lines, keys):
    """A table over all rows of all benchmarks that have one of the counters."""
    text, steps = [], []
    for line in lines:
        steps += [line["step"]] if line.get("rows") else []
        for name, row in line.get("rows", {}).items():
            if any(key in row for key in keys):
                text.append(f"| {name} | " + " | ".join(number(row.get(key)) for key in keys) + " |")
    if not text:
        return []
    return ["", f"| {', '.join(steps)} | " + " | ".join(keys) + " |", "|---" * (len(keys) + 1) + "|", *text]


def giga(value, unit=2**30):
    return number(value / unit if isinstance(value, (int, float)) else None)


def device_name(lines):
    """Name of the first device that `espalier info` lists; empty without one."""
    return next((line["info"]["devices"][0] for line in lines if line.get("info", {}).get("devices")), "")


def peak_text(device):
    peak = peak_flops(device)
    rate = f"{peak / 1e12:.0f} TFLOP/s" if peak else "not known, so no MFU"
    return ["", f"MFU: 6 N + 12 L C T flops a token (benchmarks/gpu/peaks.py) over dense bf16 of the device: {rate}; "
            "causal MFU: 6 N + 6 L C T.",
            "Device's peak: ours by the driver, with its context; PyTorch's what its allocator took."]


def largest(lines):
    """Table of the largest models: their plans, and the steps that they took."""
    rows = [line for line in lines if line.get("largest")]
    text = ["", "| " + " | ".join(LARGEST_COLUMNS) + " |", "|---" * len(LARGEST_COLUMNS) + "|"] if rows else []
    for line in rows:
        found = line["largest"]
        cells = [found["way"], f"{found['parameters'] / 1e9:.2f} G", f"{found['kept'] / 1e9:.2f} G",
                 giga(found["planned_device"]), giga(found["planned_pinned"]), giga(found.get("arena_peak")),
                 number(min(found.get("step_s", []), default=None)), ", ".join(map(number, found.get("losses", [])))]
        text.append("| " + " | ".join(cells) + " |")
    return text


def operations(line):
    """Table of the operations of a step, the longest first; the last row sums the others."""
    times = line.get("operation_times")
    if not times:
        return []
    text = ["", f"| {line['step']}: operation | ms a step | share, % | calls a step | TFLOP/s | GB/s |", "|---" * 6 + "|"]
    whole = sum(row["ms_per_step"] for row in times["rows"])
    for row in times["rows"][:MOST_OPERATIONS]:
        text.append(f"| {row['operation']} | {row['ms_per_step']:.3f} | {100 * row['ms_per_step'] / whole:.1f} | "
                    f"{row['calls'] / times['steps']:.0f} | {row['gflops_per_s'] / 1e3:.1f} | {row['gb_per_s']:.0f} |")
    return [*text, f"| all {len(times['rows'])} | {whole:.3f} | 100 | | | |"]


def summary(lines, version):
    text = [f"# GPU results of {version}", "", "| step | what | result | s |", "|---|---|---|---|"]
    for line in lines:
        why = f": {line['why']}" if line.get("why") else ""
        result = line["status"] + why.replace("|", "/")
        text.append(f"| {line['step']} | {line['what']} | {result} | {line['seconds']:.0f} |")
    for line in lines:
        text += ["", "```", line["nvidia_smi"].strip(), "```"] if line.get("nvidia_smi") else []
    speeds = {(line.get("shape"), line.get("storage")): line for line in lines if line.get("tokens_per_s")}
    device = device_name(lines)
    if speeds:
        text += peak_text(device) + ["", "| " + " | ".join(SPEED_COLUMNS) + " |", "|---" * len(SPEED_COLUMNS) + "|"]
    for (shape, storage), line in speeds.items():
        peer, dense = (speeds.get((shape, other), {}).get("tokens_per_s") for other in ("PyTorch", "dense"))
        rate, peak = line["tokens_per_s"], line.get("device_bytes_peak")
        used, causal = ((mfu(line, SHAPES[shape], device, half) for half in (False, True)) if shape in SHAPES
                        else (None, None))
        cells = [shape, storage + (f", {line['way']}" if line.get("way") else ""), f"{rate:.0f}",
                 number(100 * used if used else None, "{:.1f}"),
                 number(100 * causal if causal else None, "{:.1f}"), number(rate / peer if peer else None),
                 number(rate / dense if dense else None), number(line.get("model_state_bytes_per_parameter")),
                 number(peak / 2**30 if peak else None)]
        text.append("| " + " | ".join(cells) + " |")
    text += largest(lines)
    for steps, keys in TABLES:
        text += rows_of([line for line in lines if line["step"] in steps], keys)
    for line in lines:
        text += ["", "```", *line["table"], "```"] if line.get("table") else []
        text += operations(line)
    return "\n".join(text) + "\n"
