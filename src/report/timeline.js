// The timeline of one window of a trace: a band a rank, a row a track (more where spans nest).

const LANE_HEIGHT = 19, RANK_GAP = 16;

/** Where each (rank, lane) row starts: {rows: [{rank, lane, y, depth}], height}. */
function laneRows(trace, spans) {
  const depth = new Map();
  for (const [rank, lane, level] of spans) {
    const key = rank + "/" + lane;
    depth.set(key, Math.max(depth.get(key) || 0, level + 1));
  }
  const rows = [];
  let y = 4;
  for (const rank of trace.ranks) {
    trace.lanes.forEach((_, lane) => {
      const levels = depth.get(rank + "/" + lane);
      if (!levels) return;
      rows.push({ rank, lane, y, depth: levels });
      y += levels * LANE_HEIGHT + 3;
    });
    y += RANK_GAP;
  }
  return { rows, height: y - RANK_GAP + 26 };
}

function laneColor(lane, name) {
  if (lane === "compute") {
    if (/backward of the weights/.test(name)) return "var(--lane-weight)";
    return /backward/.test(name) ? "var(--lane-backward)" : "var(--lane-compute)";
  }
  if (lane === "all-reduce") return "var(--allreduce)";
  if (lane === "pipeline") return "var(--p2p)";
  return `var(--lane-${lane.replace("I/O", "io")}, var(--program))`;
}

function microseconds(value) {
  if (value >= 1e6) return +(value / 1e6).toPrecision(4) + " s";
  return value >= 1e3 ? +(value / 1e3).toPrecision(4) + " ms" : +value.toPrecision(3) + " µs";
}

/** Draws `view` = [begin, end] of the window; spans narrower than a third of a pixel are merged. */
function drawTimeline(box, trace, window_, view) {
  box.replaceChildren();
  const { rows, height } = laneRows(trace, window_.spans);
  const width = Math.max(320, box.clientWidth), left = 118, right = width - 8;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Timeline of " + window_.label }, box);
  const x = (at) => left + (at - view[0]) / (view[1] - view[0]) * (right - left);
  for (const mark of ticks(view[0], view[1], (right - left) / 110)) {
    shape("line", { class: "gridline", x1: x(mark), x2: x(mark), y1: 0, y2: height - 22 }, svg);
    shape("text", { x: x(mark), y: height - 6, "text-anchor": "middle" }, svg).textContent = microseconds(mark);
  }
  const place = new Map();
  let rank = null;
  for (const row of rows) {
    place.set(row.rank + "/" + row.lane, row);
    const text = trace.lanes[row.lane];
    shape("text", { x: left - 8, y: row.y + 13, "text-anchor": "end" }, svg).textContent = text;
    if (row.rank !== rank) shape("text", { x: 0, y: row.y + 13, "font-weight": 600 }, svg).textContent = "rank " + row.rank;
    rank = row.rank;
  }
  const last = new Map();  // right edge of what is drawn, by row and depth
  for (const [spanRank, lane, depth, begin, duration, name] of window_.spans) {
    const from = Math.max(left, x(begin)), to = Math.min(right, x(begin + duration));
    if (to < left || from > right) continue;
    const key = spanRank + "/" + lane + "/" + depth;
    if (to < (last.get(key) || 0) + .3) continue;
    last.set(key, to);
    drawSpan(svg, { from, to, y: place.get(spanRank + "/" + lane).y + depth * LANE_HEIGHT },
      { lane: trace.lanes[lane], name: trace.names[name], rank: spanRank, begin, duration, depth });
  }
  return { svg, left, right };
}

function drawSpan(svg, { from, to, y }, span) {
  const width = Math.max(.7, to - from);
  const rect = shape("rect", { x: from, y, width, height: LANE_HEIGHT - 2, rx: Math.min(2.5, width / 3), opacity: span.depth ? .78 : 1 }, svg);
  rect.style.fill = laneColor(span.lane, span.name);
  rect.addEventListener("pointermove", (event) => showTip(event, `rank ${span.rank} · ${span.lane}`,
    [["", span.name, microseconds(span.duration)], ["", "starts at", microseconds(span.begin)]]));
  rect.addEventListener("pointerleave", hideTip);
  const fits = Math.floor((width - 8) / 6.1);
  const number = /^\d+(?= )/.exec(span.name);  // of a micro-batch: shown alone where the rest does not fit
  if (fits >= 3 || (number && fits >= number[0].length)) {
    const text = span.name.length <= fits ? span.name : number ? number[0] : span.name.slice(0, fits - 1) + "…";
    shape("text", { class: "label-in", x: from + 4, y: y + 12.5 }, svg).textContent = text;
  }
}

/** Drawing, panning and zooming of one window. Returns zoom(factor); factor null: the whole window. */
function timelineView(box, trace, window_) {
  const whole = [0, Math.max(window_.length, 1)];
  let view = whole.slice(), drawn = null;
  const clamp = (from, to) => {
    const length = Math.min(whole[1], Math.max((to - from), whole[1] / 2000));
    const begin = Math.max(0, Math.min(from, whole[1] - length));
    return [begin, begin + length];
  };
  const zoom = (factor, around) => {
    const middle = around === undefined ? (view[0] + view[1]) / 2 : around;
    view = factor === null ? whole.slice() : clamp(middle - (middle - view[0]) * factor, middle + (view[1] - middle) * factor);
    draw();
  };
  const timeAt = (event) => {
    const place = drawn.svg.getBoundingClientRect(), part = (event.clientX - place.left - drawn.left) / (drawn.right - drawn.left);
    return view[0] + Math.max(0, Math.min(1, part)) * (view[1] - view[0]);
  };
  function draw() {
    drawn = drawTimeline(box, trace, window_, view);
    drawn.svg.addEventListener("pointerdown", drag);
    drawn.svg.addEventListener("dblclick", () => zoom(null));
    drawn.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      hideTip();
      zoom(event.deltaY > 0 ? 1.25 : .8, timeAt(event));
    }, { passive: false });
  }
  function drag(down) {
    const start = view.slice(), scale = (start[1] - start[0]) / (drawn.right - drawn.left);
    const move = (event) => {
      const by = (down.clientX - event.clientX) * scale;
      view = clamp(start[0] + by, start[1] + by);
      hideTip();
      draw();
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", () => removeEventListener("pointermove", move), { once: true });
  }
  draw();
  return { zoom, draw };
}
