// One job: what it is, how it learns, what it held, how fast it is, what it printed, what happened
// to it; and the same of another job beside it.
"use strict";

import { actionsOf, actOnJob, maySubmit } from "./actions.js";
import { eventRows } from "./events.js";
import { chosen, counted, devicesOverTime, differences, goodput, isLive, speeds, wishOf } from "./figures.js";
import { clock, deviceTime, dialog, element, jobLink, now, phaseChip, redraw, section, since, table, tile } from "./parts.js";
import { get, state } from "./service.js";

const { chartGroup, choice, extent, lineChart, withThousands } = globalThis.ductile;
const kUnits = { step: "step", epoch: "epoch", seconds: "duration" };
const kKeptLog = 400000;  // characters

export function jobPage(root, name, query) {
  let job = null, missing = false, events = [], alive = true, version = "", curves = null, other = null;
  const axis = { x: "step", smoothing: 0.6, log: false };
  const head = element("div"), tiles = element("div", { class: "tiles", style: "--per-row: 6" });
  const panels = element("div", { class: "panels", id: "curves" });
  const group = chartGroup();
  let charts = [], drawn = "";
  const controls = element("div", { class: "controls" });
  const life = element("div", { class: "panels", id: "life" }), lifeGroup = chartGroup();
  const held = lineChart(lifeGroup, { title: "Devices", unit: "count", zero: true, steps: true, last: true });
  const speed = lineChart(chartGroup(), { title: "Samples per second by devices", unit: "count", zero: true, last: true });
  const comparison = element("div", { id: "comparison" });
  const log = element("pre", { id: "log", tabindex: "0", "aria-label": "the end of what its workers printed" });
  const happened = element("div", { id: "events" });
  const options = element("div", { id: "options" });
  let cursor = -1;

  // What other kinds of jobs never have.
  const ofTraining = [element("section", {}, element("div", { class: "bar" }, element("h2", {}, "Curves"), controls), panels)];
  const parts = [head, tiles, ...ofTraining, comparison, section("Allocation and speed", life), section("Log", element("div", { class: "card" }, log)),
    section("Events", happened), section("Options that are not the default", options)];
  root.replaceChildren(...parts);
  life.append(held.box);

  // ---- the head
  function showHead() {
    const actions = actionsOf(job), until = job.ended || now();
    const wish = wishOf(job) && `${wishOf(job)} is asked for`;
    for (const part of ofTraining) part.hidden = job.kind !== "train";
    const { device_seconds: _, serving, ...same } = job;
    redraw(head, JSON.stringify([same, serving && serving.address, actions]), () => [element("div", { class: "bar" },
      element("div", { class: "title" }, element("h1", {}, `#${job.id} ${job.name}`), phaseChip(job.phase),
        element("span", { class: "muted" }, wish)),
      element("div", { class: "row", id: "actions" }, ...actions.map(([what, label, danger]) =>
        element("button", { type: "button", ...(danger ? { class: "danger" } : {}), onclick: () => actOnJob(what, job) }, label)),
      element("button", { type: "button", onclick: chooseOther }, "Compare"),
      ...(maySubmit(job.kind) ? [element("a", { href: `#/submit?like=${job.id}` }, "Submit another")] : []))),
    element("p", { class: "about", id: "reason" }, job.why || job.reason),
    element("p", { class: "about muted" }, `${job.kind} of ${job.owner}${job.team ? `, team ${job.team}` : ""}, tier ${job.tier}; `
      + `submitted ${clock(job.submitted)}${job.started ? `, started ${clock(job.started)}` : ""}`
      + `${job.ended ? `, ended ${clock(job.ended)}` : ""}${job.run ? `; run directory ${job.run}` : ""}`),
    ...(isLive(job) && job.after && job.after.length ? [element("p", { class: "about", id: "after" }, "It begins after ",
      ...job.after.flatMap((id, i) => [i ? ", " : "", jobLink(id)]))] : []),
    ...(serving ? [element("p", { class: "about", id: "address" }, "It answers at ", element("code", {}, serving.address))] : [])]);
    const places = Object.entries(job.holdings).map(([node, n]) => `${n} of ${node}`).join(", ");
    tiles.replaceChildren(
      tile("Devices", String(Object.values(job.holdings).reduce((sum, n) => sum + n, 0)),
        (places || (isLive(job) ? `wants ${job.min_devices} to ${job.max_devices}` : "")) + pipelines()),
      tile("Device time", deviceTime(job.device_seconds), "what it cost so far"),
      tile("Waited", since(job.submitted, job.started || until)),
      tile("Since it started", job.started ? since(job.started, until) : "not started"),
      ...(job.kind === "serve" ? servingTiles(serving) : job.kind === "train" ? [stepsTile(), ...goodputTile(), bestTile()] : []));
  }

  // Of a job by stages: whole pipelines are what it is given.
  function pipelines() {
    const known = job.stages;
    if (!known) return "";
    if (known.least === 0) return "; its stages take turns";
    return known.plans > 1 ? `; one of ${known.plans} plans` : `; ${known.pipelines} of ${known.devices} in its plan`;
  }

  // Of a job whose batch follows its goodput.
  function goodputTile() {
    const known = goodput(events);
    return known ? [tile("Goodput", ...known)] : [];
  }

  // What comes to a service, while it runs.
  function servingTiles(serving) {
    if (!serving) return [tile("Requests", "none now")];
    return [tile("Requests per second", serving.requests_per_second.toPrecision(3),
      serving.replica_requests_per_second ? `a replica takes ${serving.replica_requests_per_second.toPrecision(3)}` : ""),
    tile("Answered", withThousands(serving.answered), `${counted(serving.replicas, "replica")}${replicaPlaces(serving)}, ${counted(serving.waiting, "request")} ${serving.waiting === 1 ? "waits" : "wait"}`)];
  }

  // Where they answer, where there are several nodes.
  function replicaPlaces(serving) {
    const places = Object.entries(serving.nodes || {}).map(([node, n]) => `${n} on ${node}`);
    return places.length ? ` (${places.join(", ")})` : "";
  }

  // How far it is: what its metrics say, or what was counted with its speed.
  function stepsTile() {
    const noted = events.filter(event => event.kind === "speed").map(event => event.body);
    const last = noted[noted.length - 1];
    const steps = Math.max(curves ? curves.steps : 0, last ? last.step : 0);
    const total = last && last.total_steps > 0 ? last.total_steps : 0;
    const note = curves && curves.epoch ? `epoch ${curves.epoch.toFixed(2)}` : "";
    if (!steps) return tile("Steps", "none yet");
    return tile("Steps", withThousands(steps), total ? `${Math.floor(100 * Math.min(1, steps / total))} % of ${withThousands(total)}` : note);
  }

  // What was submitted, as far as it differs from the defaults.
  async function readOptions() {
    const answer = job.kind === "train" ? await get(`/v1/jobs/${job.id}/options`).catch(() => null) : null;
    const rows = answer ? answer.changed.map(name => [name, answer.options[name]]) : chosen(job.spec || {});
    options.replaceChildren(rows.length === 0 ? element("p", { class: "empty" }, "Every option has its default.")
      : table("options", [["Option"], ["Value"]], rows.map(([name, value]) => [element("code", {}, name), element("code", {}, value)])));
  }

  // The test accuracy, or whatever comes first.
  function bestTile() {
    const list = curves ? curves.panels : [];
    const panel = list.find(p => p.title.toLowerCase().includes("accuracy")) || list[0];
    const series = panel && (panel.series.find(s => s.name === "test") || panel.series[0]);
    const values = series ? series.value.filter(v => v !== null) : [];
    if (!values.length) return tile("Result", "none yet");
    const best = panel.unit === "percent" ? Math.max(...values) : values[values.length - 1];
    return tile(panel.unit === "percent" ? `Best ${series.name} accuracy` : `Last ${panel.title.toLowerCase()}`,
      panel.unit === "percent" ? `${(100 * best).toFixed(2)} %` : best.toPrecision(4));
  }

  // ---- curves
  function makeControls() {
    const slider = element("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: axis.smoothing,
      "aria-label": "smoothing", oninput: event => {
        axis.smoothing = Number(event.target.value);
        drawCurves();
      } });
    const along = choice([["step", "Steps"], ["epoch", "Epochs"], ["seconds", "Time"]], () => axis.x, value => {
      axis.x = value;
      group.hover = null;
      drawCurves();
      group.zoom(null);
    });
    along.setAttribute("aria-label", "along");
    controls.replaceChildren(group.button, along, element("label", {}, "Smoothing", slider),
      element("label", {}, element("input", { type: "checkbox", onchange: event => {
        axis.log = event.target.checked;
        drawCurves();
      } }), "Logarithmic loss"));
  }

  // Panels of this job, each with the other one's curves of the same title.
  function drawCurves() {
    if (!curves || !curves.panels.length) return panels.replaceChildren(element("p", { class: "empty" },
      job && job.started ? "No metrics yet." : "It has not started."));
    const titles = curves.panels.map(panel => panel.title).join("\n");
    if (drawn !== titles) {
      drawn = titles;
      group.charts.length = 0;
      charts = curves.panels.map(panel => lineChart(group, { ...panel, last: true }));
      panels.replaceChildren(...charts.map(chart => chart.box));
    }
    const beside = panel => other && other.curves ? other.curves.panels.filter(p => p.title === panel.title)
      .flatMap(p => p.series.map(s => ({ ...s, name: `#${other.job.id} ${s.name}`, beside: true }))) : [];
    const all = curves.panels.map(panel => [...panel.series, ...beside(panel)]);
    let [lo, hi] = extent(all.flat().map(s => s[axis.x]));
    if (lo > hi) [lo, hi] = [0, 1];
    if (lo > 0 && lo < hi * 0.2) lo = 0;
    if (lo === hi) [lo, hi] = [lo - 0.5, hi + 0.5];
    const marks = (curves.marks || []).filter(m => m[axis.x] !== undefined && m.tone !== "plain" && m.kind !== "end")
      .map(m => ({ x: Math.min(Math.max(m[axis.x], lo), hi), tone: m.tone, text: m.text }));
    charts.forEach((chart, i) => chart.show({ series: all[i].map((s, k) => ({ name: s.name, smooth: s.smooth,
      x: s[axis.x], y: s.value, color: s.beside ? 4 + k : s.name === "test" ? 1 : k })),
    x: { unit: kUnits[axis.x], lo, hi }, log: axis.log, smoothing: axis.smoothing, marks }));
    return undefined;
  }

  function drawLife() {
    const { x, y } = devicesOverTime(events, job.submitted, job.ended || now());
    held.show({ series: [{ name: "", x, y }], x: { unit: "duration", lo: 0, hi: Math.max(x[x.length - 1], 1) } });
    const { measured, model } = speeds(events);
    if (!measured.x.length) return;
    if (!speed.box.isConnected) life.append(speed.box);
    const series = [{ name: "measured", color: 1, ...measured }];
    if (model) series.push({ name: "model", color: 0, ...model });
    const most = Math.max(...series.flatMap(s => s.x));
    speed.show({ series, x: { unit: "count", lo: 1, hi: Math.max(most, 2) } });
  }

  // There is none of that number or name, or it was removed from the store.
  function showMissing(why) {
    missing = true;
    root.replaceChildren(element("h1", {}, `Job ${name}`), element("p", { class: "banner", id: "missing" }, why),
      element("p", {}, element("a", { href: "#/jobs" }, "All jobs that are known")));
  }

  // ---- beside another job
  function chooseOther() {
    dialog("Compare with another job", close => {
      const list = [...state.jobs.values()].filter(j => j.id !== job.id).sort((a, b) => b.id - a.id);
      const which = element("input", { type: "search", list: "others", "aria-label": "a job's number", required: "" });
      return [element("form", { method: "dialog", onsubmit: event => {
        event.preventDefault();
        const number = which.value.trim().replace(/^#/, "").split(" ")[0];
        close();
        location.hash = `#/job/${job.id}?with=${encodeURIComponent(number)}`;
      } }, element("p", { class: "fields" }, element("label", {}, "Job", which)),
      element("datalist", { id: "others" }, ...list.slice(0, 500).map(j =>
        element("option", { value: String(j.id) }, `#${j.id} ${j.name}`))),
      element("div", { class: "buttons" }, element("button", { type: "button", onclick: close }, "Close"),
        element("button", { type: "submit", class: "main" }, "Compare")))];
    });
  }

  // By name: of a training job all options, of another one what was submitted.
  async function optionsOf(one) {
    if (one.kind === "train") return (await get(`/v1/jobs/${one.id}/options`)).options;
    return Object.fromEntries(Object.entries(one.spec).map(([key, value]) => [key, JSON.stringify(value)]));
  }

  async function readOther(which) {
    const id = encodeURIComponent(which);
    try {
      const itsJob = await get(`/v1/jobs/${id}`);
      const [mine, its] = await Promise.all([optionsOf(job), optionsOf(itsJob)]);
      other = { job: itsJob, curves: itsJob.run ? (await get(`/v1/jobs/${id}/curves`)).curves : null };
      const rows = differences(mine, its);
      comparison.replaceChildren(section(`Beside #${itsJob.id} ${itsJob.name}`, rows.length === 0
        ? element("p", { class: "empty" }, "All their options are the same.")
        : table("options that differ", [["Option"], [`#${job.id}`], [`#${itsJob.id}`]], rows.map(([option, a, b]) =>
          [element("code", {}, option), element("code", {}, a), element("code", {}, b)])),
      element("p", { class: "note-text row" }, jobLink(itsJob.id, `Open #${itsJob.id}`),
        element("a", { href: `#/job/${job.id}` }, "Stop comparing"))));
      drawCurves();
    } catch (error) {
      comparison.replaceChildren(element("p", { class: "banner" }, error.message));
    }
  }

  // ---- reading
  async function readLog() {
    const part = await get(`/v1/jobs/${job.id}/log${cursor < 0 ? "" : `?from=${cursor}`}`);
    if (!alive || (part.text === "" && cursor >= 0)) return;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 24;
    const text = (cursor < 0 ? "" : log.textContent) + part.text;
    cursor = part.next;
    log.textContent = text.slice(-kKeptLog) || "It has printed nothing.";
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  async function readEvents() {
    while (true) {
      const after = events.length ? events[events.length - 1].seq : 0;
      const page = await get(`/v1/events?job=${job.id}&after=${after}&limit=1000`);
      events = [...events, ...page.events];
      if (page.events.length < 1000) return;
    }
  }

  let reading = false;
  async function read() {
    if (reading) return;
    reading = true;
    try {
      job = await get(`/v1/jobs/${encodeURIComponent(name)}`);
      if (!alive) return;
      if (missing) root.replaceChildren(...parts);
      missing = false;
      await readEvents();
      if (job.run) {
        const answer = await get(`/v1/jobs/${job.id}/curves?known=${encodeURIComponent(version)}`);
        version = answer.version;
        if (answer.curves) curves = answer.curves;
        await readLog();
      } else {
        log.textContent = "It has printed nothing.";
      }
      if (!alive) return;
      if (!controls.firstChild) {
        makeControls();
        readOptions();
      }
      showHead();
      drawCurves();
      drawLife();
      redraw(happened, String(events.length), () =>
        [table("events of this job", [["Time"], ["Kind"], ["What happened"]], eventRows(events, false), "log")]);
      if (query.get("with") && !other) await readOther(query.get("with"));
    } catch (error) {
      if (alive && !job && (error.status === 404 || error.status === 410)) showMissing(error.message);
      else if (alive && error.status && error.status !== 401) head.replaceChildren(element("h1", {}, "Job"), element("p", { class: "banner" }, error.message));
    } finally {
      reading = false;
    }
  }

  read();
  const timer = setInterval(() => {
    if (!document.hidden && !missing && (!job || isLive(job))) read();
  }, 3000);
  return {
    heard: what => { if (what === "jobs" || what === "online") read(); },
    key: key => {
      const wanted = { p: ["pause", "resume"], r: ["resize"], w: ["reload"], x: ["cancel"] }[key];
      const found = job && wanted && actionsOf(job).find(([what]) => wanted.includes(what));
      if (found) actOnJob(found[0], job);
      return Boolean(found);
    },
    end: () => {
      alive = false;
      clearInterval(timer);
    },
  };
}
