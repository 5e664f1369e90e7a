// The page: what is shown of the runs, and the state that the reader can change.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const CATEGORIES = ["weight", "gradient", "master", "moment", "index", "activation", "communication", "scratch"];
/** Runs of different lengths, and those of a comparison at equal time, are compared over time. */
const EQUAL_STEPS = DATA.answer.rows.length === 0 && new Set(RUNS.filter((run) => run.curves).map((run) => run.curves.step[run.curves.step.length - 1])).size <= 1;
const state = { axis: EQUAL_STEPS ? "step" : "seconds", scale: "later", smoothing: .6, hidden: new Set(), range: null, memoryNow: true, memoryRanks: false, configAll: false };
const colorOf = (run) => `var(--run${run % 8})`;
const dashOf = (run) => ["", "6 3", "2 3"][Math.floor(run / 8) % 3];

/** Names without what all of them start with ("quickstart-"), for narrow places. */
const SHORT_NAMES = (() => {
  const names = RUNS.map((run) => run.name);
  if (names.length < 2) return names;
  let common = 0;
  while (names.every((name) => common < name.length && name[common] === names[0][common])) ++common;
  const cut = Math.max(...["-", "_", "/", "."].map((mark) => names[0].lastIndexOf(mark, common - 1))) + 1;
  return names.map((name) => common > 0 && name.length > cut ? name.slice(cut) : name);
})();

const shownRuns = () => RUNS.map((run, i) => [run, i]).filter(([run, i]) => run.curves && !state.hidden.has(i));

function drawHead() {
  const names = RUNS.map((run) => run.name);
  byId("title").textContent = names.length <= 3 ? names.join("  ·  ") : `${names.length} runs`;
  document.title = "Espalier report: " + names.join(", ");
  const row = DATA.headlines.find((line) => line.label === "Parameters");
  const count = row && row.values.find((value) => value !== null);
  byId("subtitle").textContent = (RUNS.length === 1 ? "1 run" : RUNS.length + " runs side by side") + (count ? ` · ${short(count)} parameters` : "") +
    (RUNS.length > 1 ? " · ratios are to the first run" : "");
  const notes = RUNS.flatMap((run) => run.notes.map((note) => [run.name, note]));
  byId("notes").hidden = notes.length === 0;
  for (const [name, note] of notes) {
    const line = node("p", "", undefined, byId("notes"));
    node("b", "", name + ": ", line);
    line.append(note);
  }
}

/** What the runs were made to find out; the first row of the table is its head. */
function drawAnswer() {
  const { sentences, rows } = DATA.answer;
  byId("answer").hidden = rows.length === 0;
  for (const text of sentences) node("p", "lead", text, byId("sentences"));
  const [head, body] = ["thead", "tbody"].map((part) => node(part, "", undefined, byId("answer-table")));
  rows.forEach((cells, i) => {
    const row = node("tr", "", undefined, i === 0 ? head : body);
    for (const cell of cells) node(i === 0 ? "th" : "td", "", cell, row);
  });
}

/** Ratio of a run's value to the first run's; null for the first. */
function ratioTo(line, run) {
  const [first, value] = [line.values[0], line.values[run]];
  return run === 0 || !first || value === null ? null : value / first;
}

function ratioText(ratio) { return "× " + (ratio >= 100 ? ratio.toFixed(0) : ratio.toPrecision(3)); }

function isGood(line, ratio) {
  return (line.better === "lower" && ratio < .995) || (line.better === "higher" && ratio > 1.005);
}

function drawCards() {
  for (const line of DATA.headlines.filter((one) => one.major)) {
    const card = node("div", "card", undefined, byId("cards"));
    node("h3", "", line.label, card).title = line.hint;
    RUNS.forEach((run, i) => {
      const row = node("div", "value", undefined, card), name = node("span", "name", undefined, row);
      dot(colorOf(i), name);
      node("span", "", SHORT_NAMES[i], name).title = run.name;
      node("b", "", line.texts[i].replace(/^-$/, "–"), row);
      const ratio = ratioTo(line, i), cell = node("span", "ratio", ratio === null ? "" : ratioText(ratio), row);
      if (RUNS.length === 1) cell.remove();
      if (ratio !== null && isGood(line, ratio)) cell.classList.add("good");
    });
  }
}

function drawNumbers() {
  const head = node("tr", "", undefined, node("thead", "", undefined, byId("numbers")));
  node("th", "", "", head);
  RUNS.forEach((run, i) => { const cell = node("th", "", undefined, head); dot(colorOf(i), cell); cell.append(run.name + (run.complete ? "" : " (so far)")); });
  const body = node("tbody", "", undefined, byId("numbers"));
  for (const line of DATA.headlines) {
    const row = node("tr", "", undefined, body);
    node("td", "", line.label, row).title = line.hint;
    line.texts.forEach((text) => node("td", "", text.replace(/^-$/, "–"), row));
  }
}

