// Line charts and bars. No knowledge of runs: series have a colour, xs, ys and a style.

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes. */
function shape(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (parent) parent.appendChild(element);
  return element;
}

/** An HTML element with a class and text (never HTML: names come from the user's files). */
function node(name, className, text, parent) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

const byId = (id) => document.getElementById(id);

function dot(color, parent) {
  const mark = node("span", "dot", undefined, parent);
  mark.style.background = color;
  return mark;
}

/** 1234567 -> "1.23M": at most three significant digits. */
function short(value) {
  if (value === null || !isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return String(+(value / unit).toPrecision(3)) + letter;
  }
  if (size !== 0 && size < .01) return value.toExponential(1).replace(".0e", "e").replace("e-", "e−");
  return String(+value.toPrecision(3));
}

/** 1234567 -> "1.23 MB": powers of 1000. */
function bytesText(bytes) {
  if (bytes === null) return "–";
  let unit = 0;
  for (; bytes >= 999.5 && unit < 4; ++unit) bytes /= 1000;
  return (unit ? bytes.toPrecision(3) : bytes.toFixed(0)) + " " + ["B", "kB", "MB", "GB", "TB"][unit];
}

function clock(seconds) {
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  if (whole < 60) return String(+seconds.toPrecision(3)) + " s";
  if (whole < 3600) return Math.floor(whole / 60) + ":" + two(whole % 60);
  return Math.floor(whole / 3600) + ":" + two(Math.floor(whole / 60) % 60) + " h";
}

/** Round numbers that cover [low, high], about `count` of them. */
function ticks(low, high, count, bases = [1, 2, 2.5, 5, 10]) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = (bases.find((base) => base * power >= raw) || 10) * power;
  const marks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) marks.push(+(i * step).toPrecision(12));
  return marks;
}

function logTicks(low, high) {
  const marks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
    for (const base of [1, 2, 5]) {
      const mark = base * 10 ** power;
      if (mark >= low && mark <= high) marks.push(+mark.toPrecision(3));
    }
  }
  return marks.length > 1 ? marks : ticks(low, high, 4);
}

/**
 * Mean over up to `reach` neighbours on each side, applied twice (a triangular window). At the steep start the window
 * is as long on both sides, so that the curve does not bend; at the end it is cut. Gaps stay gaps.
 */
function smoothed(values, reach) {
  const once = (ys) => {
    const sums = [0], counts = [0];
    ys.forEach((y, i) => { sums.push(sums[i] + (y === null ? 0 : y)); counts.push(counts[i] + (y === null ? 0 : 1)); });
    return ys.map((y, i) => {
      const from = i - Math.min(reach, i), to = Math.min(ys.length, i + Math.min(reach, i) + 1);
      return y === null ? null : (sums[to] - sums[from]) / (counts[to] - counts[from]);
    });
  };
  return reach < 1 ? values : once(once(values));
}

/** Index of the x nearest to `at`; xs ascend. */
function nearest(xs, at) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < at) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - at) <= Math.abs(xs[high] - at) ? low : high;
}

/** The box beside the pointer: a head line, then [colour, name, value] lines. */
function showTip(event, head, lines) {
  const tip = byId("tip");
  tip.replaceChildren();
  node("div", "head", head, tip);
  for (const [color, name, value] of lines) {
    const line = node("div", "", undefined, tip), label = node("span", "", undefined, line);
    if (color) dot(color, label);
    label.append(name);
    node("b", "", value, line);
  }
  tip.hidden = false;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  const right = event.clientX + 16 + width < innerWidth;
  tip.style.left = Math.max(4, right ? event.clientX + 16 : event.clientX - width - 16) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 6)) + "px";
}
function hideTip() { byId("tip").hidden = true; }

/**
 * [low, high] over all ys inside the x range, a little padded. `zero`: starts at 0. `later`: the first fifth of each series
 * and values above its first one (of a run that diverges) may leave the frame, if other values remain. `spikes`: values
 * above three times the 95th percentile may.
 */
function yExtent(series, range, { log, zero, later, spikes }) {
  let low = Infinity, high = -Infinity;
  for (const one of series) {
    if (one.faint) continue;  // raw values may leave the frame
    const last = one.xs[one.xs.length - 1], from = later ? Math.max(range[0], one.xs[0] + (last - one.xs[0]) / 5) : range[0];
    const most = later ? one.ys.find((y) => y !== null) : Infinity;
    one.ys.forEach((y, i) => {
      if (y === null || y > most || one.xs[i] < from || one.xs[i] > range[1] || (log && y <= 0)) return;
      low = Math.min(low, y);
      high = Math.max(high, y);
    });
  }
  if (spikes && low <= high) {
    const sorted = series.filter((one) => !one.faint).flatMap((one) => one.ys.filter((y) => y !== null)).sort((a, b) => a - b);
    high = Math.min(high, 3 * sorted[Math.floor(.95 * (sorted.length - 1))]);
  }
  if (low > high) return later ? yExtent(series, range, { log, zero }) : null;
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return zero ? [0, Math.max(high * 1.08, 1e-30)] : [low - room, high + room];
}

