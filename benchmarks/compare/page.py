"""comparison.html: one file that needs no network, in the style of `espalier report`."""
import html
import sys

from contenders import ROOT
from report import all_notes, cells, columns, failures, headline, number, quotient, setting

sys.path.append(str(ROOT / "benchmarks" / "quality"))
import plot  # noqa: E402

TREE = ('<svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true"><path d="M12 22V3M12 17H6q-2 0-2-2v-2M12 17h6'
        'q2 0 2-2v-2M12 10H6q-2 0-2-2V6M12 10h6q2 0 2-2V6" fill="none" stroke="currentColor" stroke-width="1.8" '
        'stroke-linecap="round"/></svg>')


def bars(rows, key, digits, unit=1.0):
    """A bar per system, as long as its median; the tooltip has the least and the most."""
    shown = [row for row in rows if row["status"] == "ok" and row[key]]
    if not shown:
        return '<p class="empty">No system has this number.</p>'
    most = max(row[key]["high"] for row in shown) or 1
    out = ['<div class="bars">']
    for row in shown:
        value, colour = row[key], "--accent" if row["name"].startswith("espalier-") else "--run7"
        span = ""
        if value["count"] > 1:
            span = f' title="{number(value["low"], digits, unit)} … {number(value["high"], digits, unit)}"'
        out.append(f'<span class="label">{html.escape(row["title"])}</span><span class="bar"{span}>'
                   f'<i style="width:{100 * value["median"] / most:.2f}%;background:var({colour})"></i></span>'
                   f'<b>{number(value["median"], digits, unit)}</b>')
    return "\n".join(out + ["</div>"])


def curves(rows):
    """Validation loss over seconds of training, of the first seed; rivals dashed."""
    series = {row["name"]: ([(seconds, loss) for seconds, _, loss in row["curve_points"]],
                            not row["name"].startswith("espalier-"))
              for row in rows if row["status"] == "ok" and len(row["curve_points"]) > 1}
    if not series:
        return '<p class="empty">No system was evaluated twice.</p>'
    seconds = [x for points, _ in series.values() for x, _ in points]
    ticks = [t for power in range(-2, 6) for t in (10**power, 3 * 10**power) if min(seconds) <= t <= max(seconds)]
    return plot.chart("", "seconds of training", "validation loss", series, ticks, True, None)


def table(comparison):
    heads = [head for head, _ in columns(comparison)]
    out = ["<table><thead><tr>", *(f"<th>{html.escape(head)}</th>" for head in heads), "</tr></thead><tbody>"]
    for row in comparison["rows"]:
        texts = [html.escape(text) for text in cells(row, comparison)]
        if row["status"] == "ok":
            out.append("<tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>")
        else:
            out.append(f'<tr><td>{texts[0]}</td><td colspan="{len(heads) - 1}" style="text-align:left;white-space:normal">'
                       f'{texts[1]}</td></tr>')
    return "\n".join(out + ["</tbody></table>"])


def claims_table(comparison):
    out = ["<table><thead><tr><th>saved</th><th>paper</th><th>here</th></tr></thead><tbody>"]
    for claim in comparison["claims"]:
        parts = "<br>".join(f"{html.escape(what)}: <b>{quotient(value)}</b>" for what, value in claim["parts"])
        out.append(f'<tr><td style="white-space:normal">{html.escape(claim["claim"])}<br><span class="quiet">'
                   f'{html.escape(claim["note"])}</span></td><td>{claim["paper"]:.0%}</td><td>{parts}</td></tr>')
    return "\n".join(out + ["</tbody></table>"])


def section(title, quiet, body):
    return (f'<section><h2>{title}</h2><p class="quiet">{quiet}</p><div class="panel scroll">{body}</div></section>')


def page(comparison):
    rows, preset = comparison["rows"], comparison["preset"]
    css = (ROOT / "src" / "report" / "report.css").read_text()
    memory = "of the GPU" if preset["device"] == "cuda" else "resident, of the rank that takes most, with program and libraries"
    body = [
        f'<header><p class="brand">{TREE} Espalier</p><h1>Comparison: {html.escape(comparison["preset_name"])}</h1>'
        + "".join(f"<p><b>{html.escape(failure)}</b></p>" for failure in failures(comparison)) +
        f'<p>{html.escape(headline(comparison))}</p>'
        f'<p class="quiet">{html.escape(setting(comparison))}</p></header><main>',
        section(f"Seconds to validation loss {preset['target']:g}", "Shorter is better. Training steps only; a row is shown "
                "when all its seeds reached this loss.",
                bars([row for row in rows if row.get("reached") == row["seeds"]], "seconds_to_target", 2)),
        '<section id="notes">' + "".join(f"<p>{html.escape(note)}</p>" for note in all_notes(comparison)) + "</section>",
        section("All systems", f"<code>{html.escape(comparison['command'])}</code><br>Medians over seeds (least … most); loss: "
                "mean ± standard deviation over seeds.", table(comparison)),
        section("Tokens a second", "Longer is better. Median step of each seed, median over seeds.",
                bars(rows, "tokens_per_s", 0)),
        section("Validation loss over time", "Seconds of training steps, without start-up and evaluations; seed 1; systems "
                "other than Espalier dashed.", curves(rows)),
        section("Bytes sent in a step", "kB, of a rank; shorter is better.", bars(rows, "sent_bytes", 1, 1e3)),
        section("Model state", "Bytes a parameter on the rank that holds most; shorter is better.",
                bars(rows, "state_bytes_per_parameter", 2)),
        section("Peak memory", f"MiB, {memory}; shorter is better.", bars(rows, "peak_bytes", 0, 2**20)),
        section("SAMO’s claims", "The paper's saving against its baseline, and the same quotient here.",
                claims_table(comparison)),
        "</main>"]
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
            f"<title>Espalier: comparison</title><style>\n{css}thead th {{ white-space: normal; vertical-align: bottom; }}\n"
            "</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n")
