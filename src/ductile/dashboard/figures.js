// What the pages compute: pure functions of what the service answered.
"use strict";

export const isLive = job => ["queued", "running", "paused"].includes(job.phase);

const kTones = { running: "good", finished: "plain", queued: "notice", paused: "notice",
  failed: "bad", cancelled: "plain" };
export const toneOf = phase => kTones[phase] || "plain";

/** Whether each word of the text is found in what the job is called, or is its number. */
export function matches(job, text) {
  const all = `${job.name}\n${job.owner}\n${job.team}\n${job.tier}\n${job.phase}`.toLowerCase();
  return text.toLowerCase().split(/\s+/).filter(Boolean)
    .every(word => all.includes(word) || word.replace(/^#/, "") === String(job.id));
}

const kTiers = ["premium", "standard", "basic"];

/** What the service is asked for where it is to find the words: the longest that a name may have, and a number. */
export function searchOf(text) {
  const words = text.split(/\s+/).filter(Boolean);
  const number = words.map(word => word.replace(/^#/, "")).find(word => /^\d{1,15}$/.test(word));
  const part = words.filter(word => !kTiers.includes(word.toLowerCase()) && !Object.hasOwn(kTones, word.toLowerCase()) && !word.startsWith("#"))
    .sort((a, b) => b.length - a.length)[0] || "";
  return { part, number: number ? Number(number) : 0 };
}
/**
 * Of each queued job its place in line, where the policy has a line: `fifo` has one by tier and age;
 * of others it is what the reason says, as `ductile why` does, since they weigh more than that.
 */
export function places(jobs, policy) {
  const queued = jobs.filter(job => job.phase === "queued"), out = new Map();
  if (policy === "fifo") {
    const rank = job => (kTiers.indexOf(job.tier) + 3) % 3;
    queued.sort((a, b) => rank(a) - rank(b) || a.id - b.id).forEach((job, i) => out.set(job.id, i + 1));
    return out;
  }
  for (const job of queued) {
    const before = /(\d+) other waiting jobs? comes? before it/.exec(job.reason);
    if (before) out.set(job.id, Number(before[1]) + 1);
    else if (/^waits: it can start on /.test(job.reason)) out.set(job.id, 1);
  }
  return out;
}

/**
 * Bars of a timeline from spans of time: each device of a node is a row, and a job takes the lowest
 * free ones. Gives [row, rows, from, to, job] for each, times as they came.
 */
export function lanes(spans, nodes, now) {
  const bars = [];
  let first = 0;
  for (const node of nodes) {
    const free = new Array(node.devices).fill(-Infinity);  // until when a row is taken
    const own = spans.filter(s => s.node === node.node).sort((a, b) => a.from - b.from);
    for (const span of own) {
      const to = span.to === null ? now : span.to;
      if (to <= span.from) continue;
      let left = span.devices;
      for (let row = 0; row < free.length && left > 0; ++row) {
        if (free[row] > span.from) continue;
        let rows = 0;
        while (row + rows < free.length && rows < left && free[row + rows] <= span.from) {
          free[row + rows++] = to;
        }
        bars.push([first + row, rows, span.from, to, span.job]);
        left -= rows;
        row += rows - 1;
      }
    }
    first += node.devices;
  }
  return bars;
}

/** Devices that a job held over time, from its events: seconds since it was submitted. */
export function devicesOverTime(events, submitted, now) {
  const x = [0], y = [0];
  const add = (time, value) => {
    x.push(Math.max(time - submitted, x[x.length - 1]));
    y.push(value);
  };
  let ended = false;
  for (const event of events) {
    if (event.kind === "allocation") {
      add(event.time, Object.values(event.body.nodes || {}).reduce((sum, n) => sum + n, 0));
    } else if (["queued", "paused", "finished", "failed", "cancelled"].includes(event.kind)) {
      add(event.time, 0);
      ended = !["queued", "paused"].includes(event.kind);
    }
  }
  if (!ended) add(now, y[y.length - 1]);
  return { x, y };
}

/** Speeds by devices: what was measured last on each number, and what the model says of all. */
export function speeds(events) {
  const measured = new Map();
  let model = null;
  for (const event of events) {
    if (event.kind !== "speed") continue;
    measured.set(event.body.devices, event.body.samples_per_second);
    if (event.body.model && event.body.model.length) model = event.body.model;
  }
  const x = [...measured.keys()].sort((a, b) => a - b);
  // With 0 the job does not run at all, as one by stages on less than a pipeline: no speed to draw.
  const able = (model || []).map((_, i) => i + 1).filter(n => model[n - 1] > 0);
  return { measured: { x, y: x.map(n => measured.get(n)) },
    model: model && { x: able, y: able.map(n => model[n - 1]) } };
}

/** Goodput as it was noted last, of a job whose batch follows it: [value, note]; null of any other. */
export function goodput(events) {
  const noted = events.filter(event => event.kind === "speed" && event.body.efficiency !== undefined);
  if (!noted.length) return null;
  const { samples_per_second: samples, efficiency, devices } = noted[noted.length - 1].body;
  const part = `${(100 * efficiency).toFixed(0)} % of ${Math.round(samples)} samples per second on ${devices}`;
  return [`${Math.round(samples * efficiency)} per second`, part];
}

/** What is asked of a job, beyond what it already is: "pause", "cancel"; empty: nothing. */
export const wishOf = job =>
  isLive(job) && job.wish !== "run" && !(job.wish === "pause" && job.phase === "paused") ? job.wish : "";

/** "1 replica", "2 replicas". */
export const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const kDefaults = { environment: {}, retries: 0, time_limit: 0, grace: 30, gpus: 0, port: 0, version: null, follow: false,
  max_batch: 32, max_waiting: 1024, max_delay: 0, target: 0.5 };

/** What a command or a service was submitted with, where that is not the default: [name, text]. */
export function chosen(spec) {
  return Object.entries(spec).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(kDefaults[name]))
    .map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
}

/** The options that differ: [name, value of a, value of b]. */
export function differences(a, b) {
  return [...new Set([...Object.keys(a), ...Object.keys(b)])].sort()
    .filter(name => a[name] !== b[name])
    .map(name => [name, a[name] ?? "", b[name] ?? ""]);
}

/** Accounts put together by one of "team", "tier", "owner". */
export function tally(accounts, by) {
  const out = new Map();
  for (const account of accounts) {
    const name = account[by];
    if (!out.has(name)) out.set(name, { name, running: 0, queued: 0, ended: 0, devices: 0, seconds: 0 });
    const sum = out.get(name);
    for (const [phase, count] of Object.entries(account.jobs)) {
      if (phase === "running") sum.running += count;
      else if (phase === "queued" || phase === "paused") sum.queued += count;
      else sum.ended += count;
    }
    sum.devices += account.devices;
    sum.seconds += account.device_seconds;
  }
  return [...out.values()].sort((a, b) => b.seconds - a.seconds || (a.name < b.name ? -1 : 1));
}

/** What a team is entitled to, as texts: its quota, and its share. */
export function entitlement(team) {
  if (!team) return ["", ""];
  const gpus = team.gpu_quota === undefined ? "" : ` and ${team.gpu_quota} GPU${team.gpu_quota === 1 ? "" : "s"}`;
  return [team.quota === undefined ? "" : `${team.quota}${gpus}`,
    team.share === undefined ? "" : `${Number((100 * team.share).toPrecision(3))} %`];
}

/** A drain that is to come, or when one ends, in few words; `clock` says a time. */
export function drainText(node, clock) {
  if (node.drain_starts) {
    return `drains at ${clock(node.drain_starts)}${node.drain_ends ? `, until ${clock(node.drain_ends)}` : ""}`;
  }
  return node.drain_ends ? `until ${clock(node.drain_ends)}` : "";
}

/** The body that drains a node; times come as texts in minutes, and may be empty. */
export function drainBody(reason, begins, lasts) {
  const seconds = text => 60 * Number(text);
  return { reason, ...(begins.trim() ? { in: seconds(begins) } : {}), ...(lasts.trim() ? { for: seconds(lasts) } : {}) };
}

/**
 * The operations of an OpenAPI description, in its order: what each needs, and what it takes as
 * [name, where it stands, help].
 */
export function operations(api) {
  return Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, what]) => {
    const takes = what.parameters.map(p => [p.name, p.in, p.description]);
    const named = what.requestBody?.content["application/json"].schema.$ref.split("/").pop();
    const body = named ? api.components.schemas[named] : { properties: {} };
    for (const [name, field] of Object.entries(body.properties)) {
      takes.push([name, (body.required || []).includes(name) ? "body, needed" : "body", field.description]);
    }
    return { path, method: method.toUpperCase(), summary: what.summary,
      role: what.description.replace(/^Role: (\w+)\.$/, "$1"), takes };
  }));
}

