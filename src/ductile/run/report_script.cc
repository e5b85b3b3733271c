#include "ductile/run/report_impl.h"

namespace ductile::run::report {

const std::string_view kScript = R"js(
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const state = { x: "step", smooth: 0.6, log: false, hover: null };
const colors = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];

function element(name, attributes, ...children) {
  const svg = ["svg", "path", "line", "text", "circle", "rect", "g", "title"].includes(name);
  const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
                : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value);
  }
  e.append(...children);
  return e;
}

// ---- numbers
const group = n => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ",");
function number(v) {
  const a = Math.abs(v);
  if (v === Math.round(v) && a < 1e9) return group(v);
  if (a < 1e-3) return v.toExponential(2);
  if (a < 1) return v.toPrecision(3);
  if (a < 100) return v.toFixed(a < 10 ? 3 : 2);
  return a < 1e9 ? group(v) : v.toExponential(2);
}
function duration(s) {
  if (s < 60) return (s < 10 && s > 0 ? s.toFixed(1) : Math.round(s)) + " s";
  s = Math.round(s);
  const two = n => String(n).padStart(2, "0");
  if (s < 3600) return Math.floor(s / 60) + ":" + two(s % 60);
  if (s < 86400) return Math.floor(s / 3600) + ":" + two(Math.floor(s / 60) % 60) + ":" + two(s % 60);
  return Math.floor(s / 86400) + " d " + Math.floor(s / 3600) % 24 + " h";
}
function xText(x) {
  if (state.x === "seconds") return duration(x);
  return state.x === "step" ? "step " + group(x) : "epoch " + x.toFixed(2);
}

// ---- scales
function ticks(lo, hi, count, bases) {
  const rough = (hi - lo) / Math.max(count, 1);
  let step = null;
  if (bases) step = bases.find(b => b >= rough);
  if (!step) {
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    step = [1, 2, 5, 10].find(m => m * power >= rough * 0.999) * power;
  }
  const out = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; ++i) out.push(i * step);
  return { values: out, step };
}
function logTicks(lo, hi, count) {
  const out = [];
  for (let p = Math.floor(Math.log10(lo)); p <= Math.ceil(Math.log10(hi)); ++p) {
    for (const m of [1, 2, 5]) {
      const v = m * Math.pow(10, p);
      if (v >= lo * 0.999 && v <= hi * 1.001) out.push(v);
    }
  }
  while (out.length > count + 2) out.splice(0, out.length, ...out.filter((_, i) => i % 2 === 0));
  return out;
}
const clockSteps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600,
                    43200, 86400];
function tickText(v, step, percent) {
  if (percent) return +(v * 100).toFixed(Math.max(0, -Math.floor(Math.log10(step * 100) + 1e-9))) + " %";
  if (v === 0) return "0";
  if (Math.abs(v) >= 1e6) return +(v / 1e6).toPrecision(4) + " M";
  if (Math.abs(v) >= 1e4 || (step >= 1000 && Math.abs(v) >= 1000)) return +(v / 1e3).toPrecision(4) + " k";
  if (Math.abs(v) < 1e-3) return v.toExponential(0);
  return String(+v.toPrecision(4));
}

// Exponential average without the bias of its start, over the drawn points.
function smoothed(values, weight) {
  const out = [];
  let sum = 0, norm = 0;
  for (const v of values) {
    sum = sum * weight + v * (1 - weight);
    norm = norm * weight + (1 - weight);
    out.push(sum / norm);
  }
  return out;
}

// ---- panels
const panels = data.panels.map((panel, index) => {
  const legend = element("div", { class: "legend" });
  const svg = element("svg", { tabindex: "0", role: "img", "aria-label": panel.title });
  const box = element("div", { class: "panel" },
      element("div", { class: "panel-head" }, element("h3", {}, panel.title), legend), svg);
  const p = { panel, legend, svg, box };
  svg.addEventListener("pointermove", e => hoverAt(p, e));
  svg.addEventListener("pointerdown", e => hoverAt(p, e));
  svg.addEventListener("pointerleave", () => { state.hover = null; panels.forEach(drawHover); });
  svg.addEventListener("keydown", e => {
    if (e.key !== "ArrowLeft" && e.key !== "ArrowRight" || !p.longest) return;
    e.preventDefault();
    const xs = p.longest.x;
    const at = state.hover === null ? xs.length - 1 : nearest(xs, state.hover);
    const jump = Math.max(1, Math.round(xs.length / 100)) * (e.key === "ArrowLeft" ? -1 : 1);
    state.hover = xs[Math.min(Math.max(at + jump, 0), xs.length - 1)];
    panels.forEach(drawHover);
  });
  return p;
});

