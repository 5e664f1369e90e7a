"""comparison.md and comparison.json; page.py makes the HTML of the same rows."""
import json
import pathlib
import textwrap

from claims import claims
from rows import EQUAL_STEPS, TOLERANCE

SMALL_SHARE = 0.05  # of the peak memory: a saving below it does not matter


def number(value, digits=0, unit=1.0):
    return "–" if value is None else f"{value / unit:,.{digits}f}"


def with_range(value, digits=0, unit=1.0):
    if value is None:
        return "–"
    text = number(value["median"], digits, unit)
    if value["count"] == 1:
        return text
    return f"{text} ({number(value['low'], digits, unit)} … {number(value['high'], digits, unit)})"


def loss(value):
    if value is None:
        return "–"
    return f"{value['mean']:.4f}" + ("" if value["deviation"] is None else f" ± {value['deviation']:.4f}")


def seconds(row):
    if row["reached"] == 0:
        return "not reached"
    text = with_range(row["seconds_to_target"], 1 if row["seconds_to_target"]["median"] >= 10 else 2)
    return text if row["reached"] == row["seeds"] else f"{text}; {row['reached']} of {row['seeds']} seeds"


def columns(comparison):
    """[(heading, text of a row)]"""
    preset = comparison["preset"]
    memory = "peak GPU MiB" if preset["device"] == "cuda" else "peak RSS a rank, MiB"
    return [
        ("system", lambda r: r["title"]),
        (f"seconds to loss {preset['target']:g}", seconds),
        ("tokens/s", lambda r: with_range(r["tokens_per_s"])),
        (memory, lambda r: number(r["peak_bytes"] and r["peak_bytes"]["median"], 0, 2**20)),
        ("model state, bytes a parameter", lambda r: number(r["state_bytes_per_parameter"] and
                                                            r["state_bytes_per_parameter"]["median"], 2)),
        ("sent a step, kB", lambda r: number(r["sent_bytes"] and r["sent_bytes"]["median"], 1, 1e3)),
        (f"validation loss after {preset['steps']} steps", lambda r: loss(r["val_loss"]) + (
            f" ({r['preset']['steps']} steps)" if "steps" in r["preset"] else "")),
        ("loss minus that of the smaller dense network", below_smaller(comparison)),
        ("learning rate", lambda r: f"{r['lr']:g}"),
        ("start-up, s", lambda r: number(r["startup_s"] and r["startup_s"]["median"], 1)),
    ]


def signed(value):
    return f"{value:+.4f}".replace("-", "−")


def below_smaller(comparison):
    """The text of a row's loss minus that of the smaller dense network; empty without that network."""
    small = next((row for row in comparison["rows"] if row["name"] == "espalier-smaller" and row["status"] == "ok"), None)
    return lambda row: "" if small is None else signed(row["val_loss"]["mean"] - small["val_loss"]["mean"])


def trouble(row):
    if row["status"] == "left":
        return "not run yet"
    return f"{row['trouble']}: {row['why']}"


def cells(row, comparison):
    """Texts of a row's cells; of one without numbers, its title and why."""
    if row["status"] != "ok":
        return [row["title"], trouble(row)]
    return [text(row) for _, text in columns(comparison)]


def headline(comparison):
    """The fastest system to the target of each maker, in one sentence; a system counts if all its seeds reached it."""
    target, best = comparison["preset"]["target"], {}
    for row in comparison["rows"]:
        if row["status"] == "ok" and row["reached"] == row["seeds"]:
            maker = row["title"].split()[0]
            if maker not in best or row["seconds_to_target"]["median"] < best[maker]["seconds_to_target"]["median"]:
                best[maker] = row
    order = sorted(best.values(), key=lambda row: row["seconds_to_target"]["median"])
    if not order:
        return f"No system reached validation loss {target:g}."
    first = order[0]["seconds_to_target"]["median"]
    parts = [f"{row['title']} {row['seconds_to_target']['median']:.3g}" +
             (f" ({row['seconds_to_target']['median'] / first:.1f} times)" if row is not order[0] else "") for row in order]
    return f"Seconds to validation loss {target:g}, the fastest row of each maker: " + "; ".join(parts) + "."


