// The page of a plan: what is shown of the object of `espalier plan --json`.

const { plan: PLAN, timeline: STEP } = JSON.parse(byId("data").textContent);
const SCALING = PLAN.scaling || [];
const BEST = PLAN.plans[PLAN.best.plan];
const MEASURED = BEST.measured_ms != null;  // by --try
const PARTS = [["compute", "var(--lane-compute)"], ["waiting", "var(--waiting)"], ["reduction", "var(--allreduce)"], ["update", "var(--lane-optimizer)"]];
const ACTIONS = [["forward", "var(--lane-compute)"], ["backward", "var(--lane-backward)"], ["backward of the input", "var(--lane-backward)"],
  ["backward of the weights", "var(--lane-weight)"], ["waiting", "var(--waiting)"]];
const CATEGORIES = ["weight", "gradient", "master", "moment", "index", "activation", "communication", "scratch"];

const many = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const milliseconds = (value) => microseconds(1e3 * value);
const layoutOf = (one) => one.stages > 1 ? `${many(one.stages, "stage")}, ${one.schedule}` : many(one.replicas, "replica");

/** Head and rows of texts; rowClass(i), cellClass(i, column). */
function fillTable(table, heads, rows, { rowClass = () => "", cellClass = () => "" } = {}) {
  const head = node("tr", "", undefined, node("thead", "", undefined, table));
  heads.forEach((text, column) => node("th", rows.length ? cellClass(0, column) : "", text, head));
  const body = node("tbody", "", undefined, table);
  rows.forEach((texts, i) => {
    const row = node("tr", rowClass(i), undefined, body);
    texts.forEach((text, column) => node("td", cellClass(i, column), text, row));
  });
}

function drawHead() {
  byId("title").textContent = `${PLAN.network} on ${PLAN.machine}`;
  document.title = `Espalier plan: ${PLAN.network} on ${PLAN.machine}`;
  const kept = PLAN.kept_parameters / PLAN.parameters;
  byId("subtitle").textContent = `${short(PLAN.parameters)} parameters, ${short(PLAN.kept_parameters)} kept (${(100 * kept).toFixed(1)} %) · predicted`;
  byId("sentence").textContent = `On ${many(BEST.ranks, "device")} of ${PLAN.machine}, with ${layoutOf(BEST)} and ` +
    `${many(BEST.micro_batches, "micro-batch").replace(/hs$/, "hes")} of ${BEST.micro_batch}, a step takes ${milliseconds(BEST.step_ms)}: ` +
    `${short(BEST.samples_per_s)} samples a second, in ${bytesText(BEST.memory)} of a device's ${bytesText(PLAN.device_memory)}.`;
  byId("best").textContent = `${many(BEST.ranks, "rank")}: ${many(BEST.stages, "stage")} × ${many(BEST.replicas, "replica")}, ` +
    `schedule ${BEST.schedule}, ${BEST.micro_batches} × ${BEST.micro_batch} samples, storage ${BEST.storage}, recompute ${BEST.recompute}, exchange ${BEST.exchange}.`;
  byId("notes").hidden = PLAN.warnings.length === 0;
  for (const warning of PLAN.warnings) node("p", "", warning, byId("notes"));
  for (const note of PLAN.notes) node("p", "quiet", note[0].toUpperCase() + note.slice(1) + ".", byId("remarks"));
}

function drawCards() {
  const idle = BEST.waiting_ms / BEST.step_ms;
  for (const [label, text] of [["Step", milliseconds(BEST.step_ms)], ["Samples per second", short(BEST.samples_per_s)],
    ["Memory of the fullest rank", bytesText(BEST.memory)], ["Share of the step that waits", (100 * idle).toFixed(1) + " %"]]) {
    const card = node("div", "card", undefined, byId("cards"));
    node("h3", "", label, card);
    node("b", "", text, card);
  }
}

const fixed = (value) => value.toFixed(2);
/** [head, text of a layout, class] */
const COLUMNS = [["ranks", (one) => one.ranks], ["stages", (one) => one.stages], ["schedule", (one) => one.schedule, "loose"],
  ["micro-batch", (one) => `${one.micro_batches} × ${one.micro_batch}`], ["storage", (one) => one.storage], ["recompute", (one) => one.recompute],
  ["exchange", (one) => one.exchange, "loose"], ["step, ms", (one) => fixed(one.step_ms)], ["beside the best", (one) => one.beside_best, "wrapped"],
  ...(MEASURED ? [["measured, ms", (one) => one.measured_ms == null ? "–" : fixed(one.measured_ms)]] : []),
  ["samples/s", (one) => one.samples_per_s.toFixed(1)], ["memory", (one) => bytesText(one.memory) + (one.fits ? "" : " – too much")]];