function drawLegend() {
  RUNS.forEach((run, i) => {
    const button = node("button", "", undefined, byId("legend"));
    button.type = "button";
    dot(colorOf(i), button);
    button.append(run.name);
    button.title = "Show or hide " + run.name;
    button.setAttribute("aria-pressed", true);
    button.addEventListener("click", () => {
      if (!state.hidden.delete(i)) state.hidden.add(i);
      button.setAttribute("aria-pressed", !state.hidden.has(i));
      drawCurves();
    });
  });
  const redraw = (key) => (value) => { state[key] = value; if (key === "axis") state.range = null; drawCurves(); };
  switcher(byId("axis"), [["step", "Step"], ["seconds", "Time"]], state.axis, redraw("axis"));
  switcher(byId("scale"), [["later", "After the start"], ["all", "Whole"], ["log", "Log"]], state.scale, redraw("scale"));
  byId("smoothing").addEventListener("input", (event) => { state.smoothing = event.target.value / 100; drawCurves(); });
  byId("unzoom").addEventListener("click", () => { state.range = null; drawCurves(); });
}

/** Points on each side; the slider's end averages over about a tenth of the curve. */
function smoothingReach(points) {
  return state.smoothing === 0 ? 0 : Math.round(Math.max(2, points / 20) ** state.smoothing);
}

function fullRange() {
  let low = Infinity, high = -Infinity;
  for (const [run] of shownRuns()) {
    const xs = run.curves[state.axis];
    low = Math.min(low, xs[0]);
    high = Math.max(high, xs[xs.length - 1]);
  }
  if (low > high) return [0, 1];
  return [state.axis === "seconds" ? 0 : low, high > low ? high : low + 1];
}

/** Curves of one quantity: the smoothed line, and its raw values faintly below when `raw`. */
function seriesOf(key, { smooth, raw }) {
  const all = [];
  for (const [run, i] of shownRuns()) {
    if (!run.curves[key]) continue;
    const data = run.curves, one = { name: run.name, color: colorOf(i), dash: dashOf(i), xs: data[state.axis] };
    const reach = smooth ? smoothingReach(data[key].length) : 0;
    if (raw && data.loss_low) all.push({ ...one, ys: data[key], low: data.loss_low, high: data.loss_high, faint: true });
    else if (raw && reach > 0) all.push({ ...one, ys: data[key], faint: true });
    all.push({ ...one, name: raw ? run.name + " train" : run.name, ys: smoothed(data[key], reach) });
  }
  return all;
}

function validationSeries() {
  return shownRuns().filter(([run]) => run.curves.validation.loss.length > 0).map(([run, i]) => ({
    name: run.name + " validation", color: colorOf(i), circles: true, xs: run.curves.validation[state.axis], ys: run.curves.validation.loss }));
}

/** Accuracy at the evaluations ("top1" or "top5"): circles, and a faint line through them. */
function accuracySeries(key) {
  return shownRuns().filter(([run]) => run.curves.validation[key]).flatMap(([run, i]) => {
    const one = { name: run.name, color: colorOf(i), dash: dashOf(i), xs: run.curves.validation[state.axis], ys: run.curves.validation[key] };
    return [{ ...one, faint: true }, { ...one, circles: true }];
  });
}

/** Of pruning, and of changes of the layout. */
function marksOfRuns() {
  return shownRuns().flatMap(([run, i]) => {
    const mark = (step, kind) => ({ x: state.axis === "step" ? step : run.curves.seconds[nearest(run.curves.step, step)], color: colorOf(i), kind });
    return [...run.layouts.map((one) => mark(one.step, "layout")), ...(run.pruned_at === null ? [] : [mark(run.pruned_at, "")])];
  });
}

/** The last validation loss of each run; without one the last training loss. */
function endsOfRuns(range) {
  return shownRuns().flatMap(([run, i]) => {
    const data = run.curves, known = data.validation.loss.length > 0;
    const [xs, ys] = known ? [data.validation[state.axis], data.validation.loss] : [data[state.axis], smoothed(data.loss, smoothingReach(data.loss.length))];
    let at = ys.length - 1;
    while (at >= 0 && (ys[at] === null || xs[at] > range[1])) --at;
    return at < 0 || xs[at] < range[0] ? [] : [{ y: ys[at], color: colorOf(i), text: ys[at] < 100 ? ys[at].toFixed(3) : short(ys[at]) }];
  });
}

