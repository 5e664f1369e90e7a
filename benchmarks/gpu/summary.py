"""The results for people. Numbers that were not measured are not there."""

# Counters of benchmarks, by the steps that have them.
TABLES = [(("kernels", "gemms"), ["%bound", "best_us", "GB/s", "GFLOP/s"]),
          (("attention", "peer-attention"), ["best_us", "TFLOP/s"]),
          (("figure-1",), ["dense_ms", "sparse_ms", "expanded_ms"]),
          (("blocks",), ["dense_ms", "block_ms", "x_dense", "%speed", "%bound"])]
SPEED_COLUMNS = ["GPT-2", "storage", "tokens/s", "x PyTorch", "x our dense", "state, B a parameter",
                 "device's peak, GiB"]


def number(value, form="{:.2f}"):
    return form.format(value) if isinstance(value, (int, float)) else "-"


def rows_of(lines, keys):
    """A table over all rows of all benchmarks that have one of the counters."""
    text = []
    for line in lines:
        for name, row in line.get("rows", {}).items():
            if any(key in row for key in keys):
                text.append(f"| {name} | " + " | ".join(number(row.get(key)) for key in keys) + " |")
    if not text:
        return []
    return ["", "| benchmark | " + " | ".join(keys) + " |", "|---" * (len(keys) + 1) + "|", *text]


def summary(lines, version):
    text = [f"# GPU results of {version}", "", "| step | what | result | s |", "|---|---|---|---|"]
    for line in lines:
        why = f": {line['why']}" if line.get("why") else ""
        result = line["status"] + why.replace("|", "/")
        text.append(f"| {line['step']} | {line['what']} | {result} | {line['seconds']:.0f} |")
    for line in lines:
        text += ["", "```", line["nvidia_smi"].strip(), "```"] if line.get("nvidia_smi") else []
    speeds = {(line.get("shape"), line.get("storage")): line for line in lines if line.get("tokens_per_s")}
    if speeds:
        text += ["", "| " + " | ".join(SPEED_COLUMNS) + " |", "|---" * len(SPEED_COLUMNS) + "|"]
    for (shape, storage), line in speeds.items():
        peer, dense = (speeds.get((shape, other), {}).get("tokens_per_s") for other in ("PyTorch", "dense"))
        rate, peak = line["tokens_per_s"], line.get("device_bytes_peak")
        cells = [shape, storage, f"{rate:.0f}", number(rate / peer if peer else None),
                 number(rate / dense if dense else None), number(line.get("model_state_bytes_per_parameter")),
                 number(peak / 2**30 if peak else None)]
        text.append("| " + " | ".join(cells) + " |")
    for steps, keys in TABLES:
        text += rows_of([line for line in lines if line["step"] in steps], keys)
    for line in lines:
        text += ["", "```", *line["table"], "```"] if line.get("table") else []
    return "\n".join(text) + "\n"