def failures(comparison):
    """The reasons for exit code 1: systems without numbers, sweeps that failed, loss curves that differ."""
    rows, reasons = comparison["rows"], {}
    for row in rows:
        if row["status"] not in ("ok", "left") or row.get("trouble"):
            reasons.setdefault(trouble(row), []).append(row)
    count = sum(map(len, reasons.values()))
    found = []
    for reason, those in reasons.items():
        seeds = "" if any(row["status"] != "ok" for row in those) else " (with some seeds)"
        found.append(f"{len(those)} of {len(rows)} systems failed{seeds}: {', '.join(row['title'] for row in those)}: {reason}")
    if count > 0 and len(reasons) > 1:
        found.insert(0, f"{count} of {len(rows)} systems failed.")
    return found + comparison["problems"] + [text for holds, text in equality_sentences(comparison) if not holds]


def equal_time_sentence(comparison):
    """The gain of pruning over the dense network, and over a smaller dense network that trains for the same time."""
    rows = {row["name"]: row for row in comparison["rows"] if row["status"] == "ok"}
    pruned, small, dense = (rows.get("espalier-" + name) for name in ("sparse", "smaller", "dense"))
    if not pruned or not small:
        return []
    gain = lambda row: signed(row["val_loss"]["mean"] - pruned["val_loss"]["mean"])
    text = (f"Gain of pruning at equal time: validation loss {loss(pruned['val_loss'])} with sparse products after "
            f"{train_seconds(pruned)}, {loss(small['val_loss'])} of the best smaller dense network "
            f"({small['preset']['layers']} layers, {small['preset']['width']} wide, {small['preset']['steps']} steps) after "
            f"{train_seconds(small)}: {gain(small)}.")
    if dense:
        text += (f" Over the full dense network with the same steps, after {train_seconds(dense)} "
                 f"({loss(dense['val_loss'])}): {gain(dense)}.")
    return [text]


def train_seconds(row):
    return f"{row['curve_points'][-1][0]:.1f} s"


def eight_bit_sentence(comparison):
    """What 8-bit moments change at this size."""
    rows = {row["name"]: row for row in comparison["rows"] if row["status"] == "ok"}
    exact, coded = rows.get("espalier-sparse"), rows.get("espalier-sparse-8bit")
    if not exact or not coded or not exact["peak_bytes"] or not coded["peak_bytes"]:
        return []
    state, coded_state = (row["state_bytes_per_parameter"]["median"] * comparison["parameters"] for row in (exact, coded))
    peak = exact["peak_bytes"]["median"]
    saved = state - coded_state
    if saved <= 0:
        return ["8-bit moments change nothing at this size: every array keeps fewer than 4,096 elements, and moments of such "
                "arrays stay in fp32. Both rows are the same training."]
    if saved < SMALL_SHARE * peak:
        return [f"8-bit moments change nothing that matters at this size: they save {number(saved, 2, 2**20)} MiB of model "
                f"state beside a peak of {number(peak, 0, 2**20)} MiB a rank ({saved / peak:.1%}), most of it the program and "
                "its libraries."]
    return [f"8-bit moments save {number(saved, 1, 2**20)} MiB of model state, {saved / peak:.0%} of the peak of a rank."]