function nearest(xs, x) {
  let lo = 0, hi = xs.length - 1;
  while (hi - lo > 1) {
    const mid = (lo + hi) >> 1;
    if (xs[mid] <= x) lo = mid; else hi = mid;
  }
  return Math.abs(xs[hi] - x) < Math.abs(xs[lo] - x) ? hi : lo;
}

function hoverAt(p, event) {
  if (!p.toX) return;
  const rect = p.svg.getBoundingClientRect();
  const x = p.fromX(event.clientX - rect.left);
  state.hover = Math.min(Math.max(x, p.x0), p.x1);
  panels.forEach(drawHover);
}

function xRange() {
  let lo = Infinity, hi = -Infinity;
  for (const { panel } of panels) {
    for (const s of panel.series) {
      for (const x of s[state.x]) { if (x < lo) lo = x; if (x > hi) hi = x; }
    }
  }
  if (lo > hi) return [0, 1];
  if (lo > 0 && lo < hi * 0.2) lo = 0;
  return lo === hi ? [lo - 0.5, hi + 0.5] : [lo, hi];
}

function draw(p) {
  const { panel, svg } = p;
  const width = Math.max(svg.parentNode.clientWidth - 34, 200), height = 214;
  const left = 50, right = 10, top = 10, bottom = 26;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = height + "px";
  svg.replaceChildren();

  const series = panel.series.map((s, i) => {
    const keep = s.value.map((v, k) => v !== null && (!state.log || !panel.log || v > 0) ? k : -1)
                        .filter(k => k >= 0);
    const y = keep.map(k => s.value[k]);
    return { ...s, color: `var(${colors[i % colors.length]})`, x: keep.map(k => s[state.x][k]), y,
             line: s.smooth && state.smooth > 0 && y.length > 20 ? smoothed(y, state.smooth) : y };
  });
  p.series = series;
  p.longest = series.reduce((a, b) => !a || b.x.length > a.x.length ? b : a, null);

  const isLog = state.log && panel.log;
  let lo = Infinity, hi = -Infinity;
  for (const s of series) for (const v of s.y) { if (v < lo) lo = v; if (v > hi) hi = v; }
  if (lo > hi) {
    svg.append(element("text", { x: width / 2, y: height / 2, "text-anchor": "middle" },
                       "no finite values"));
    p.toX = null;
    drawHover(p);
    return;
  }
  if (panel.target !== undefined && !(isLog && panel.target <= 0)) {
    lo = Math.min(lo, panel.target); hi = Math.max(hi, panel.target);
  }
  if (panel.zero) lo = Math.min(lo, 0);
  if (lo === hi) { const d = Math.abs(lo) * 0.1 || 1; hi += d; if (!panel.zero) lo -= d; }
  let yTicks;
  if (isLog) {
    yTicks = { values: logTicks(lo, hi, 5) };
    lo *= 0.95; hi *= 1.05;
  } else {
    const margin = (hi - lo) * 0.04;
    if (!panel.zero) lo = lo >= 0 ? Math.max(lo - margin, 0) : lo - margin;
    hi = panel.percent && hi <= 1 ? Math.min(hi + margin, 1) : hi + margin;
    yTicks = ticks(lo, hi, 5);
    if (panel.steps) yTicks.values = yTicks.values.filter(v => v === Math.round(v));
  }
  const [x0, x1] = xRange();
  const toX = x => left + (x - x0) / (x1 - x0) * (width - left - right);
  const f = isLog ? Math.log : v => v;
  const toY = y => top + (1 - (f(y) - f(lo)) / (f(hi) - f(lo))) * (height - top - bottom);
  Object.assign(p, { toX, toY, x0, x1, width, height, left, right, top, bottom,
    fromX: px => x0 + (px - left) / (width - left - right) * (x1 - x0) });

  for (const v of yTicks.values) {
    const y = toY(v);
    svg.append(element("line", { class: "gridline", x1: left, x2: width - right, y1: y, y2: y }),
      element("text", { x: left - 8, y: y + 4, "text-anchor": "end" },
              tickText(v, yTicks.step || v, panel.percent)));
  }
  const base = height - bottom;
  svg.append(element("line", { class: "axis", x1: left, x2: width - right, y1: base, y2: base }));
  const xt = ticks(x0, x1, Math.max(2, Math.floor((width - left) / 84)),
                   state.x === "seconds" ? clockSteps : null);
  for (const v of xt.values) {
    if (state.x === "step" && v !== Math.round(v)) continue;
    const text = state.x === "seconds" ? duration(v).replace(".0 s", " s") : tickText(v, xt.step, false);
    const x = toX(v);
    svg.append(element("text", { x, y: base + 17,
      "text-anchor": x > width - right - 16 ? "end" : "middle" }, text));
  }

  for (const m of data.marks) {
    if (m[state.x] === undefined || m.tone === "plain" || m.kind === "end") continue;
    const x = toX(Math.min(Math.max(m[state.x], x0), x1));
    const at = { x1: x, x2: x, y1: top, y2: base };
    svg.append(element("line", { class: "mark " + m.tone, ...at }),
               element("line", { class: "mark-area", ...at }, element("title", {}, m.text)));
  }
  if (panel.target !== undefined) {
    const y = toY(panel.target);
    svg.append(element("line", { class: "target", x1: left, x2: width - right, y1: y, y2: y }),
      element("text", { class: "target-text", x: left + 6, y: y < top + 16 ? y + 14 : y - 5 },
        "target " + (panel.percent ? +(panel.target * 100).toFixed(2) + " %" : number(panel.target))));
  }

  const path = (s, values) => s.x.map((x, i) => {
    const at = toX(x).toFixed(1), y = toY(values[i]).toFixed(1);
    return i === 0 ? `M${at} ${y}` : panel.steps ? `H${at}V${y}` : `L${at} ${y}`;
  }).join("");
  for (const s of series) {
    if (s.line !== s.y) {
      svg.append(element("path", { class: "curve raw", stroke: s.color, d: path(s, s.y) }));
    }
    svg.append(element("path", { class: "curve", stroke: s.color, d: path(s, s.line) }));
    if (s.x.length <= 40 && !panel.steps) {
      s.x.forEach((x, i) => svg.append(element("circle",
        { cx: toX(x), cy: toY(s.y[i]), r: s.x.length === 1 ? 4 : 2.6, fill: s.color })));
    }
  }
  p.overlay = element("g", { "pointer-events": "none" });
  svg.append(p.overlay);
  drawHover(p);
}