/** A table of layouts; settings that all of them share stand in `note`. */
function layoutTable(table, note, rows) {
  table.replaceChildren();
  const choices = COLUMNS.slice(0, 7), laid = rows.filter((one) => !one.refused);
  const shared = laid.length === 0 ? [] : choices.filter(([, text]) => new Set(laid.map(text)).size === 1);
  note.textContent = shared.length === 0 ? "" : `${laid.length > 1 ? "All" : "Layout"}: ${shared.map(([head, text]) => `${head} ${text(laid[0])}`).join(", ")}.`;
  const shown = COLUMNS.filter((column) => !shared.includes(column));
  const reason = shown.findIndex(([head]) => head === "beside the best");
  fillTable(table, shown.map(([head]) => head), rows.map((one) => shown.map(([head, text], i) =>
    !one.refused ? text(one) : i === reason ? one.refused : one[head] === undefined ? "–" : one[head])),
  { rowClass: (i) => rows[i] === BEST ? "best" : "",
    cellClass: (i, column) => shown[column][2] || (shown[column][0] === "memory" && rows[i].fits === false ? "over" : "") });
}

/** Most layouts of a search are nearly equal: the first ones of each number of ranks are shown, the others on demand. */
const FIRST = new Set(PLAN.plans.map((one) => one.ranks)).size > 1 ? 2 : 6;
const shownPlans = (all) => {
  const seen = {}, first = PLAN.plans.filter((one) => (seen[one.ranks] = (seen[one.ranks] || 0) + 1) <= FIRST || one === BEST);
  return all || PLAN.plans.length <= first.length + 2 ? PLAN.plans : first;
};

function drawPlans(all) {
  const rows = shownPlans(all), same = PLAN.plans.filter((one) => one.ranks === BEST.ranks);
  const near = same.filter((one) => one.step_ms <= 1.05 * BEST.step_ms).length;
  layoutTable(byId("plans"), byId("plans-shared"), rows);
  byId("plans-note").textContent = near < 3 ? "" : `${near} of ${same.length} layouts over ${many(BEST.ranks, "rank")} take at most 5 % longer than the fastest. Predictions that differ by a few percent do not tell which is faster: measure with --try.`;
  stackedBars(byId("parts"), rows.map((one) => ({
    label: `${many(one.ranks, "rank")}: ${layoutOf(one)}, ${one.micro_batches} × ${one.micro_batch}`, text: milliseconds(one.step_ms),
    parts: PARTS.map(([name, color]) => ({ name, color, value: one[name + "_ms"] })) })), milliseconds);
}

function drawTables() {
  if (shownPlans(true).length > shownPlans(false).length)
    switcher(byId("plans-count"), [[false, `Fastest ${FIRST}${FIRST === 2 ? " of each number of ranks" : ""}`], [true, `All ${PLAN.plans.length}`]], false, drawPlans);
  drawPlans(false);
  for (const [id, rows] of [["by-stages", PLAN.by_stages || []], ["own", PLAN.own || []]]) {
    byId(id + "-section").hidden = rows.length === 0;
    layoutTable(byId(id), byId(id + "-shared"), rows);
  }
  byId("refused-section").hidden = PLAN.refused.length === 0;
  fillTable(byId("refused"), ["ranks", "layouts", "of", "reason"],
    PLAN.refused.map((one) => [one.ranks, one.layouts, one.tried, one.reason]), { cellClass: (_, column) => column === 3 ? "wrapped" : "" });
}

function drawComparison() {
  const found = PLAN.comparison;
  byId("comparison-section").hidden = !found;
  if (!found) return;
  byId("comparison-note").textContent = `Measured in ${found.run}: medians over ${many(found.steps, "step")}. Parts and operations are those of rank 0.`;
  const text = (row, value) => value === null ? "–" : row.unit === "bytes" ? bytesText(value) : value.toFixed(3) + " ms";
  for (const [kind, id, head] of [["part", "comparison", "part"], ["operation", "comparison-operations", "operation"]])
    fillTable(byId(id), [head, "predicted", "measured", "predicted ÷ measured"], found.rows.filter((row) => row.kind === kind).map((row) =>
      [row.name, text(row, row.predicted), text(row, row.measured), row.ratio === null ? "–" : row.ratio.toFixed(2)]));
  byId("comparison-operations-panel").hidden = !found.rows.some((row) => row.kind === "operation");
}

const scaling = { unit: "samples_per_s" };