def equality_sentences(comparison):
    """[(holds, sentence)] about loss curves."""
    sentences = []
    measure, limit = TOLERANCE[comparison["preset"]["dtype"]]
    for curve, what in (("dense", "dense training"), ("masked", "training with one mask")):
        found = [c for c in comparison["coincidence"] if c["curve"] == curve]
        if not found:
            continue
        bad = [c for c in found if not c["equal"]]
        worst = max(bad or found, key=lambda c: c[measure])
        names = {c["name"] for c in found} | {c["reference"] for c in found}
        if bad:
            text = (f"Loss curves of {what} DIFFER within the first {worst['steps']} steps: {worst['name']} and "
                    f"{worst['reference']} by {worst[measure]:.1e} ({measure}), allowed {limit:g}; these rows do not "
                    "compute the same.")
        else:
            text = (f"Loss curves of {what} coincide over the first {worst['steps']} steps: {len(names)} systems, {measure} "
                    f"difference {worst[measure]:.1e} (allowed: {limit:g}).")
            if any(c["steps"] < min(EQUAL_STEPS, comparison["preset"]["steps"]) for c in found):
                text += (" Later steps say nothing at this learning rate: one that is a hundred-thousandth higher "
                         "changes their losses by more than the limit, too.")
        sentences.append((not bad, text))
    return sentences


def setting(comparison):
    preset, here = comparison["preset"], comparison["machine"]
    link = f"two hosts, link {comparison['link']}" if comparison["link"] else "one machine"
    systems = ", ".join(dict.fromkeys(r["system"] for r in comparison["rows"] if r["system"]))
    return (f"GPT of {preset['layers']} layers, {preset['heads']} heads, {preset['width']} wide, context "
            f"{preset['context']}, vocabulary {comparison['vocabulary']}: {comparison['parameters'] / 1e6:.2f} M "
            f"parameters; {preset['global_batch']} sequences a step, {preset['ranks']} ranks, {preset['dtype']}, AdamW; "
            f"pruned: {preset['sparsity']:.0%} of the blocks' weights, at random, from the start. {link}; "
            f"{here['processor']}, {here['cores']} cores. {systems}; commit {comparison['commit']}. "
            f"{comparison['seeds']} seed{'s' * (comparison['seeds'] > 1)}, systems alternating.")


def all_notes(comparison):
    """The gain at equal time, 8-bit moments, loss curves that coincide, and the notes of the comparison."""
    return (equal_time_sentence(comparison) + eight_bit_sentence(comparison) +
            [sentence for holds, sentence in equality_sentences(comparison) if holds] + comparison["notes"])


def wrapped(text, bullet=""):
    """Markdown lines of at most 100 columns."""
    return textwrap.fill(bullet + text, 100, subsequent_indent=" " * len(bullet), break_long_words=False,
                         break_on_hyphens=False)


def markdown(comparison):
    heads = [head for head, _ in columns(comparison)]
    out = [f"# Comparison: {comparison['preset_name']}", ""]
    out += [wrapped(failure, "- ") for failure in failures(comparison)] + [""] * bool(failures(comparison))
    out += [wrapped(headline(comparison)), "", wrapped(setting(comparison)), "",
           f"    {comparison['command']}", "",
           "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in comparison["rows"]:
        texts = [text.replace("|", "\\|") for text in cells(row, comparison)]
        out.append("| " + " | ".join(texts + [""] * (len(heads) - len(texts))) + " |")
    out += ["", "tokens/s, seconds: median (least … most) over seeds; loss: mean ± standard deviation over seeds.", ""]
    out += [wrapped(note, "- ") for note in all_notes(comparison)]
    out += ["", "## SAMO's claims", "", "| saved | paper | here | |", "|---|---|---|---|"]
    for claim in comparison["claims"]:
        here = "; ".join(f"{what}: {quotient(value)}" for what, value in claim["parts"])
        out.append(f"| {claim['claim']} | {claim['paper']:.0%} | {here} | {claim['note']} |")
    return "\n".join(out) + "\n"


def quotient(value):
    return "–" if value is None else f"{value:.0%}".replace("-", "−")


def write(folder, comparison, page):
    """All three files; `comparison` lacks claims only."""
    comparison["claims"] = claims(comparison["rows"])
    folder = pathlib.Path(folder)
    for name, text in (("comparison.json", json.dumps(comparison, indent=1) + "\n"),
                       ("comparison.md", markdown(comparison)), ("comparison.html", page(comparison))):
        temporary = folder / (name + ".tmp")
        temporary.write_text(text)
        temporary.replace(folder / name)
