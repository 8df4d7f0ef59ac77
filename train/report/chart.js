// chart.js - lines on a canvas: axes, linear or logarithmic, a band from minimum to maximum, values
// under the pointer or the arrow keys, zoom by drag. page.js gives each chart its lines.
"use strict";

const SUFFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// A number in about four digits: 1.234, 12.3k, 1.2e-5.
function numberText(x) {
  if (x === null || x === undefined || !isFinite(x)) return "-";
  const size = Math.abs(x);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return x.toExponential(2).replace("e+", "e");
  for (const [unit, suffix] of SUFFIXES)
    if (size >= unit * 10 || (size >= unit && unit > 1e3)) return trimmed((x / unit).toPrecision(4)) + suffix;
  return trimmed(x.toPrecision(5));
}
function trimmed(text) { return text.includes(".") ? text.replace(/\.?0+$/, "") : text; }
function timeText(seconds) {
  const s = Math.round(seconds), two = n => String(n).padStart(2, "0");
  if (seconds < 60) return trimmed(seconds.toFixed(seconds < 10 ? 2 : 1)) + " s";
  if (s < 3600) return Math.floor(s / 60) + ":" + two(s % 60);
  return Math.floor(s / 3600) + ":" + two(Math.floor(s / 60) % 60) + ":" + two(s % 60);
}

// Round values within [low, high]: multiples of 1, 2 or 5 times a power of ten; on a logarithmic
// axis powers of ten, and 2 and 5 times these if there are few.
function ticks(low, high, count, log) {
  const out = [];
  if (log && high / low > 8) {
    const decades = Math.log10(high / low), factors = decades < 3 ? [1, 2, 5] : [1];
    const stride = Math.max(1, Math.ceil(decades / count));
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const f of factors)
        if (e % stride === 0 && f * 10 ** e >= low && f * 10 ** e <= high) out.push(f * 10 ** e);
    return out;
  }
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(f => f * power >= rough * 0.75) * power;
  if (!(step > 0) || !isFinite(step)) return [low];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && out.length < 50; i++)
    out.push(Number((i * step).toPrecision(12)));
  return out;
}

// Exponential moving average without its bias: the smoothing of TensorBoard.
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, sum = 0;
  return values.map(v => {
    if (v === null) return null;
    mean = weight * mean + (1 - weight) * v;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
}

// Index of the value of ascending xs that is nearest to x.
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}

// view: {xText, logX, range: [from, to] or null, zoom(range)}, shared by the charts of a page.
// series(): a list of {name, color, xs, ys, low, high, weight, marks, dash}.
class Chart {
  constructor(parent, title, view, series, key) {
    this.view = view;
    this.series = series;
    this.logY = false;
    this.cursor = null;
    this.drag = null;
    this.touches = new Map();    // pixels by finger
    this.note = "";              // lines that are left out
    this.figure = document.createElement("figure");
    this.figure.dataset.metric = key;
    const caption = document.createElement("figcaption"), name = document.createElement("span");
    name.textContent = title;
    const label = document.createElement("label");
    this.logBox = document.createElement("input");
    this.logBox.type = "checkbox";
    this.logBox.addEventListener("change", () => { this.setLog(this.logBox.checked); view.changed(); });
    label.append(this.logBox, " logarithmic");
    caption.append(name, label);
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", title + ": arrow keys show values");
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    this.readout.setAttribute("aria-live", "polite");
    this.figure.append(caption, this.canvas, this.readout);
    parent.append(this.figure);
    this.listen();
  }
  setLog(on) {
    this.logY = this.logBox.checked = on;
    this.draw();
  }

  // ---- axes