function drawScaling() {
  byId("scaling-section").hidden = SCALING.length === 0;
  if (SCALING.length === 0) return;
  const all = SCALING[0].points.map((point) => point.ranks), place = Math.log2;
  const lines = SCALING.map((series, i) => ({ name: series.name, color: `var(--run${i})`, dots: true, xs: series.points.map((one) => place(one.ranks)),
    ys: series.points.map((one) => one[scaling.unit] === undefined ? null : one[scaling.unit]) }));
  const rate = scaling.unit === "samples_per_s", first = SCALING[0].points.find((point) => point.step_ms !== undefined);
  const ideal = first && { name: "proportional", color: "var(--quiet)", dash: "5 4", xs: all.map(place),
    ys: all.map((ranks) => rate ? first.samples_per_s * ranks / first.ranks : first.step_ms * first.ranks / ranks) };
  const text = rate ? (value) => short(value) + "/s" : milliseconds;
  const [low, high] = [place(all[0]), place(all[all.length - 1])];
  lineChart(byId("scaling"), {
    series: ideal ? [ideal, ...lines] : lines, range: [low - .1, high + .1], height: 300, log: true, label: "Scaling",
    xTicks: all.map(place), xText: (value) => Math.round(2 ** value), xHead: (value) => many(all[nearest(all.map(place), value)], "rank"),
    yText: rate ? short : milliseconds, readout: text, onHover: () => {}, onZoom: () => {} });
  byId("scaling-keys").replaceChildren();
  for (const line of lines) {
    const key = node("span", "", undefined, byId("scaling-keys"));
    dot(line.color, key);
    key.append(line.name);
  }
  byId("scaling-note").textContent = SCALING.flatMap((series) => series.points.filter((point) => point.refused)
    .map((point) => `${series.name}, ${many(point.ranks, "rank")}: ${point.refused}.`)).join(" ");
}

function drawRanks() {
  const layers = (rank) => rank.layers.map(([first, last]) => first === last ? first : `${first}–${last}`).join(", ");
  const label = (rank) => `rank ${rank.rank}, layers ${layers(rank)}`;
  stackedBars(byId("rank-times"), PLAN.best.by_rank.map((rank) => ({ label: label(rank),
    parts: ACTIONS.filter(([name]) => rank.times_ms[name] !== undefined).map(([name, color]) => ({ name, color, value: rank.times_ms[name] })) })), milliseconds);
  byId("memory-note").textContent = `Upright mark: a device's ${bytesText(PLAN.device_memory)}.` +
    (PLAN.memory_budget === null ? "" : ` train.memory_budget is ${bytesText(PLAN.memory_budget)}.`);
  stackedBars(byId("memory"), PLAN.best.by_rank.map((rank) => ({ label: label(rank), parts: [
    ...CATEGORIES.map((name) => ({ name, color: `var(--${name})`, value: rank.memory[name] })),
    { name: "program", color: "var(--program)", value: rank.memory.program }] })), bytesText, PLAN.device_memory);
}

/** Operations below a thousandth of the time are drawn as one. */
function drawOperations() {
  const sorted = Object.entries(BEST.operations_ms).sort((a, b) => b[1] - a[1]), sum = sorted.reduce((total, [, value]) => total + value, 0);
  const all = sorted.filter(([, value]) => value >= 1e-3 * sum), rest = sorted.slice(all.length);
  if (rest.length) all.push([many(rest.length, "other operation"), rest.reduce((total, [, value]) => total + value, 0)]);
  stackedBars(byId("operations"), all.map(([name, value]) => ({ label: name, text: `${milliseconds(value)} · ${(100 * value / sum).toFixed(1)} %`,
    parts: [{ name: "time", color: "var(--lane-compute)", value }] })), milliseconds);
  byId("operations").querySelector(".keys").remove();
}

let timeline = null;

function drawPipeline() {
  const step = STEP.windows[0];
  timeline = timelineView(byId("timeline"), STEP, step);
  byId("timeline-note").textContent = step.left_out ? `${step.left_out} shorter spans are left out; the file of --trace has them all.` : "";
  for (const [text, factor] of [["+", .5], ["−", 2], ["Fit", null]])
    node("button", "", text, byId("timeline-zoom")).addEventListener("click", () => timeline.zoom(factor));
}

drawHead();
drawCards();
drawTables();
drawComparison();
switcher(byId("scaling-unit"), [["samples_per_s", "Samples per second"], ["step_ms", "Time of a step"]], scaling.unit,
  (unit) => { scaling.unit = unit; drawScaling(); });
drawScaling();
drawPipeline();
drawRanks();
drawOperations();
let resized = null;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { drawScaling(); timeline.draw(); }, 120);
});
