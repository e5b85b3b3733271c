#include "ductile/sim/report_impl.h"

namespace ductile::sim::report {

const std::string_view kStyle = R"css(
:root { --page: #f6f6f3; --card: #fdfdfc; --ink: #14140f; --soft: #52514e; --muted: #83817a;
  --line: #e3e2db; --grid: #ebeae4; --idle: #efeee8; --best: #ddf2e4; --best-ink: #14713f;
  --c0: #2a78d6; --c1: #e0622d; --c2: #1a9e70; --c3: #8a5cd0; --c4: #b88a00; --c5: #c8467f;
  --c6: #3f9fb5; --c7: #7a7a72; }
@media (prefers-color-scheme: dark) { :root { --page: #0f0f0e; --card: #191918; --ink: #f4f3ee;
  --soft: #c3c2b7; --muted: #8d8b82; --line: #2d2d2a; --grid: #262624; --idle: #222220;
  --best: #16301f; --best-ink: #7fd6a2;
  --c0: #4a93ea; --c1: #ec7543; --c2: #2bb483; --c3: #a583e3; --c4: #d3a82a; --c5: #e070a0;
  --c6: #5cbcd2; --c7: #9a998f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 36px 28px 48px; }
.eyebrow, .about, .muted { color: var(--muted); font-size: 13.5px; }
.about { margin: 4px 0 10px; }
h1 { margin: 0; font-size: 30px; font-weight: 650; letter-spacing: -0.015em; }
h2 { margin: 0 0 12px; font-size: 18px; font-weight: 620; }
h3 { margin: 0 0 4px; font-size: 13.5px; font-weight: 550; color: var(--soft); }
section { margin-top: 32px; }
.card, .panel { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; min-width: 0; }
.scroll { overflow-x: auto; }
.panels { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; }
.panel.wide { grid-column: 1 / -1; }
@media (max-width: 820px) { .panels { grid-template-columns: 1fr; } }
.bar { display: flex; justify-content: space-between; flex-wrap: wrap; gap: 6px 20px; }
select { font: inherit; font-size: 13px; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: 7px; padding: 3px 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; white-space: nowrap; font-size: 14px; }
th { color: var(--soft); font-weight: 550; font-size: 12.5px; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
tr + tr td { border-top: 1px solid var(--grid); }
td.best { background: var(--best); color: var(--best-ink); font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11.5px; fill: var(--muted); }
svg .key { fill: var(--soft); font-size: 12px; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 5px; vertical-align: -1px; }
#legend { font-size: 13px; color: var(--soft); margin-bottom: 8px; }
#legend span { margin-right: 16px; white-space: nowrap; }
.timeline { margin-bottom: 12px; }
.timeline canvas { width: 100%; display: block; cursor: crosshair; }
#tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--page);
  border-radius: 7px; padding: 6px 10px; font-size: 12.5px; max-width: 320px; z-index: 9; }
)css";

const std::string_view kScript = R"js(
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const policies = data.policies.map(p => p.policy);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const color = i => "var(--c" + (i % 8) + ")";
const isService = a => a.endsWith(" (service)");
const apps = [...new Set(data.runs.flatMap(r => r.jobs.map(j => j[1])))].sort();
const tip = document.getElementById("tip");

function svg(name, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  e.append(...children);
  return e;
}
function html(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  e.append(...children);
  return e;
}
const group = n => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ",");
function number(v) {
  if (v === 0) return "0";
  const a = Math.abs(v);
  return a >= 100 ? group(v) : a >= 10 ? v.toFixed(1) : a >= 0.01 ? v.toFixed(2) : v.toExponential(1);
}
function duration(s) {
  if (s < 90) return Math.round(s) + " s";
  if (s < 5400) return (s / 60).toFixed(s < 600 ? 1 : 0) + " min";
  if (s < 172800) return (s / 3600).toFixed(s < 36000 ? 1 : 0) + " h";
  return (s / 86400).toFixed(1) + " d";
}

const percent = v => (100 * v).toFixed(1) + " %";
// ---- the table; the best of each column is marked
const columns = [
  ["mean_jct", "mean JCT", duration, -1], ["median_jct", "median", duration, -1],
  ["p90_jct", "p90", duration, -1], ["p99_jct", "p99", duration, -1],
  ["makespan", "makespan", duration, -1], ["device_hours", "device hours", number, -1],
  ["restarts", "restarts", number, -1],
  ["utilisation", "utilisation", percent, 0],
  ["worst_fairness", "worst \u03c1", number, -1], ["mean_fairness", "mean \u03c1", number, -1],
  ["premium_kept", "Premium", percent, 1], ["standard_kept", "Standard", percent, 1],
  ["on_time", "on time", percent, 1], ["worst_hour", "worst h", percent, 1],
  ["lost_hours", "hours done again", number, -1],
].filter(c => data.policies.some(p => p[c[0]] !== undefined));
const table = document.getElementById("summary");
table.append(html("tr", {}, html("th", {}, "policy"), ...columns.map(c => html("th", {}, c[1]))));
data.policies.forEach((p, i) => {
  const row = html("tr", {}, html("td", {},
    html("span", { class: "swatch", style: "background:" + color(i) }), p.policy));
  for (const [key, , format, sign] of columns) {
    if (p[key] === undefined) { row.append(html("td", {}, "")); continue; }
    const all = data.policies.map(q => q[key]).filter(v => v !== undefined);
    const best = sign !== 0 && all.length > 1 &&
      p[key] === (sign > 0 ? Math.max(...all) : Math.min(...all));
    row.append(html("td", best ? { class: "best" } : {}, format(p[key])));
  }
  table.append(row);
});

// ---- teams: a row each, two columns a policy
const teams = [...new Set(data.policies.flatMap(p => (p.teams || []).map(t => t.team)))];
if (teams.length) {
  const box = document.getElementById("teams");
  box.append(html("tr", {}, html("th", {}, "team"),
    ...data.policies.flatMap(p => [html("th", {}, p.policy + ": mean JCT"), html("th", {}, "device hours"),
      html("th", {}, "above quota, h")])));
  for (const id of teams)
    box.append(html("tr", {}, html("td", {}, String(id)), ...data.policies.flatMap(p => {
      const t = (p.teams || []).find(q => q.team === id);
      return t ? [duration(t.mean_jct), number(t.device_hours), number(t.over_quota_hours)]
        .map(v => html("td", {}, v)) : [html("td"), html("td"), html("td")];
    })));
}

const short = v => String(+v.toPrecision(3));
// ---- axes
const W = 600, H = 250, L = 58, R = 14, T = 10, B = 26;
function ticks(lo, hi, n) {
  const rough = (hi - lo) / n, power = Math.pow(10, Math.floor(Math.log10(rough || 1)));
  const step = [1, 2, 5, 10].find(m => m * power >= rough) * power, out = [];
  for (let v = Math.ceil(lo / step) * step; v <= hi + step * 1e-9; v += step) out.push(v);
  return out;
}
function hours(hi) {
  const rough = hi / 8;
  const step = [60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800]
    .find(s => s >= rough) || 2592000;
  const out = [];
  for (let v = 0; v <= hi; v += step) out.push(v);
  return out;
}
function frame(id, x, y, width) {
  const root = document.getElementById(id), w = width || W;
  root.setAttribute("viewBox", `0 0 ${w} ${H}`);
  root.replaceChildren();
  const px = v => L + (x.map(v) - x.map(x.lo)) / (x.map(x.hi) - x.map(x.lo) || 1) * (w - L - R);
  const py = v => H - B - (v - y.lo) / (y.hi - y.lo || 1) * (H - T - B);
  for (const v of y.ticks) root.append(
    svg("line", { x1: L, x2: w - R, y1: py(v), y2: py(v), stroke: "var(--grid)" }),
    svg("text", { x: L - 6, y: py(v) + 4, "text-anchor": "end" }, y.text(v)));
  for (const v of x.ticks) root.append(
    svg("text", { x: px(v), y: H - 8, "text-anchor": "middle" }, x.text(v)));
  root.append(svg("line", { x1: L, x2: w - R, y1: H - B, y2: H - B, stroke: "var(--line)" }));
  return { root, px, py, w };
}
const identity = v => v;

// ---- share of jobs done within a time, all runs of a policy together
function cdf() {
  const byPolicy = policies.map(p => data.runs.filter(r => r.policy === p)
    .flatMap(r => r.jobs.filter(j => !isService(j[1])).map(j => Math.max(j[4] - j[2], 1))).sort((a, b) => a - b));
  const all = byPolicy.flat();
  const lo = Math.min(...all), hi = Math.max(...all), marks = [];
  for (const v of [1, 10, 60, 300, 1800, 7200, 36000, 86400, 604800])
    if (v >= lo * 0.9 && v <= hi * 1.1) marks.push(v);
  const f = frame("cdf", { lo, hi, map: Math.log, ticks: marks, text: duration },
    { lo: 0, hi: 100, ticks: [0, 25, 50, 75, 100], text: v => v + " %" });
  byPolicy.forEach((values, i) => {
    const path = values.map((v, k) => `${k ? "L" : "M"}${f.px(v).toFixed(1)},` +
      f.py(100 * (k + 1) / values.length).toFixed(1)).join("");
    f.root.append(svg("path", { d: path, fill: "none", stroke: color(i), "stroke-width": 1.8 }));
  });
  keys(f);
}
function keys(f) {
  policies.forEach((p, i) => f.root.append(
    svg("rect", { x: f.w - R - 92, y: H - B - 16 * (policies.length - i), width: 10, height: 10,
      rx: 2, fill: color(i) }),
    svg("text", { x: f.w - R - 78, y: H - B - 16 * (policies.length - i) + 9, class: "key" }, p)));
}
function byApplication() {
  const kinds = apps.filter(a => !isService(a));
  const means = policies.map(p => kinds.map(a => {
    const v = data.runs.filter(r => r.policy === p)
      .flatMap(r => r.jobs.filter(j => j[1] === a).map(j => j[4] - j[2]));
    return v.length ? v.reduce((s, x) => s + x, 0) / v.length : 0;
  }));
  const hi = Math.max(...means.flat()), lo = Math.max(Math.min(...means.flat().filter(v => v > 0)) / 2, 1);
  const map = v => Math.log(Math.max(v, lo));
  const marks = [10, 60, 300, 1800, 7200, 36000, 172800].filter(v => v > lo && v < hi * 1.3);
  const root = document.getElementById("apps");
  root.setAttribute("viewBox", `0 0 ${W} ${H}`);
  const py = v => H - B - (map(v) - map(lo)) / (map(hi) - map(lo) || 1) * (H - T - B - 6);
  for (const v of marks) root.append(
    svg("line", { x1: L, x2: W - R, y1: py(v), y2: py(v), stroke: "var(--grid)" }),
    svg("text", { x: L - 6, y: py(v) + 4, "text-anchor": "end" }, duration(v)));
  const slot = (W - L - R) / kinds.length, bar = Math.min(slot * 0.8 / policies.length, 22);
  kinds.forEach((a, k) => {
    const left = L + slot * k + (slot - bar * policies.length) / 2;
    means.forEach((m, i) => {
      const r = svg("rect", { x: left + i * bar + 0.5, width: bar - 1, y: py(m[k]),
        height: Math.max(H - B - py(m[k]), 0), fill: color(i), rx: 1.5 });
      r.append(svg("title", {}, `${a}, ${policies[i]}: ${duration(m[k])}`));
      root.append(r);
    });
    root.append(svg("text", { x: L + slot * (k + 0.5), y: H - 8, "text-anchor": "middle" }, a));
  });
  root.append(svg("line", { x1: L, x2: W - R, y1: H - B, y2: H - B, stroke: "var(--line)" }));
}

// ---- curves of one workload
const names = [...new Set(data.runs.map(r => r.workload + (r.seed ? ", seed " + r.seed : "")))];
const nameOf = r => r.workload + (r.seed ? ", seed " + r.seed : "");
let shown = names[0];
function curves() {
  const runs = data.runs.filter(r => nameOf(r) === shown);
  const end = Math.max(...runs.map(r => r.end));
  for (const [id, width] of [["goodput", W], ["waiting", W], ["used", 1220], ["served", 1220]]) {
    if (!document.getElementById(id)) continue;
    const hi = id === "used" || id === "served" ? 100 : Math.max(1, ...runs.flatMap(r => r[id].map(p => p[1]))) * 1.05;
    const f = frame(id, { lo: 0, hi: end, map: identity, ticks: hours(end), text: duration },
      { lo: 0, hi, ticks: ticks(0, hi, 4), text: short }, width);
    runs.forEach(r => {
      const path = r[id].map((p, k) => `${k ? "L" : "M"}${f.px(p[0]).toFixed(1)},` +
        f.py(p[1]).toFixed(1)).join("");
      f.root.append(svg("path", { d: path, fill: "none", "stroke-width": 1.4, opacity: 0.9,
        stroke: color(policies.indexOf(r.policy)) }));
    });
  }
}

// ---- timelines
function timelines() {
  const box = document.getElementById("timelines");
  box.replaceChildren();
  const runs = data.runs.filter(r => nameOf(r) === shown);
  const end = Math.max(...runs.map(r => r.end));
  const view = { from: 0, to: end };
  const total = data.rows.reduce((s, r) => s + r[1], 0);
  const rowHeight = Math.max(3, Math.min(7, 480 / total)), left = 62, bottom = 20;
  const all = [];
  for (const run of runs) {
    const canvas = html("canvas", { role: "img",
      "aria-label": `Timeline of ${run.policy}: ${run.jobs.length} jobs on ${total} devices` });
    box.append(html("div", { class: "card timeline" },
      html("h3", {}, `${run.policy}: mean JCT ${duration(run.mean)}, done after ${duration(run.end)}`),
      canvas));
    all.push([run, canvas]);
  }
  function draw() {
    for (const [run, canvas] of all) {
      const w = canvas.clientWidth || 1200, h = total * rowHeight + bottom, ratio = devicePixelRatio || 1;
      canvas.width = w * ratio; canvas.height = h * ratio; canvas.style.height = h + "px";
      const g = canvas.getContext("2d");
      g.scale(ratio, ratio);
      const x = t => left + (t - view.from) / (view.to - view.from) * (w - left - 8);
      g.fillStyle = css("--idle"); g.fillRect(left, 0, w - left - 8, total * rowHeight);
      const palette = apps.map((_, i) => css("--c" + (i % 8)));
      g.save(); g.beginPath(); g.rect(left, 0, w - left - 8, total * rowHeight); g.clip();
      for (const [row, rows, from, to, job] of run.bars) {
        if (to < view.from || from > view.to) continue;
        g.fillStyle = palette[apps.indexOf(run.jobs[job][1])];
        g.globalAlpha = 0.55 + 0.45 * ((job * 7) % 5) / 4;
        g.fillRect(x(from), row * rowHeight + 0.5, Math.max(x(to) - x(from) - 0.5, 0.6),
          rows * rowHeight - 0.8);
      }
      g.globalAlpha = 1; g.strokeStyle = css("--ink"); g.lineWidth = 1;
      for (const [t] of run.faults) { g.beginPath(); g.setLineDash([3, 3]); g.moveTo(x(t), 0);
        g.lineTo(x(t), total * rowHeight); g.stroke(); }
      g.restore();
      g.fillStyle = css("--muted"); g.font = "11px system-ui, sans-serif"; g.textAlign = "right";
      let at = 0, lastLabel = -99;
      for (const [name, n] of data.rows) {
        const y = (at + n / 2) * rowHeight + 4;
        if (y - lastLabel >= 13) { g.fillText(name, left - 6, y); lastLabel = y; }
        g.fillStyle = css("--line"); g.fillRect(left, at * rowHeight, w - left - 8, 0.5);
        g.fillStyle = css("--muted"); at += n;
      }
      g.textAlign = "center";
      for (const t of hours(view.to - view.from)) g.fillText(duration(view.from + t),
        Math.min(Math.max(x(view.from + t), left + 14), w - 24), total * rowHeight + 15);
    }
  }
  for (const [run, canvas] of all) {
    const time = e => { const b = canvas.getBoundingClientRect();
      return view.from + (e.clientX - b.left - left) / (b.width - left - 8) * (view.to - view.from); };
    let start = null;
    canvas.onpointerdown = e => { start = time(e); };
    canvas.onpointerup = e => {
      const stop = time(e);
      if (start !== null && Math.abs(stop - start) > (view.to - view.from) / 100) {
        [view.from, view.to] = [Math.max(0, Math.min(start, stop)), Math.min(end, Math.max(start, stop))];
        draw();
      }
      start = null;
    };
    canvas.ondblclick = () => { view.from = 0; view.to = end; draw(); };
    canvas.onpointermove = e => {
      const row = Math.floor((e.clientY - canvas.getBoundingClientRect().top) / rowHeight), t = time(e);
      const bar = run.bars.find(b => row >= b[0] && row < b[0] + b[1] && t >= b[2] && t <= b[3]);
      tip.hidden = !bar;
      if (!bar) return;
      const job = run.jobs[bar[4]];
      tip.textContent = `${job[0]}: held ${duration(bar[2])} to ${duration(bar[3])}; ` +
        `came ${duration(job[2])}, done ${duration(job[4])}, ${job[5]} restarts`;
      tip.style.left = Math.min(e.clientX + 14, innerWidth - 330) + "px";
      tip.style.top = e.clientY + 14 + "px";
    };
    canvas.onpointerleave = () => { tip.hidden = true; };
  }
  draw();
  onresize = draw;
}

document.getElementById("legend").append(...apps.map((a, i) =>
  html("span", {}, html("span", { class: "swatch", style: "margin-right:5px;background:" + color(i) }), a)));
if (names.length > 1) {
  const select = html("select", { "aria-label": "workload" }, ...names.map(n => html("option", {}, n)));
  select.onchange = () => { shown = select.value; curves(); timelines(); };
  document.getElementById("choice").append(select);
}
cdf();
byApplication();
curves();
timelines();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", timelines);
})();
)js";

}  // namespace ductile::sim::report