/** "M… L…" through the points, broken at gaps. */
function pathOf(xs, ys, x, y) {
  let text = "", pen = "M";
  for (let i = 0; i < xs.length; ++i) {
    if (ys[i] === null) { pen = "M"; continue; }
    text += pen + x(xs[i]).toFixed(1) + " " + y(ys[i]).toFixed(1);
    pen = "L";
  }
  return text;
}

function bandOf(xs, low, high, x, y) {
  const known = xs.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  const side = (ys, order) => order.map((i) => x(xs[i]).toFixed(1) + " " + y(ys[i]).toFixed(1)).join("L");
  return known.length < 2 ? "" : "M" + side(high, known) + "L" + side(low, known.slice().reverse()) + "Z";
}

let charts = 0;

/**
 * Draws into `box`. options: series [{name, color, xs, ys, dash, faint, circles, dots, low, high}], range [x0, x1], marks [{x, color, kind}],
 * ends [{y, color, text}] labels on the right, later (yExtent), xTicks (else round numbers), xText, yText, height, log, zero, onHover(x or null), onZoom(range). Returns showAt(x): moves the cross there.
 */
function lineChart(box, options) {
  box.replaceChildren();
  const extent = yExtent(options.series, options.range, options);
  if (!extent) { node("p", "empty", "Nothing to show.", box); return () => {}; }
  const width = Math.max(240, box.clientWidth), height = options.height;
  const frame = { left: 50, right: width - (options.ends && options.ends.length ? 62 : 18), top: 8, bottom: height - 24 };
  const [x0, x1] = options.range, scale = options.log ? Math.log : (value) => value;
  const x = (value) => frame.left + (value - x0) / (x1 - x0 || 1) * (frame.right - frame.left);
  const y = (value) => {
    const part = (scale(Math.max(value, options.log ? 1e-30 : -Infinity)) - scale(extent[0])) / (scale(extent[1]) - scale(extent[0]));
    return frame.bottom - Math.max(-1, Math.min(2, part)) * (frame.bottom - frame.top);
  };
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": options.label }, box);
  const clip = "clip" + ++charts;
  shape("rect", { x: frame.left - 1, y: frame.top, width: frame.right - frame.left + 6, height: frame.bottom - frame.top },
    shape("clipPath", { id: clip }, shape("defs", {}, svg)));
  drawAxes(svg, frame, { x, y, extent, options });
  const ink = shape("g", { "clip-path": `url(#${clip})`, fill: "none" }, svg);
  for (const mark of options.marks || []) {
    if (mark.x >= x0 && mark.x <= x1) {
      shape("line", { class: "mark " + (mark.kind || ""), x1: x(mark.x), x2: x(mark.x), y1: frame.top, y2: frame.bottom, stroke: mark.color }, ink);
    }
  }
  for (const one of options.series) drawSeries(ink, one, x, y);
  drawEnds(svg, frame, options.ends || [], y);
  return addPointer(svg, box, { frame, x, y, options });
}