/** What a node has, in few words; the GPUs that jobs may have come first. */
export function hardwareText(node) {
  const h = node.hardware;
  if (!h) return "";
  const kinds = new Map();
  for (const gpu of h.gpus) {
    const kind = gpu.trouble ? `${gpu.name} (${gpu.trouble})` : gpu.name;
    kinds.set(kind, (kinds.get(kind) || 0) + 1);
  }
  const gpus = [...kinds].map(([kind, n]) => n > 1 ? `${n} \u00d7 ${kind}` : kind);
  return [node.gpus ? `${node.free_gpus} of ${node.gpus} GPUs free` : "", ...gpus,
    `${h.cores} core${h.cores === 1 ? "" : "s"}` + (h.threads === h.cores ? "" : ` with ${h.threads} hardware threads`),
    h.numa_nodes > 1 ? `${h.numa_nodes} NUMA nodes` : "", h.trouble].filter(text => text).join(", ");
}

/** What happened, in a sentence. */
export function sentence(event) {
  const b = event.body || {};
  const held = () => Object.entries(b.nodes || {}).map(([node, n]) => `${n} of ${node}`).join(", ");
  switch (event.kind) {
    case "submitted": return `Submitted by ${b.owner}${b.after ? `, to begin after ${b.after.map(id => `#${id}`).join(", ")}` : ""}.`;
    case "after": return `#${b.finished}, after which it begins, has finished.`;
    case "allocation": return `Holds ${held() || "nothing"}. ${b.reason || ""}`;
    case "wish": return `${b.by} wants it to ${b.wish}.`;
    case "run": return `Its run directory is ${b.run}.`;
    case "speed": return `Takes ${Math.round(b.samples_per_second)} samples per second on ${b.devices}${
      b.efficiency === undefined ? "" : `, of which ${Math.round(100 * b.efficiency)} % are progress with its batch`}.`;
    case "load": return `${Number(b.requests_per_second).toPrecision(3)} requests per second on ${b.devices}.`;
    case "serving": return `${b.text}.`;
    case "reload": return `${b.by} wants it to answer with ${b.version === null ? "the newest weights" : `the weights of step ${b.version}`}.`;
    case "batch": return `Trains with a batch of ${b.batch} on ${b.devices}; before it was ${b.before}.`;
    case "devices": return `${b.by} wants it to have ${b.min_devices === b.max_devices ? "" : `${b.min_devices} to `}${b.max_devices}.`;
    case "nodes": return `The nodes are ${Object.values(b.nodes || {}).join(", ")}.`;
    case "node": return `Node ${b.node} is ${b.state}${b.why ? `: ${b.why}` : "."}`;
    case "gpu": return `GPU ${b.gpu} (${b.name}) of ${b.node}: ${b.trouble || "it is back"}.`;
    case "drain": return `Node ${b.node} is drained. ${b.reason || ""}`;
    case "undrain": return `Node ${b.node} is taken back.`;
    case "stopped": return "The service was stopped.";
    default: {
      if (b.reason) return b.reason;
      const text = JSON.stringify(b);
      return text === "{}" ? "" : text;
    }
  }
}
