// page.js - the page of runs: reads the JSON of element `data` (train/report/page.cpp) and fills in
// charts, tables and samples. All text goes through textContent. The choices are kept in the
// address behind #, so that a reload restores them.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const COLORS = ["#3b82d6", "#e07b1a", "#2f9e5b", "#d6455d", "#9467d8", "#a9713f", "#d25fae", "#7f8a99", "#a5a51d",
  "#14a7b8"];
const $ = id => document.getElementById(id);

// Charts in their order: metrics of one chart, title. Metrics that no row names get one each.
const CHARTS = [
  {keys: ["loss", "val_loss", "val_loss_average"], title: "loss"},
  {keys: ["lr"], title: "learning rate"},
  {keys: ["grad_norm"], title: "gradient norm"},
  {keys: ["tokens_per_second"], title: "tokens per second"},
  {keys: ["mfu"], title: "MFU (part of the device's peak)"},
  {keys: ["memory"], title: "memory (bytes)"},
  {keys: ["busiest_expert"], title: "busiest expert (rows over the mean)"},
  {keys: ["ms"], title: "milliseconds per step"},
  {keys: ["critical_batch"], title: "critical batch (tokens)"}
];
const HIDDEN = new Set(["skipped"]);    // shown in a table

const state = {axis: "step", smooth: 0, logX: false, logs: new Set(), hidden: new Set(), range: null, live: true,
  kept: new Map()};    // values of KEPT that a reader has chosen
const KEPT = ["norms-run", "norms-kind", "norms-filter", "norms-log", "samples-run"];

// ---- the address --------------------------------------------------------------------------------

function readState() {
  const q = new URLSearchParams(location.hash.slice(1)), number = (k, other) => Number(q.get(k) ?? other) || 0;
  if (["step", "tokens", "time"].includes(q.get("x"))) state.axis = q.get("x");
  state.smooth = Math.min(0.99, Math.max(0, number("smooth", 0)));
  state.logX = q.get("logx") === "1";
  state.logs = new Set(q.getAll("log"));
  state.hidden = new Set(q.getAll("hide").map(Number));
  state.live = q.get("live") !== "0";
  for (const id of KEPT) if (q.has(id)) state.kept.set(id, q.get(id));
  if (q.has("from") && number("to", 0) > number("from", 0)) state.range = [number("from", 0), number("to", 0)];
}
function writeState() {
  const q = new URLSearchParams();
  if (state.axis !== "step") q.set("x", state.axis);
  if (state.smooth) q.set("smooth", state.smooth);
  if (state.logX) q.set("logx", "1");
  if (!state.live) q.set("live", "0");
  for (const key of state.logs) q.append("log", key);
  for (const run of state.hidden) q.append("hide", run);
  for (const [id, value] of state.kept) q.set(id, value);
  if (state.range) {
    q.set("from", state.range[0]);
    q.set("to", state.range[1]);
  }
  try { history.replaceState(null, "", "#" + q); } catch { /* not from every file:// */ }
}

// ---- helpers ------------------------------------------------------------------------------------

function element(name, text, parent, className) {
  const e = document.createElement(name);
  if (text !== undefined && text !== null) e.textContent = text;
  if (className) e.className = className;
  if (parent) parent.append(e);
  return e;
}
// rows: lists of texts, numbers or {dot, text}; numbers are aligned to the right.
function fillTable(table, head, rows) {
  table.replaceChildren();
  const numeric = head.map((_, i) => rows.length > 0 && rows.every(r => r[i] === null || typeof r[i] === "number"));
  const top = element("tr", null, element("thead", null, table));
  head.forEach((h, i) => { element("th", h, top, numeric[i] ? "number" : "").scope = "col"; });
  const body = element("tbody", null, table);
  for (const row of rows) {
    const tr = element("tr", null, body);
    row.forEach((cell, i) => {
      if (cell && typeof cell === "object") {
        const td = element("td", null, tr);
        element("span", null, td, "dot").style.cssText = `display:inline-block;margin-right:6px;background:${cell.dot}`;
        td.append(cell.text);
      } else {
        element("td", typeof cell === "number" ? numberText(cell) : cell ?? "-", tr, numeric[i] ? "number" : "");
      }
    });
  }
}
const colorOf = run => COLORS[run % COLORS.length];
// Values of the chosen x axis; none if rows lack them, as values of another axis would mislead.
function xsOf(run, axis) { return run.axes[axis][state.axis] || []; }
// Restores a control's value from the address, and keeps it there when it changes.
function keep(id) {
  const control = $(id), chosen = state.kept.get(id);
  if (chosen !== undefined && (control.tagName !== "SELECT" || [...control.options].some(o => o.value === chosen)))
    control.value = chosen;
  control.addEventListener("input", () => { state.kept.set(id, control.value); writeState(); });
}