  domain(lines) {
    const [from, to] = this.view.range || [-Infinity, Infinity];
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const line of lines)
      line.xs.forEach((x, i) => {
        const y = line.smooth[i];
        if (y === null || x < from || x > to || (this.view.logX && x <= 0)) return;
        x0 = Math.min(x0, x);
        x1 = Math.max(x1, x);
        for (const v of [y, line.low ? line.low[i] : y, line.high ? line.high[i] : y]) {
          if (v === null || (this.logY && v <= 0)) continue;
          y0 = Math.min(y0, v);
          y1 = Math.max(y1, v);
        }
      });
    if (x0 > x1) return null;
    if (y0 > y1) [y0, y1] = [this.logY ? 0.1 : 0, 1];
    x0 = Math.max(x0, from);
    x1 = Math.min(x1, to);
    if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    if (this.view.logX && x0 <= 0) x0 = x1 / 2;
    // Values that hardly differ are not blown up.
    const pad = Math.max(0.04 * (y1 - y0), 5e-3 * Math.abs(y1)) || 0.5;
    return this.logY ? {x0, x1, y0: y0 / 1.05, y1: y1 * 1.05} : {x0, x1, y0: y0 - pad, y1: y1 + pad};
  }
  // Functions from values to pixels, and from pixels to x.
  scales(d, width, height) {
    const left = 58, right = 10, top = 8, bottom = 26;
    const w = Math.max(1, width - left - right), h = Math.max(1, height - top - bottom);
    const lx = this.view.logX ? Math.log : v => v, ly = this.logY ? Math.log : v => v;
    const ex = this.view.logX ? Math.exp : v => v;
    const a = lx(d.x0), b = lx(d.x1), c = ly(d.y0), e = ly(d.y1);
    return {
      left, top, w, h,
      x: v => left + w * (lx(v) - a) / (b - a),
      y: v => top + h * (1 - (ly(v) - c) / (e - c)),
      invert: px => ex(a + (b - a) * Math.min(1, Math.max(0, (px - left) / w)))
    };
  }

  // ---- drawing

  draw() {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    if (!box.width) return;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    const g = this.canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const color = name => style.getPropertyValue(name).trim();
    g.scale(ratio, ratio);
    const all = this.series(), out = all.filter(s => !s.xs.length && s.ys.length).map(s => s.name.trim());
    this.note = out.length ? `without ${this.view.xName()}, so not shown: ${out.join(", ")}` : "";
    this.lines = all.filter(s => s.xs.length);
    for (const line of this.lines) line.smooth = smoothed(line.ys, line.weight);
    const d = this.domain(this.lines);
    this.scale = d && this.scales(d, box.width, box.height);
    g.font = "11px system-ui, sans-serif";
    g.fillStyle = color("--pale");
    if (!d) {
      this.readout.replaceChildren(this.note);
      return g.fillText("no values in this range", 60, box.height / 2);
    }
    this.drawAxes(g, d, box, color);
    const s = this.scale;
    g.save();
    g.beginPath();
    g.rect(s.left, s.top - 2, s.w + 4, s.h + 4);
    g.clip();
    for (const line of this.lines) this.drawLine(g, line);
    if (this.drag) {
      g.fillStyle = color("--accent");
      g.globalAlpha = 0.2;
      g.fillRect(Math.min(...this.drag), s.top, Math.abs(this.drag[1] - this.drag[0]), s.h);
    }
    g.restore();
    this.drawCursor(g, color);
  }
  drawAxes(g, d, box, color) {
    const s = this.scale;
    g.strokeStyle = color("--grid");
    g.lineWidth = 1;
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const v of ticks(d.y0, d.y1, 6, this.logY)) {
      const y = Math.round(s.y(v)) + 0.5;
      g.beginPath();
      g.moveTo(s.left, y);
      g.lineTo(s.left + s.w, y);
      g.stroke();
      g.fillText(numberText(v), s.left - 6, y);
    }
    g.textAlign = "center";
    g.textBaseline = "top";
    for (const v of ticks(d.x0, d.x1, Math.max(3, Math.floor(s.w / 60)), this.view.logX))
      g.fillText(this.view.xText(v), Math.min(Math.max(s.x(v), s.left), box.width - 20), s.top + s.h + 7);
    g.strokeStyle = color("--edge");
    g.strokeRect(s.left + 0.5, s.top + 0.5, s.w, s.h);
  }
  drawLine(g, line) {
    const s = this.scale, ok = v => v !== null && !(this.logY && v <= 0);
    const visible = i => ok(line.smooth[i]) && !(this.view.logX && line.xs[i] <= 0);
    g.strokeStyle = g.fillStyle = line.color;
    if (line.low && !line.weight) {    // minimum and maximum of each bucket
      g.globalAlpha = 0.22;
      g.beginPath();
      const at = [...line.xs.keys()].filter(i => visible(i) && ok(line.low[i]) && ok(line.high[i]));
      for (const i of at) g.lineTo(s.x(line.xs[i]), s.y(line.high[i]));
      for (const i of at.reverse()) g.lineTo(s.x(line.xs[i]), s.y(line.low[i]));
      g.fill();
    }
    const path = ys => {
      g.beginPath();
      let pen = false;
      for (let i = 0; i < line.xs.length; i++) {
        if (!ok(ys[i]) || !visible(i)) {
          pen = false;
          continue;
        }
        if (pen) g.lineTo(s.x(line.xs[i]), s.y(ys[i]));
        else g.moveTo(s.x(line.xs[i]), s.y(ys[i]));
        pen = true;
      }
      g.stroke();
    };
    g.lineJoin = "round";
    g.setLineDash(line.dash || []);
    if (line.weight) {
      g.globalAlpha = 0.25;
      g.lineWidth = 1;
      path(line.ys);
    }
    g.globalAlpha = 1;
    g.lineWidth = 1.6;
    path(line.smooth);
    g.setLineDash([]);
    if (!line.marks && line.xs.length > 1) return;
    for (let i = 0; i < line.xs.length; i++) {
      if (!visible(i)) continue;
      g.beginPath();
      g.arc(s.x(line.xs[i]), s.y(line.smooth[i]), line.xs.length > 60 ? 1.8 : 3, 0, 2 * Math.PI);
      g.fill();
    }
  }
  drawCursor(g, color) {
    if (this.cursor === null) return this.readout.replaceChildren(this.note);
    const s = this.scale, px = s.x(this.cursor);
    g.strokeStyle = color("--pale");
    g.beginPath();
    g.moveTo(px, s.top);
    g.lineTo(px, s.top + s.h);
    g.stroke();
    const head = document.createElement("b");
    head.textContent = this.view.xName() + " " + this.view.xText(this.cursor, true) + ": ";
    this.readout.replaceChildren(head);
    for (const line of this.lines.slice(0, 24)) {
      const i = nearest(line.xs, this.cursor), y = line.smooth[i];
      if (y === null) continue;
      g.fillStyle = line.color;
      g.beginPath();
      g.arc(s.x(line.xs[i]), s.y(y), 3.5, 0, 2 * Math.PI);
      g.fill();
      const item = document.createElement("span"), value = document.createElement("b");
      item.style.color = line.color;
      value.textContent = numberText(y);
      const spread = line.low && line.low[i] !== line.high[i]
        ? ` (${numberText(line.low[i])} to ${numberText(line.high[i])})` : "";
      const far = Math.abs(s.x(line.xs[i]) - px) > 8;
      const at = far ? " at " + this.view.xText(line.xs[i], true) : "";
      item.append("\u25cf " + line.name + " ", value, spread + at);
      this.readout.append(item);
    }
  }

  // ---- pointer and keys

  listen() {
    const c = this.canvas, px = e => e.clientX - c.getBoundingClientRect().left;
    c.addEventListener("pointerdown", e => {
      if (!this.scale) return;
      if (e.pointerType === "touch") return this.touch(e.pointerId, px(e));
      c.setPointerCapture(e.pointerId);
      this.drag = [px(e), px(e)];
    });
    c.addEventListener("pointermove", e => {
      if (!this.scale) return;
      if (e.pointerType === "touch") return this.touch(e.pointerId, px(e));
      if (this.drag) this.drag[1] = px(e);
      this.point(this.scale.invert(px(e)));
    });
    c.addEventListener("pointerup", e => { this.touches.delete(e.pointerId); this.endDrag(); });
    c.addEventListener("pointercancel", e => { this.touches.delete(e.pointerId); this.drag = null; this.draw(); });
    c.addEventListener("pointerleave", e => {    // a lifted finger leaves, too: its value stays
      if (this.drag || e.pointerType === "touch") return;
      this.cursor = null;
      this.draw();
    });
    c.addEventListener("dblclick", () => this.view.zoom(null));
    c.addEventListener("keydown", e => this.key(e));
    c.addEventListener("blur", () => { this.cursor = null; this.draw(); });
  }
  // One finger shows values; two choose a range, which lifting one zooms to.
  touch(finger, x) {
    this.touches.set(finger, x);
    this.drag = this.touches.size === 2 ? [...this.touches.values()] : null;
    this.point(this.scale.invert(x));
  }
  endDrag() {
    const drag = this.drag;
    this.drag = null;
    if (!drag || !this.scale || Math.abs(drag[1] - drag[0]) < 6) return this.draw();
    this.view.zoom([this.scale.invert(Math.min(...drag)), this.scale.invert(Math.max(...drag))]);
  }
  // Puts the cursor on the point of the longest line that is nearest to x.
  point(x, move = 0) {
    const long = this.lines.reduce((a, b) => (b.xs.length > a.xs.length ? b : a), {xs: []});
    if (!long.xs.length) return;
    const i = Math.min(long.xs.length - 1, Math.max(0, nearest(long.xs, x) + move));
    const [from, to] = this.view.range || [-Infinity, Infinity];
    if (long.xs[i] >= from && long.xs[i] <= to) this.cursor = long.xs[i];
    this.draw();
  }
  key(e) {
    if (!this.scale || e.ctrlKey || e.metaKey || e.altKey) return;
    const s = this.scale, low = s.invert(s.left), high = s.invert(s.left + s.w);
    const at = this.cursor === null ? (low + high) / 2 : this.cursor;
    const zoomed = factor => this.view.zoom([Math.max(low + (high - low) * (factor < 1 ? 0 : -0.5),
      at - (high - low) * factor / 2), at + (high - low) * factor / 2]);
    const stride = e.shiftKey ? 10 : 1;
    switch (e.key) {
      case "ArrowLeft": this.point(at, this.cursor === null ? 0 : -stride); break;
      case "ArrowRight": this.point(at, this.cursor === null ? 0 : stride); break;
      case "Home": this.point(low); break;
      case "End": this.point(high); break;
      case "+": case "=": zoomed(0.5); break;
      case "-": zoomed(2); break;
      case "Escape": case "0": this.cursor = null; this.view.zoom(null); break;
      default: return;
    }
    e.preventDefault();
  }
}
