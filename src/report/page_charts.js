
// Charts: configurations for Chart.js, and the timeline's pointing.

/** Functions that draw the charts again, in the colours of the current scheme. */
const drawn = [];

function drawAll() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  Object.assign(Chart.defaults, { animation: false, responsive: true, maintainAspectRatio: false, color: colour("--muted"),
    borderColor: colour("--line") });
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 12;
  Chart.defaults.plugins.legend.labels.boxWidth = 10;
  Chart.defaults.plugins.legend.labels.boxHeight = 10;
  Chart.defaults.plugins.legend.position = "bottom";
  drawn.forEach((draw) => draw());
}

const titled = (text) => ({ title: { display: text !== "", text } });
const shortNumber = (value) => {
  const [scale, unit] = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([scale]) => Math.abs(value) >= scale) || [1, ""];
  return `${Number((value / scale).toPrecision(4))}${unit}`;
};
/** The outlined part of a bar, which has the colour of its role. */
const isPredictedRole = (series) => series.stack === "predicted" && series.name !== "predicted";
const linesOf = (item) => item.raw.text || [];

/** Names beside the points, where they do not cover each other. */
const pointNames = {
  id: "pointNames",
  afterDatasetsDraw(chart) {
    const points = chart.data.datasets.flatMap((set, at) => chart.getDatasetMeta(at).data.map((dot, index) => ({ dot, raw: set.data[index] })));
    if (points.length > 24) return;
    const { ctx, chartArea } = chart;
    ctx.save();
    ctx.font = `12px ${Chart.defaults.font.family}`;
    const style = getComputedStyle(document.documentElement);
    [ctx.fillStyle, ctx.strokeStyle, ctx.lineWidth, ctx.lineJoin] = [style.getPropertyValue("--ink"), style.getPropertyValue("--card"), 4, "round"];
    ctx.textBaseline = "middle";
    const taken = points.map(({ dot }) => [dot.x - 5, dot.y - 5, dot.x + 5, dot.y + 5]);
    for (const { dot, raw } of points) {
      const width = ctx.measureText(raw.text[0]).width;
      const places = [[8, -11], [-8 - width, 0], [-width / 2, -14], [8, 11], [-width / 2, 14], [8, 0], [-8 - width, -12], [-8 - width, 12]];
      const free = places.map(([x, y]) => [dot.x + x, dot.y + y - 7, dot.x + x + width, dot.y + y + 7]).find((box) =>
        box[0] >= chartArea.left && box[2] <= chartArea.right && box[1] >= chartArea.top && box[3] <= chartArea.bottom
        && taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]));
      if (!free) continue;
      taken.push(free);
      ctx.strokeText(raw.text[0], free[0], (free[1] + free[3]) / 2);
      ctx.fillText(raw.text[0], free[0], (free[1] + free[3]) / 2);
    }
    ctx.restore();
  },
};

const KINDS = {
  points(chart) {
    return {
      type: "scatter",
      data: { datasets: chart.series.filter((series) => series.points.length).map((series) => ({
        label: series.name, data: series.points, backgroundColor: data.palette[series.color], borderColor: data.palette[series.color],
        showLine: series.special, stepped: "before", borderWidth: 1.5, pointRadius: series.special ? 6 : 5, pointHoverRadius: 8,
      })) },
      options: {
        scales: {
          x: { ...titled(chart.x), beginAtZero: true, grace: "6%" },
          y: { ...titled(chart.y), beginAtZero: true, grace: "6%", ticks: { callback: shortNumber } },
        },
        plugins: { tooltip: { callbacks: { title: (items) => items.map((item) => linesOf(item)[0]), label: (item) => linesOf(item).slice(1) } } },
      },
      plugins: [pointNames],
    };
  },
  bars(chart) {
    return {
      type: "bar",
      data: { labels: chart.categories, datasets: chart.series.map((series) => ({
        label: series.name, stack: series.stack, borderColor: data.palette[series.color], borderWidth: series.special ? 1.5 : 0,
        // Predicted figures are outlined.
        borderSkipped: false, backgroundColor: data.palette[series.color] + (series.special ? "30" : ""),
        data: series.points.map((point) => ({ x: point.x, y: chart.categories[point.y], text: point.text })),
      })) },
      options: {
        indexAxis: "y", grouped: true, maxBarThickness: 16,
        scales: { x: { ...titled(chart.x), stacked: true }, y: { stacked: true, grid: { display: false }, ticks: { autoSkip: false } } },
        plugins: { legend: { labels: { filter: (item) => !isPredictedRole(chart.series[item.datasetIndex]) } },
          tooltip: { callbacks: { title: (items) => items.map((item) => item.label).slice(0, 1),
          label: (item) => `${item.dataset.label}: ${(linesOf(item)[0] || "").split(": ").pop()}` } } },
      },
    };
  },
  lines(chart) {
    return {
      type: "line",
      data: { datasets: chart.series.map((series, at) => ({
        label: series.name, data: series.points, borderColor: data.palette[series.color], backgroundColor: data.palette[series.color],
        showLine: !series.special, pointStyle: series.special ? "rectRot" : "circle", pointRadius: series.special ? 6 : 0,
        // The first curve is drawn last: those that nearly coincide stay visible below each other.
        borderWidth: Math.min(8, 2 + 1.75 * chart.series.slice(0, at).filter((other) => !other.special).length),
      })) },
      options: {
        interaction: { mode: "nearest", axis: "x", intersect: false },
        scales: { x: { type: "linear", ...titled(chart.x) }, y: titled(chart.y) },
        plugins: {
          legend: { labels: { filter: (item) => !chart.series[item.datasetIndex].special } },
          tooltip: { callbacks: { title: (items) => items.slice(0, 1).map((item) => `step ${item.raw.x}`) } },
        },
      },
    };
  },
};