function drawHover(p) {
  const { panel, legend } = p;
  legend.replaceChildren();
  if (p.overlay) p.overlay.replaceChildren();
  if (!p.toX) return;
  if (state.hover !== null) {
    legend.append(element("span", { class: "at" }, xText(state.hover)));
    const x = p.toX(state.hover);
    p.overlay.append(element("line", { class: "cross", x1: x, x2: x, y1: p.top,
                                       y2: p.height - p.bottom }));
  }
  for (const s of p.series) {
    if (!s.x.length) continue;
    let i = s.x.length - 1;
    if (state.hover !== null) {
      i = nearest(s.x, state.hover);
      if (panel.steps && s.x[i] > state.hover && i > 0) --i;
    }
    const v = s.y[i];
    const item = element("span", {}, element("i", { style: `background:${s.color}` }));
    if (p.series.length > 1 || s.name === "test" || s.name === "train") item.append(s.name + " ");
    item.append(element("b", {}, panel.percent ? (v * 100).toFixed(2) + " %" : number(v)));
    legend.append(item);
    if (state.hover !== null) {
      p.overlay.append(element("circle", { cx: p.toX(panel.steps ? state.hover : s.x[i]),
        cy: p.toY(s.line[i]), r: 4, fill: s.color, stroke: "var(--card)", "stroke-width": 2 }));
    }
  }
}

const drawAll = () => panels.forEach(draw);

// What the dotted lines are.
const tones = new Map();
for (const m of data.marks) {
  if (m.tone === "plain" || m.kind === "end") continue;
  if (!tones.has(m.tone)) tones.set(m.tone, new Set());
  tones.get(m.tone).add(m.kind.replaceAll("_", " "));
}

// ---- controls
function choice(options, get, set) {
  const box = element("div", { class: "choice", role: "group" });
  const buttons = options.map(([value, text]) => element("button", { type: "button",
    onclick: () => { set(value); mark(); drawAll(); } }, text));
  const mark = () => buttons.forEach((b, i) =>
    b.setAttribute("aria-pressed", String(options[i][0] === get())));
  box.append(...buttons);
  mark();
  return box;
}