function drawAxes(svg, frame, { x, y, extent, options }) {
  const rows = options.log ? logTicks(...extent) : ticks(...extent, (frame.bottom - frame.top) / 42);
  for (const mark of rows) {
    shape("line", { class: "gridline", x1: frame.left, x2: frame.right, y1: y(mark), y2: y(mark) }, svg);
    shape("text", { x: frame.left - 7, y: y(mark) + 4, "text-anchor": "end" }, svg).textContent = options.yText(mark);
  }
  shape("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }, svg);
  for (const mark of options.xTicks || ticks(...options.range, (frame.right - frame.left) / 78, options.xBases)) {
    shape("text", { x: x(mark), y: frame.bottom + 17, "text-anchor": "middle" }, svg).textContent = options.xText(mark);
  }
}

/** Labels at the heights of their values, moved apart where they would overlap. */
function drawEnds(svg, frame, ends, y) {
  const lineHeight = 13, sorted = ends.slice().sort((a, b) => b.y - a.y);
  let floor = -Infinity;
  const places = sorted.map((one) => floor = Math.max(Math.min(Math.max(y(one.y), frame.top + 4), frame.bottom), floor + lineHeight));
  for (let i = places.length - 1, roof = frame.bottom; i >= 0; --i) roof = (places[i] = Math.min(places[i], roof)) - lineHeight;
  sorted.forEach((one, i) => {
    const label = shape("text", { class: "end", x: frame.right + 8, y: places[i] + 4 }, svg);
    label.style.fill = one.color;
    label.textContent = one.text;
  });
}

function drawSeries(ink, one, x, y) {
  if (one.low) shape("path", { d: bandOf(one.xs, one.low, one.high, x, y), fill: one.color, opacity: .13 }, ink);
  if (one.circles || one.dots) {
    one.xs.forEach((at, i) => one.ys[i] !== null && shape("circle",
      { cx: x(at).toFixed(1), cy: y(one.ys[i]).toFixed(1), r: one.xs.length > 60 ? 2 : 3.6, stroke: one.color, "stroke-width": 1.8, fill: "var(--panel)" }, ink));
  }
  if (one.circles) return;
  shape("path", { d: pathOf(one.xs, one.ys, x, y), stroke: one.color, "stroke-width": one.faint ? 1 : 1.9, "stroke-linejoin": "round",
    opacity: one.faint ? .25 : 1, "stroke-dasharray": one.dash || "none" }, ink);
}

/** Cross, read-out, and drag to zoom. */
function addPointer(svg, box, { frame, x, y, options }) {
  const [x0, x1] = options.range;
  const cross = shape("line", { class: "cross", y1: frame.top, y2: frame.bottom, visibility: "hidden" }, svg);
  const heads = shape("g", {}, svg);
  const brush = shape("rect", { class: "brush", y: frame.top, height: frame.bottom - frame.top, width: 0 }, svg);
  const at = (event) => {
    const place = svg.getBoundingClientRect();
    const part = ((event.clientX - place.left) * (svg.viewBox.baseVal.width / place.width) - frame.left) / (frame.right - frame.left);
    return x0 + Math.max(0, Math.min(1, part)) * (x1 - x0);
  };
  const found = (value) => options.series.filter((one) => !one.faint && one.xs.length).map((one) => [one, nearest(one.xs, value)])
    .filter(([one, i]) => one.ys[i] !== null && one.xs[i] >= x0 && one.xs[i] <= x1);
  const showAt = (value) => {
    heads.replaceChildren();
    cross.setAttribute("visibility", value === null ? "hidden" : "visible");
    if (value === null) return;
    cross.setAttribute("x1", x(value));
    cross.setAttribute("x2", x(value));
    for (const [one, i] of found(value)) shape("circle", { cx: x(one.xs[i]), cy: y(one.ys[i]), r: 3.2, fill: one.color }, heads);
  };
  let start = null;
  svg.addEventListener("pointerdown", (event) => { start = at(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointermove", (event) => {
    const value = at(event);
    options.onHover(value);
    if (start !== null) {
      brush.setAttribute("x", Math.min(x(start), x(value)));
      brush.setAttribute("width", Math.abs(x(start) - x(value)));
    }
    showTip(event, options.xHead(value), found(value).map(([one, i]) =>
      [one.color, one.circles ? `${one.name}, ${options.xHead(one.xs[i])}` : one.name, options.readout(one.ys[i])]));
  });
  const leave = () => { options.onHover(null); hideTip(); };
  svg.addEventListener("pointerup", (event) => {
    const end = at(event), from = start;
    start = null;
    brush.setAttribute("width", 0);
    if (from !== null && Math.abs(x(from) - x(end)) > 8) { leave(); options.onZoom([Math.min(from, end), Math.max(from, end)]); }
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("dblclick", () => { leave(); options.onZoom(null); });
  return showAt;
}

/**
 * rows: [{label, color, parts: [{name, value, color}], text}]; all on one scale, with a key below. `limit`, if any, is marked
 * in each bar.
 */
function stackedBars(box, rows, text, limit) {
  box.replaceChildren();
  const bars = node("div", "bars", undefined, box), keys = new Map();
  const total = (row) => row.parts.reduce((sum, part) => sum + part.value, 0);
  const longest = Math.max(...rows.map(total), limit || 1e-30);
  for (const row of rows) {
    const label = node("span", "label", undefined, bars);
    if (row.color) dot(row.color, label);
    label.append(row.label);
    const bar = node("div", "bar", undefined, bars);
    for (const part of row.parts) {
      if (part.value <= 0) continue;
      keys.set(part.name, part.color);
      const piece = node("i", "", undefined, bar);
      piece.style.width = 100 * part.value / longest + "%";
      piece.style.background = part.color;
      piece.addEventListener("pointermove", (event) =>
        showTip(event, row.label, [[part.color, part.name, text(part.value)], ["", "of all", (100 * part.value / total(row)).toFixed(1) + " %"]]));
      piece.addEventListener("pointerleave", hideTip);
    }
    if (limit) node("i", "limit", undefined, bar).style.left = `calc(${100 * limit / longest}% - 2px)`;
    node("b", "", row.text || text(total(row)), bars);
  }
  const key = node("div", "keys", undefined, box);
  for (const [name, color] of keys) {
    const entry = node("span", "", undefined, key);
    dot(color, entry);
    entry.append(name);
  }
}

/** A row of buttons of which one is pressed. choices: [[value, text]]. */
function switcher(box, choices, chosen, onChoose) {
  box.replaceChildren();
  for (const [value, text] of choices) {
    const button = node("button", "", text, box);
    button.type = "button";
    button.setAttribute("aria-pressed", value === chosen);
    button.addEventListener("click", () => {
      for (const other of box.children) other.setAttribute("aria-pressed", other === button);
      onChoose(value);
    });
  }
}
