// The first page: how full the cluster is, who holds what over time, what waits and why.
"use strict";

import { actOnNode, isAdmin } from "./actions.js";
import { drainText, hardwareText, lanes } from "./figures.js";
import { clock, element, jobLink, now, redraw, section, since, table, tile } from "./parts.js";
import { get, state } from "./service.js";

const { chartGroup, choice, timeline } = globalThis.ductile;
/** @type {[any, string][]} */
const kWindows = [[600, "10 min"], [3600, "1 h"], [21600, "6 h"], [86400, "1 day"]];

export function clusterPage(root) {
  let seconds = 600, spans = [], asOf = now(), alive = true;
  const tiles = element("div", { class: "tiles", style: "--per-row: 5" });
  const chartBox = element("div", { id: "timeline" });
  const nodes = element("div", { id: "nodes" });
  const waiting = element("div", { id: "waiting" });
  const windows = choice(kWindows, () => seconds, value => {
    seconds = value;
    read();
  });
  windows.setAttribute("aria-label", "how far back");
  const heading = element("div", { class: "bar" }, element("h2", {}, "Who held what"),
    element("div", { class: "controls" }, windows));
  root.replaceChildren(element("h1", {}, "Cluster"), tiles,
    element("section", {}, heading, chartBox), section("Nodes", nodes),
    section("Waiting", waiting));

  function drawTimeline() {
    const known = state.overview ? state.overview.nodes : [];
    const total = known.reduce((sum, node) => sum + node.devices, 0);
    if (!total) return chartBox.replaceChildren(element("p", { class: "empty" }, "No node is known."));
    // Where nothing was held at first, that time is left out.
    const begins = Math.min(...spans.map(s => s.from), asOf);
    const from = Math.max(asOf - seconds, Math.min(begins, asOf - seconds / 20));
    const name = id => state.jobs.has(id) ? state.jobs.get(id).name : "a job";
    const group = chartGroup();
    const chart = timeline(group, { title: "Devices by node", tallest: 22, label:
      `Which job held which device, ${clock(from)} to ${clock(asOf)}; the table of jobs says the same of now`,
      rows: known.map(node => [node.node, node.devices]),
      bars: lanes(spans, known, asOf).filter(bar => bar[3] > from),
      color: id => id, tick: clock,
      text: ([, rows, begin, end, id]) => `#${id} ${name(id)}: ${rows} of its devices, ${clock(begin)} to ` +
        `${end >= asOf ? "now" : clock(end)}`,
      marks: [], x: { lo: from, hi: asOf },
      choose: bar => { location.hash = `#/job/${bar[4]}`; } });
    chartBox.replaceChildren(chart.box);
    chart.draw();
  }

  async function read() {
    try {
      const answer = await get(`/v1/allocations?since=${Math.floor(now() - seconds)}`);
      if (!alive) return;
      spans = answer.spans;
      asOf = answer.now;
      drawTimeline();
    } catch { /* the line at the top says that the service is away */ }
  }

  function show() {
    const overview = state.overview;
    if (!overview) return;
    const all = overview.nodes.reduce((sum, n) => sum + n.devices, 0);
    const used = overview.nodes.reduce((sum, n) => sum + n.used, 0);
    const count = phase => overview.jobs[phase] || 0;
    if (!chartBox.firstChild) drawTimeline();  // what is below does not move when the answer comes
    redraw(tiles, JSON.stringify([used, all, overview.jobs, overview.policy]), () => [
      tile("Devices in use", `${used} of ${all}`, all ? `${Math.round(100 * used / all)} %` : ""),
      tile("Running", String(count("running"))), tile("Queued", String(count("queued")),
        count("paused") ? `and ${count("paused")} paused` : ""),
      tile("Failed", String(count("failed")), `of ${count("failed") + count("finished") + count("cancelled")} that ended`),
      tile("Policy", overview.policy || "none")]);
    redraw(nodes, JSON.stringify([overview.nodes, overview.role]), () => [
      table("nodes", [["Node"], ["Type"], ["State"], ["In use", true], ["Hardware"], ["Holders"], ["Actions"]],
        overview.nodes.map(node => [node.node, node.type, stateOf(node), `${node.used} of ${node.devices}`,
          hardwareText(node), holders(node), nodeAction(node)]))]);
    const queued = [...state.jobs.values()].filter(job => job.phase === "queued")
      .sort((a, b) => a.id - b.id);
    const rows = queued.slice(0, 8).map(job => [job.id, job.name, job.min_devices === job.max_devices
      ? `${job.min_devices}` : `${job.min_devices} to ${job.max_devices}`, since(job.submitted, now()), job.reason]);
    redraw(waiting, JSON.stringify([rows, queued.length > 8 && count("queued")]), () => queued.length === 0
      ? [element("p", { class: "empty" }, "No job waits.")]
      : [table("jobs that wait", [["Job"], ["Wants", true], ["Since", true], ["Why"]], rows.map(([id, name, ...rest]) =>
        [jobLink(id, `#${id} ${name}`), ...rest])),
      ...(queued.length > 8 ? [element("p", { class: "note-text" },
        element("a", { href: "#/jobs?phase=queued" }, `All ${count("queued")} that wait`))] : [])]);
  }

  function stateOf(node) {
    const look = node.state === "up" ? "good" : node.state.startsWith("drain") ? "notice" : "bad";
    const out = element("span", { class: "row" }, element("span", { class: `kind ${look}` }, node.state));
    if (node.state !== "up" && node.reason) out.append(node.reason);
    const drain = drainText(node, clock);
    if (drain) out.append(element("span", { class: "muted" }, drain));
    return out;
  }

  function holders(node) {
    const known = node.jobs;
    if (!known.length) return "none";
    const out = element("span", { class: "holders" });
    for (const { job, name, devices, gpus } of known.slice(0, 12)) {
      out.append(element("span", {}, jobLink(job, `#${job} ${name}`), ` ${devices}`,
        gpus ? ` and ${gpus} GPU${gpus === 1 ? "" : "s"}` : ""));
    }
    if (known.length > 12) out.append(element("span", {}, `and ${known.length - 12} more`));
    return out;
  }

  function nodeAction(node) {
    const what = node.drained || node.drain_starts ? "Take back" : "Drain";
    return isAdmin() ? element("button", { type: "button", onclick: () => actOnNode(node),
      "aria-label": `${what} ${node.node}` }, what) : "";
  }

  show();
  read().then(show);
  const timer = setInterval(() => { if (!document.hidden) read(); }, 5000);
  return { heard: what => { if (what === "jobs") { show(); read().then(show); } },
    end: () => {
      alive = false;
      clearInterval(timer);
    } };
}