const holder = document.getElementById("panels");
if (panels.length) {
  holder.append(...panels.map(p => p.box));
  const slider = element("input", { type: "range", min: 0, max: 0.98, step: 0.02,
    value: state.smooth, "aria-label": "smoothing",
    oninput: e => { state.smooth = +e.target.value; drawAll(); } });
  const controls = document.getElementById("controls");
  controls.append(
    choice([["step", "Steps"], ["epoch", "Epochs"], ["seconds", "Time"]],
           () => state.x, v => { state.x = v; state.hover = null; }),
    element("label", {}, "Smoothing", slider));
  if (data.panels.some(p => p.log)) {
    controls.append(element("label", {}, element("input", { type: "checkbox",
      onchange: e => { state.log = e.target.checked; drawAll(); } }), "Logarithmic loss"));
  }
  for (const [tone, kinds] of tones) {
    document.getElementById("marks").append(element("span", { class: "key " + tone },
      [...kinds].join(", ")));
  }
  let width = 0;
  new ResizeObserver(() => {
    if (holder.clientWidth !== width) { width = holder.clientWidth; drawAll(); drawStrip(); }
  }).observe(holder);
} else {
  holder.append(element("p", { class: "empty" }, "No metrics yet."));
}

// ---- the strip of events over time: each start or resume begins a new band
function drawStrip() {
  const strip = document.getElementById("strip");
  const marks = data.marks.filter(m => m.seconds !== undefined);
  if (!strip || marks.length === 0 || !(data.seconds > 0)) return;
  const width = Math.max(strip.clientWidth, 200), left = 2, right = 2, mid = 24;
  const toX = s => left + s / data.seconds * (width - left - right);
  const svg = element("svg", { viewBox: `0 0 ${width} 58`, role: "img",
                               "aria-label": "events over time" });
  svg.style.height = "58px";
  const begins = marks.filter(m => m.kind === "start" || m.kind === "resume").map(m => m.seconds);
  begins.forEach((b, i) => {
    const end = i + 1 < begins.length ? begins[i + 1] : data.seconds;
    svg.append(element("rect", { class: "session", x: toX(b), y: mid - 7, rx: 3, height: 14,
      width: Math.max(toX(end) - toX(b) - (i + 1 < begins.length ? 2 : 0), 1) }));
  });
  for (const m of marks) {
    const title = element("title", {}, `${duration(m.seconds)}: ${m.text}`);
    const x = toX(m.seconds);
    if (m.tone === "plain") {
      if (m.kind === "start") continue;
      const half = m.kind === "checkpoint" ? 7 : 3.5;
      svg.append(element("line", { class: "tick", x1: x, x2: x, y1: mid - half, y2: mid + half,
        opacity: m.kind === "checkpoint" ? 0.9 : 0.45 }, title));
    } else {
      svg.append(element("path", { class: "pin " + m.tone,
        d: `M${x} ${mid - 9}l-5 -9h10z` }, title));
    }
  }
  const xt = ticks(0, data.seconds, Math.max(2, Math.floor(width / 110)), clockSteps);
  for (const v of xt.values) {
    const x = toX(v);
    svg.append(element("text", { x, y: 52,
      "text-anchor": x < 16 ? "start" : x > width - 24 ? "end" : "middle" },
      duration(v).replace(".0 s", " s")));
  }
  strip.replaceChildren(svg);
}
drawStrip();

// ---- kinds of events, each a switch
const chips = document.getElementById("kinds");
if (chips) {
  const rows = [...document.querySelectorAll(".events tbody tr[data-kind]")];
  const kinds = [...new Set(rows.map(r => r.dataset.kind))];
  if (kinds.length > 1) {
    for (const kind of kinds) {
      const mine = rows.filter(r => r.dataset.kind === kind);
      chips.append(element("button", { type: "button", "aria-pressed": "true", onclick: e => {
        const on = e.target.getAttribute("aria-pressed") !== "true";
        e.target.setAttribute("aria-pressed", String(on));
        mine.forEach(r => { r.hidden = !on; });
      } }, `${kind} ${mine.length}`));
    }
  }
}

// ---- configuration and commands
const config = document.getElementById("config"), all = document.getElementById("all-options");
if (config && all) {
  const show = () => config.classList.toggle("only-changed", !all.checked);
  all.addEventListener("change", show);
  show();
}
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentNode.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      getSelection().selectAllChildren(code);
    }
  });
}
})();
)js";

}  // namespace ductile::run::report