const view = {
  get logX() { return state.logX; },
  get range() { return state.range; },
  xName: () => state.axis,
  xText: (x, exact) => state.axis === "time" ? timeText(x)
    : exact && state.axis === "step" ? String(Math.round(x)) : numberText(x),
  zoom(range) {
    state.range = range && range[1] > range[0] ? range : null;
    drawAll();
  },
  changed() {
    state.logs = new Set(charts.filter(c => c.logY).map(c => c.figure.dataset.metric));
    writeState();
  }
};
const charts = [];
function drawAll() {
  writeState();
  for (const chart of charts) chart.draw();
}

// ---- sections -----------------------------------------------------------------------------------

function linesOf(keys) {
  const lines = [];
  data.runs.forEach((run, r) => {
    if (state.hidden.has(r)) return;
    for (const key of keys) {
      if (!Object.hasOwn(run.metrics, key)) continue;    // "toString" may be a metric of another run
      const m = run.metrics[key];
      // Validations and other metrics of few steps get dots.
      const marks = key.startsWith("val_") || 4 * m.mean.length < (run.metrics.loss?.mean.length || 0);
      const color = marks && keys[0] === "loss" && data.runs.length === 1 ? COLORS[1] : colorOf(r);
      lines.push({
        name: (data.runs.length > 1 ? run.name : "") + (keys.length > 1 ? " " + key : ""), color,
        xs: xsOf(run, m.axis), ys: m.mean, low: m.min, high: m.max, marks, weight: marks ? 0 : state.smooth,
        dash: key === "val_loss_average" ? [4, 3] : undefined
      });
    }
  });
  return lines;
}
function addCharts() {
  const known = new Set(CHARTS.flatMap(c => c.keys)), there = new Set(data.runs.flatMap(r => Object.keys(r.metrics)));
  const more = [...there].filter(k => !known.has(k) && !HIDDEN.has(k)).map(k => ({keys: [k], title: k}));
  for (const {keys, title} of [...CHARTS, ...more]) {
    if (!keys.some(k => there.has(k))) continue;
    const dots = keys[0] === "loss" && there.has("loss") && there.has("val_loss") ? " (dots: validation)" : "";
    const chart = new Chart($("charts"), title + dots, view, () => linesOf(keys), keys[0]);
    if (state.logs.has(keys[0])) chart.logBox.checked = chart.logY = true;
    charts.push(chart);
  }
  $("charts-section").hidden = charts.length === 0;
}
function addLegend() {
  data.runs.forEach((run, r) => {
    const button = element("button", null, $("legend"));
    button.type = "button";
    element("span", null, button, "dot").style.background = colorOf(r);
    button.append(run.name);
    const show = () => button.setAttribute("aria-pressed", String(!state.hidden.has(r)));
    button.addEventListener("click", () => {
      if (!state.hidden.delete(r)) state.hidden.add(r);
      show();
      drawAll();
    });
    show();
  });
  $("legend").hidden = data.runs.length < 2;
}
function addSummary() {
  // A killed run has left a page that still says "running".
  const silent = data.refresh && Date.now() / 1000 - data.written > 3 * data.refresh;
  const news = silent ? `, no news since ${new Date(1000 * data.written).toLocaleString()}` : "";
  const rows = data.runs.map((run, r) => {
    const s = run.summary;
    return [{dot: colorOf(r), text: run.name}, run.state + news,
      s.steps ? `${s.step} of ${s.steps}` : String(s.step), s.loss,
      s.best_val_loss, s.best_val_step === null ? "-" : String(s.best_val_step),
      s.tokens, s.tokens_per_second, s.seconds ? timeText(s.seconds) : "-", s.skipped];
  });
  fillTable($("summary"), ["run", "state", "steps", "last loss", "lowest val loss", "at step", "tokens", "tokens/s",
    "training time", "skipped updates"], rows);
}
function addSettings() {
  const keys = [...new Set(data.runs.flatMap(r => Object.keys(r.settings)))];
  if (!keys.length) return;
  $("settings-section").hidden = false;
  const text = (run, key) => Object.hasOwn(run.settings, key) ? run.settings[key] : "-";
  const differ = keys.filter(k => new Set(data.runs.map(r => text(r, k))).size > 1);
  const head = ["setting", ...data.runs.map(r => r.name)];
  const rows = of => of.map(k => [k, ...data.runs.map(r => text(r, k))]);
  if (differ.length) fillTable($("settings"), head, rows(differ));
  else if (data.runs.length > 1) fillTable($("settings"), ["The runs have the same settings."], []);
  fillTable($("settings-all"), head, rows(keys));
}
// A select of the runs that have something; calls show(run) now and on every choice.
function chooser(select, has, show) {
  const runs = data.runs.filter(has);
  runs.forEach((run, i) => { element("option", run.name, select).value = i; });
  keep(select.id);
  const shown = () => show(runs[select.value || 0]);
  select.addEventListener("change", shown);
  if (runs.length) shown();
  return runs.length > 0;
}
function addSamples() {
  const show = run => {
    $("samples").replaceChildren();
    const byStep = new Map();
    for (const s of run.samples) byStep.set(s.step, [...(byStep.get(s.step) || []), s]);
    [...byStep].reverse().forEach(([step, samples], i) => {
      const details = element("details", null, $("samples"));
      details.open = i === 0;
      element("summary", "after step " + step, details);
      for (const s of samples) {
        const pre = element("pre", null, details);
        element("b", s.prompt, pre);
        pre.append(s.text);
      }
    });
  };
  $("samples-section").hidden = !chooser($("samples-run"), r => r.samples.length, show);
}
function addExperts() {
  data.runs.forEach(run => {
    if (!run.experts) return;
    $("experts-section").hidden = false;
    element("p", `${run.name}, step ${run.experts.step}: part of the rows that each expert gets`, $("experts"));
    const table = element("table", null, element("div", null, $("experts"), "scroll"), "heat");
    run.experts.load.forEach((layer, l) => {
      const tr = element("tr", null, table), most = Math.max(...layer, 1e-9);
      element("th", "layer " + l, tr).scope = "row";
      layer.forEach((x, e) => {
        const td = element("td", (100 * x).toFixed(1) + " %", tr);
        td.title = `layer ${l}, expert ${e}`;
        td.style.background = `rgba(var(--heat), ${(0.75 * x / most).toFixed(3)})`;
      });
    });
  });
}
function addNorms() {
  let run = null;
  for (const r of data.runs) r.norms.sort((a, b) => a.name.localeCompare(b.name, "en", {numeric: true}));
  // One of the three norms, or the quotient of the first and the third.
  const values = t => {
    const kind = $("norms-kind").value;
    if (kind !== "ratio") return t.norms[Number(kind)];
    return t.norms[2].map((u, i) => (u === null || !t.norms[0][i] ? null : u / t.norms[0][i]));
  };
  const chosen = () => {
    const words = $("norms-filter").value.split(/\s+/).filter(Boolean);
    return run.norms.filter(t => words.every(w => t.name.includes(w)));
  };
  const lines = () => run ? chosen().map((t, i, all) => ({
    name: t.name, color: all.length > COLORS.length ? `hsl(${Math.round(300 * i / all.length)} 65% 55%)` : colorOf(i),
    xs: xsOf(run, t.axis), ys: values(t), low: null, high: null, weight: 0, marks: false
  })) : [];
  const chart = new Chart($("norms-chart"), "norms (square root of the sum of squares)", view, lines, "norms");
  chart.logBox.checked = chart.logY = state.kept.get("norms-log") !== "0";
  chart.logBox.addEventListener("change", () => {
    state.kept.set("norms-log", chart.logY ? "1" : "0");
    writeState();
  });
  keep("norms-kind");
  keep("norms-filter");
  const table = () => fillTable($("norms"), ["tensor", "weights", "gradient", "update", "update / weights"],
    chosen().map(t => {
      const [w, g, u] = t.norms.map(n => n.at(-1));
      return [t.name, w, g, u, w ? u / w : null];
    }));
  const redraw = () => { table(); chart.draw(); };
  $("norms-kind").addEventListener("change", redraw);
  $("norms-filter").addEventListener("input", redraw);
  const any = chooser($("norms-run"), r => r.norms.length, r => { run = r; redraw(); });
  $("norms-section").hidden = !any;
  if (any) charts.push(chart);
}
// Sections of the user (--section): a picture, or a list of objects as a table.
function addSections() {
  for (const s of data.sections) {
    const section = element("section", null, $("sections"));
    element("h2", s.title, section);
    if (s.image) {
      const image = element("img", null, section);
      image.alt = s.title;
      image.src = s.image;
    }
    for (const t of s.tables || []) {
      if (t.title) element("h3", t.title, section);
      fillTable(element("table", null, element("div", null, section, "scroll")), t.head, t.rows);
    }
  }
}