/** What a chart shows, for screen readers. */
function described(chart) {
  const points = chart.series.flatMap((series) => series.points.map((point) => (point.text || []).join(", "))).filter(Boolean);
  const list = points.length && points.length <= 40 ? ` ${points.join("; ")}.` : " Its figures are in the tables of this page.";
  return `${chart.title}.${list}`;
}

function selector(label, names, onChange) {
  if (names.length < 2) return "";
  const options = names.map((name, at) => element("option", { value: String(at) }, name));
  const select = element("select", {}, ...options);
  select.addEventListener("change", () => onChange(Number(select.value)));
  return element("label", {}, `${label} `, select);
}

/** One chart of several of a kind; `null` without any. */
function chartFigure(charts, kind) {
  if (!charts.length) return null;
  let shown = 0;
  let instance = null;
  const canvas = element("canvas", { role: "img" });
  const plot = element("div", { class: "plot" }, canvas);
  const title = element("h3");
  const note = element("p", { class: "note figure-note" });
  function draw() {
    const chart = charts[shown];
    title.textContent = chart.title;
    note.replaceChildren(...prose(chart.note));
    canvas.setAttribute("aria-label", described(chart));
    if (instance) instance.destroy();
    const stacks = new Set(chart.series.map((series) => series.stack)).size;
    plot.style.height = chart.marks === "bars" ? `${Math.max(300, 110 + chart.categories.length * (14 + 14 * stacks))}px` : "";
    instance = new Chart(canvas, KINDS[chart.marks](chart));
  }
  drawn.push(draw);
  const choose = selector("point", charts.map((chart) => chart.point), (at) => { shown = at; draw(); });
  return element("figure", { "data-kind": kind }, element("figcaption", {}, title, choose), plot, note);
}

function bytesText(bytes) {
  const [scale, unit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]].find(([scale]) => bytes >= scale) || [1, "B"];
  return `${scale === 1 ? bytes : (bytes / scale).toPrecision(3)} ${unit}`;
}

/** The groups of a timeline: roles, or layers with the bytes that no named value has. */
function groupsOf(timeline, by) {
  if (by === "role") return timeline.roles.map((role) => ({ name: role.name, colour: data.palette[role.color], bytes: role.bytes }));
  const groups = timeline.layers.map((name, at) => ({ name, colour: data.palette[at % data.palette.length], bytes: timeline.operations.map(() => 0) }));
  const rest = { name: "no named value", colour: "#888888", bytes: timeline.operations.map((_, at) => timeline.roles.reduce((sum, role) => sum + role.bytes[at], 0)) };
  for (const value of timeline.values) {
    for (let at = value.first; at <= value.last; at++) {
      groups[value.layer].bytes[at] += value.bytes;
      rest.bytes[at] -= value.bytes;
    }
  }
  return rest.bytes.some((bytes) => bytes > 0) ? [...groups, rest] : groups;
}