function drawCurves() {
  byId("axis-note").textContent = (state.axis === "seconds" ? "Over the time in steps, without evaluation and checkpoints. " : "Over steps. ") +
    (state.scale === "later" && state.range === null ? "The first fifth of each curve may leave the frame." : "");
  const crosses = [], range = state.range || fullRange(), marks = marksOfRuns();
  byId("unzoom").hidden = state.range === null;
  const shared = {
    range, marks, height: 190,
    xText: state.axis === "step" ? short : clock,
    xBases: state.axis === "step" ? [1, 2, 5, 10] : range[1] > 120 ? [1.2, 3, 6, 12] : undefined,
    xHead: (value) => state.axis === "step" ? "step " + Math.round(value).toLocaleString("en") : clock(value),
    onHover: (value) => crosses.forEach((show) => show(value)),
    onZoom: (to) => { state.range = to; drawCurves(); },
  };
  const draw = (id, label, series, more) => crosses.push(lineChart(byId(id), { ...shared, label, series, ...more }));
  draw("loss", "Loss", [...seriesOf("loss", { smooth: true, raw: true }), ...validationSeries()],
    { height: 330, log: state.scale === "log", later: state.scale === "later" && state.range === null, ends: endsOfRuns(range), yText: short, readout: (value) => value.toFixed(4) });
  /** Hidden if no run of the page has such a curve. */
  const drawKnown = (id, label, known, series, more) => {
    byId(id + "-section").hidden = !RUNS.some((run) => run.curves && known(run.curves));
    if (!byId(id + "-section").hidden) draw(id, label, series, more);
  };
  drawKnown("teacher", "Loss to the teacher", (data) => data.teacher_loss, seriesOf("teacher_loss", { smooth: true }), { later: true, yText: short, readout: (value) => value.toFixed(4) });
  for (const [key, label] of [["top1", "Top-1 accuracy"], ["top5", "Top-5 accuracy"]])
    drawKnown(key, label, (data) => data.validation[key], accuracySeries(key), { yText: (value) => +(100 * value).toFixed(2) + " %", readout: (value) => (100 * value).toFixed(2) + " %" });
  for (const [id, label] of [["tokens", "Tokens per second"], ["images", "Images per second"]])
    drawKnown(id, label, (data) => data[id + "_per_s"], seriesOf(id + "_per_s", { smooth: true }), { zero: true, yText: short, readout: (value) => Math.round(value).toLocaleString("en") });
  draw("norm", "Gradient norm", seriesOf("grad_norm", { smooth: true }), { zero: true, spikes: true, yText: short, readout: (value) => value.toPrecision(4) });
  draw("rate", "Learning rate", seriesOf("lr", {}), { zero: true, yText: short, readout: (value) => value.toPrecision(4) });
  drawKnown("traffic", "All-reduce bytes a step", (data) => data.allreduce_bytes.some((bytes) => bytes > 0), seriesOf("allreduce_bytes", {}), { zero: true, yText: (value) => value === 0 ? "0" : bytesText(value).replace(/\.0+ /, " "), readout: bytesText });
}

function drawMemory() {
  const rows = [], pick = (pair) => pair ? pair[state.memoryNow ? 0 : 1] : 0;
  RUNS.forEach((run, i) => {
    if (!run.memory) return;
    const parts = (counts) => CATEGORIES.map((name) => ({ name, value: pick(counts[name]), color: `var(--${name})` }));
    if (state.memoryRanks) run.memory.ranks.forEach((counts, rank) => rows.push({ label: `${run.name} rank ${rank}`, color: colorOf(i), parts: parts(counts) }));
    else rows.push({ label: run.name, color: colorOf(i), parts: parts(run.memory.total) });
  });
  byId("memory-section").hidden = !RUNS.some((run) => run.memory);
  stackedBars(byId("memory"), rows, bytesText);
}

function drawBytes() {
  const known = RUNS.map((run, i) => [run, i]).filter(([run]) => run.bytes.allreduce !== null || run.bytes.p2p !== null);
  byId("bytes-section").hidden = !known.some(([run]) => run.bytes.allreduce > 0 || run.bytes.p2p > 0);
  stackedBars(byId("bytes"), known.map(([run, i]) => ({ label: run.name, color: colorOf(i), parts: [
    { name: "all-reduce", value: run.bytes.allreduce || 0, color: "var(--allreduce)" },
    { name: "point to point", value: run.bytes.p2p || 0, color: "var(--p2p)" }] })), bytesText);
}