// ---- controls -----------------------------------------------------------------------------------

function addControls() {
  $("axis").value = state.axis;
  $("smooth").value = state.smooth;
  $("log-x").checked = state.logX;
  const show = () => { $("smooth-value").textContent = state.smooth.toFixed(2); };
  show();
  $("axis").addEventListener("change", () => { state.axis = $("axis").value; view.zoom(null); });
  $("smooth").addEventListener("input", () => { state.smooth = Number($("smooth").value); show(); drawAll(); });
  $("log-x").addEventListener("change", () => { state.logX = $("log-x").checked; drawAll(); });
  $("reset").addEventListener("click", () => view.zoom(null));
  for (const form of document.forms) form.addEventListener("submit", e => e.preventDefault());
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(drawAll);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}
// A page of a running run reloads itself, unless the reader has switched that off or is using it.
function reloadWhileRunning() {
  if (!data.refresh) return;
  $("live-label").hidden = false;
  $("live").checked = state.live;
  $("live-when").textContent = `every ${data.refresh} s`;
  $("live").addEventListener("change", () => { state.live = $("live").checked; writeState(); });
  let used = -Infinity;    // milliseconds
  for (const action of ["keydown", "pointerdown", "input", "wheel"])
    addEventListener(action, () => { used = performance.now(); }, {capture: true, passive: true});
  const busy = () => performance.now() - used < 1000 * data.refresh || charts.some(c => c.drag) ||
    String(getSelection()) !== "";
  setInterval(() => { if (state.live && !busy()) location.reload(); }, 1000 * data.refresh);
}

const began = performance.now();
readState();
document.title = $("title").textContent = data.title;
addLegend();
addSummary();
addControls();
addCharts();
addNorms();
addExperts();
addSamples();
addSettings();
addSections();
drawAll();
reloadWhileRunning();
$("footer").textContent = `written ${new Date(1000 * data.written).toLocaleString()}`;
document.documentElement.dataset.drawn = (performance.now() - began).toFixed(0);    // milliseconds