/** The live values of an operation in the order of the stack, with the bytes below each. */
function stackAt(timeline, groups, by, at) {
  const live = timeline.values.filter((value) => value.first <= at && at <= value.last);
  let below = 0;
  return groups.flatMap((group, index) => {
    let low = below;
    below += group.bytes[at];
    return live.filter((value) => value[by] === index).map((value) => ({ value, low: (low += value.bytes) - value.bytes }));
  });
}

/** The bytes below a value at each operation of its lifetime: those of the groups below, and of earlier values of its group. */
function bytesBelow(timeline, groups, by, value) {
  const below = [];
  for (let at = value.first; at <= value.last; at++) {
    below.push(groups.slice(0, value[by]).reduce((sum, group) => sum + group.bytes[at], 0));
  }
  for (const other of timeline.values) {
    if (other === value) break;
    if (other[by] !== value[by]) continue;
    const last = Math.min(value.last, other.last);
    for (let at = Math.max(value.first, other.first); at <= last; at++) below[at - value.first] += other.bytes;
  }
  return below;
}

function timelineFigure(timelines) {
  let [shown, by, at, pointed, instance, groups, unit] = [0, "role", 0, null, null, [], 1];
  // The outlined value, and the bytes below it.
  let [outlined, below] = [null, []];
  const canvas = element("canvas", { role: "img", tabindex: "0" });
  const title = element("h3");
  const note = element("p", { class: "note figure-note" });
  const panel = element("div", { class: "pointed", role: "status" });
  const current = () => timelines[shown];
  const total = (index) => current().roles.reduce((sum, role) => sum + role.bytes[index], 0);

  function describe() {
    const timeline = current();
    const [text, times] = timeline.operations[at];
    const stack = stackAt(timeline, groups, by, at);
    const largest = stack.map((one) => one.value).sort((one, other) => other.bytes - one.bytes).slice(0, 9);
    const repeated = times > 1 ? `, ${times} times per step` : "";
    const swatch = (value) => {
      const made = element("span", { class: "swatch" });
      made.style.backgroundColor = groups[value[by]].colour;
      return made;
    };
    const item = (value) => element("li", {}, swatch(value), element("span", { class: "size" }, bytesText(value.bytes)),
      element("span", {}, value.name));
    const named = pointed
      ? `${pointed.name}: ${bytesText(pointed.bytes)} of ${timeline.roles[pointed.role].name} in ${timeline.layers[pointed.layer]}, ` +
        `live from operation ${pointed.first + 1} to ${pointed.last + 1}`
      : `The largest of ${plural(stack.length, "live value")}:`;
    panel.replaceChildren(
      element("p", { class: "what" }, `Operation ${at + 1} of ${timeline.operations.length}: ${timeline.texts[text]}${repeated}`),
      element("p", {}, `${bytesText(total(at))} live. ${named}`),
      element("ul", {}, ...largest.map(item)));
  }

  /** Outlines the lifetime of the pointed value, marks the operation, and names the phases. */
  const overlay = {
    id: "overlay",
    afterDatasetsDraw({ ctx, chartArea, scales: { x, y } }) {
      const timeline = current();
      ctx.save();
      const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink");
      [ctx.strokeStyle, ctx.fillStyle, ctx.lineWidth] = [ink, ink, 1];
      const phases = timeline.operations.map(([text]) => timeline.texts[text].split(" of ")[0]);
      ctx.font = `11px ${Chart.defaults.font.family}`;
      for (let from = 0, to; from < phases.length; from = to) {
        for (to = from; to < phases.length && phases[to] === phases[from]; to++);
        const [left, right] = [x.getPixelForValue(from), x.getPixelForValue(to)];
        ctx.globalAlpha = 0.35;
        ctx.beginPath();
        ctx.moveTo(left, chartArea.top - 14);
        ctx.lineTo(left, chartArea.bottom);
        ctx.stroke();
        ctx.globalAlpha = 0.8;
        if (ctx.measureText(phases[from]).width < right - left - 6) ctx.fillText(phases[from], left + 4, chartArea.top - 4);
      }
      ctx.globalAlpha = 1;
      if (pointed) {
        if (outlined !== pointed) [outlined, below] = [pointed, bytesBelow(timeline, groups, by, pointed)];
        const upper = [], lower = [];
        for (let index = pointed.first; index <= pointed.last; index++) {
          const low = below[index - pointed.first];
          const [bottom, top] = [low, low + pointed.bytes].map((bytes) => y.getPixelForValue(bytes / unit));
          for (const edge of [index, index + 1]) {
            upper.push([x.getPixelForValue(edge), top]);
            lower.push([x.getPixelForValue(edge), bottom]);
          }
        }
        ctx.beginPath();
        [...upper, ...lower.reverse()].forEach(([px, py]) => ctx.lineTo(px, py));
        ctx.closePath();
        ctx.lineWidth = 1.5;
        ctx.stroke();
      }
      ctx.globalAlpha = 0.6;
      ctx.strokeRect(x.getPixelForValue(at), chartArea.top, Math.max(1, x.getPixelForValue(at + 1) - x.getPixelForValue(at)), chartArea.height);
      ctx.restore();
    },
  };

  function draw() {
    const timeline = current();
    groups = groupsOf(timeline, by);
    outlined = null;
    const peak = Math.max(...timeline.operations.map((_, index) => total(index)));
    const name = bytesText(peak).split(" ")[1];
    unit = { GiB: 2 ** 30, MiB: 2 ** 20, KiB: 2 ** 10, B: 1 }[name];
    title.textContent = `Live memory by ${by}: ${timeline.title}`;
    note.replaceChildren(...prose(timeline.note));
    const steps = timeline.operations.length;
    canvas.setAttribute("aria-label", `${title.textContent}. ${steps} operations, at most ${bytesText(peak)}. ` +
      "The left and right arrow keys select an operation, Page Up and Page Down ten at once.");
    // Live bytes stay until the next operation. The areas are between the sums of the groups.
    const sums = timeline.operations.map(() => 0);
    const points = (bytes) => bytes.flatMap((value, index) => {
      const y = (sums[index] += value) / unit;
      return [{ x: index, y }, { x: index + 1, y }];
    });
    if (instance) instance.destroy();
    instance = new Chart(canvas, {
      type: "line",
      data: { datasets: groups.map((group, index) => ({
        label: group.name, data: points(group.bytes), backgroundColor: group.colour, borderWidth: 0, pointRadius: 0, fill: index === 0 ? "origin" : "-1",
      })) },
      options: {
        events: ["click"], parsing: false, normalized: true, layout: { padding: { top: 16 } },
        scales: {
          x: { type: "linear", min: 0, max: steps, ...titled("operation of the step"), grid: { display: false }, ticks: { includeBounds: false } },
          y: { beginAtZero: true, ...titled(name) },
        },
        plugins: { tooltip: { enabled: false }, legend: { onClick: null, reverse: false } },
      },
      plugins: [overlay],
    });
    describe();
  }

  function choosePeak() {
    const sums = current().operations.map((_, index) => total(index));
    at = sums.indexOf(Math.max(...sums));
    pointed = null;
  }

  function point(event) {
    const { x, y } = instance.scales;
    const box = canvas.getBoundingClientRect();
    const steps = current().operations.length;
    const before = [at, pointed];
    at = Math.min(steps - 1, Math.max(0, Math.floor(x.getValueForPixel(event.clientX - box.left))));
    const bytes = y.getValueForPixel(event.clientY - box.top) * unit;
    const found = stackAt(current(), groups, by, at).find((one) => one.low <= bytes && bytes < one.low + one.value.bytes);
    pointed = found ? found.value : null;
    if (at === before[0] && pointed === before[1]) return;
    instance.draw();
    describe();
  }

  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!move) return;
    event.preventDefault();
    at = Math.min(current().operations.length - 1, Math.max(0, at + move));
    pointed = null;
    instance.draw();
    describe();
  });

  const choose = selector("run", timelines.map((timeline) => timeline.title), (index) => { shown = index; choosePeak(); draw(); });
  const name = newId("by");
  const radio = (value) => {
    const input = element("input", { type: "radio", name, value, onchange: () => { by = value; pointed = null; draw(); } });
    input.checked = value === by;
    return element("label", {}, input, ` ${value}`);
  };
  const kinds = element("fieldset", {}, element("legend", {}, "by"), radio("role"), radio("layer"));
  choosePeak();
  drawn.push(draw);
  return element("figure", { "data-kind": "timeline" }, element("figcaption", {}, title, kinds, choose),
    element("div", { class: "plot tall" }, canvas), note, panel);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
start();