// Pictures are shown as images: nothing in them can run.
function drawPipelines() {
  const piped = RUNS.filter((run) => run.pipeline);
  byId("pipeline-section").hidden = piped.length === 0;
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const choose = (run) => {
    byId("pipeline").replaceChildren();
    byId("pipeline-about").hidden = run.pipeline.pictures.length === 0;
    run.pipeline.pictures.forEach((text, i) => {
      const picture = node("img", "", "", byId("pipeline"));
      picture.alt = `pipeline, ${["measured", "predicted"][i]}`;
      picture.style.width = "100%";
      picture.src = `data:image/svg+xml;utf8,${encodeURIComponent(text)}`;
    });
    const { delays } = run.pipeline.numbers;
    const idle = ["measured", "predicted"].map((which) => [which, run.pipeline.numbers[which].idle_share])
      .filter(([, share]) => typeof share === "number").map(([which, share]) => `${percent(share)} ${which}`);
    const means = delays.map((delay) => delay.mean.toFixed(2)).join(", ");
    byId("pipeline-note").textContent = (idle.length ? `Idle: ${idle.join(", ")}. ` : "") +
      (means ? `Mean delay of the stages' gradients, in updates: ${means}.` : "");
  };
  if (piped.length > 0) {
    switcher(byId("pipeline-run"), piped.map((run) => [run, run.name]), piped[0], choose);
    byId("pipeline-run").hidden = piped.length < 2;
    choose(piped[0]);
  }
}
drawPipelines();

let timeline = null;

function drawTimelines() {
  const traced = RUNS.filter((run) => run.timeline);
  byId("timeline-section").hidden = traced.length === 0;
  if (traced.length === 0) return;
  const chooseWindow = (run, window_) => {
    timeline = timelineView(byId("timeline"), run.timeline, window_);
    byId("timeline-note").textContent = window_.left_out ? `${window_.left_out} shorter spans of these steps are left out; trace.json has them all.` : "";
  };
  const chooseRun = (run) => {
    switcher(byId("timeline-window"), run.timeline.windows.map((one) => [one, one.label]), run.timeline.windows[0], (one) => chooseWindow(run, one));
    chooseWindow(run, run.timeline.windows[0]);
  };
  switcher(byId("timeline-run"), traced.map((run) => [run, run.name]), traced[0], chooseRun);
  byId("timeline-run").hidden = traced.length < 2;
  for (const [text, factor] of [["+", .5], ["−", 2], ["Fit", null]]) {
    node("button", "", text, byId("timeline-zoom")).addEventListener("click", () => timeline.zoom(factor));
  }
  chooseRun(traced[0]);
}

function drawConfig() {
  const table = byId("config"), keys = [...new Set(RUNS.flatMap((run) => Object.keys(run.config)))].sort();
  const differs = (key) => new Set(RUNS.filter((run) => Object.keys(run.config).length).map((run) => run.config[key])).size > 1;
  const shown = state.configAll ? keys : keys.filter(differs);
  table.replaceChildren();
  byId("config-section").hidden = keys.length === 0;
  if (shown.length === 0) { node("td", "", "The runs have the same configuration.", node("tr", "", undefined, table)); return; }
  const head = node("tr", "", undefined, node("thead", "", undefined, table));
  node("th", "", "", head);
  RUNS.forEach((run, i) => { const cell = node("th", "", undefined, head); dot(colorOf(i), cell); cell.append(run.name); });
  const body = node("tbody", "", undefined, table);
  for (const key of shown) {
    const row = node("tr", "", undefined, body);
    node("td", "", key, row);
    for (const run of RUNS) node("td", state.configAll && differs(key) ? "differs" : "", run.config[key] === undefined ? "–" : run.config[key], row);
  }
}

function drawSwitches() {
  const redraw = (key, draw) => (value) => { state[key] = value; draw(); };
  switcher(byId("memory-moment"), [[true, "At the end"], [false, "High-water mark"]], true, redraw("memoryNow", drawMemory));
  switcher(byId("memory-scope"), [[false, "All ranks"], [true, "Each rank"]], false, redraw("memoryRanks", drawMemory));
  byId("config-filter").hidden = RUNS.length < 2;
  state.configAll = RUNS.length < 2;
  switcher(byId("config-filter"), [[false, "What differs"], [true, "All keys"]], state.configAll, redraw("configAll", drawConfig));
}

drawHead();
drawAnswer();
drawCards();
drawNumbers();
drawLegend();
drawSwitches();
drawCurves();
drawMemory();
drawBytes();
drawTimelines();
drawConfig();
let resized = null;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { drawCurves(); if (timeline) timeline.draw(); }, 120);
});
