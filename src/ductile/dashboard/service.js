// What the page knows of the service, kept up to date: requests, the stream of events, the jobs.
"use strict";

import { searchOf } from "./figures.js";

const kKey = "ductile-key";
const kPage = 1000;        // jobs of one request
const kRecent = 200;       // jobs of each way to end, which the list begins with
const kKeptEvents = 500;
const kSettle = 400;       // milliseconds in which changes are gathered
const kWaiting = 30000;    // between two looks at those that wait
const kCrowded = 10000;    // where there are more pages than streams of events

export class Failure extends Error {
  /** @param {number} status @param {string} text */
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** @type {{ jobs: Map<number, any>, overview: any, events: any[], online: boolean, login: boolean,
 *           paths: Set<string> }} */
export const state = { jobs: new Map(), overview: null, events: [], online: true, login: false,
  paths: new Set() };

/** @type {Set<(what: string) => void>} */
const listeners = new Set();
/** Calls `hear` with "jobs", "events", "online" or "login" whenever that changed. */
export function listen(hear) {
  listeners.add(hear);
  return () => listeners.delete(hear);
}
const tell = what => {
  for (const hear of [...listeners]) hear(what);
};

function setOnline(online) {
  if (state.online === online) return;
  state.online = online;
  tell("online");
}
function setLogin(login) {
  if (state.login === login) return;
  state.login = login;
  tell("login");
}

// ---- requests
async function send(path, options = {}) {
  const key = localStorage.getItem(kKey);
  let answer;
  try {
    answer = await fetch(path, { ...options, cache: "no-store", credentials: "same-origin",
      headers: { ...options.headers, ...(key ? { "X-Ductile-Key": key } : {}) } });
  } catch (error) {
    if (error.name !== "AbortError") setOnline(false);
    throw new Failure(0, "the service does not answer");
  }
  if (answer.status === 401 && path !== "/login") setLogin(true);
  if (!answer.ok) {
    const known = await answer.json().catch(() => ({}));
    throw new Failure(answer.status, known.error || `the service answered with ${answer.status}`);
  }
  setOnline(true);
  return answer;
}

export async function get(path) {
  return (await send(path)).json();
}

/** Carried out once for each key, though it is sent again where the answer was lost. */
export async function post(path, body = {}, key = crypto.randomUUID()) {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
  for (let tries = 1; ; ++tries) {
    try {
      return await (await send(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
    } catch (error) {
      if (error.status !== 0 || tries === 3) throw error;
      await new Promise(done => setTimeout(done, 500));
    }
  }
}

export async function login(code) {
  const { key } = await (await send("/login", { method: "POST", body: JSON.stringify({ code }) })).json();
  localStorage.setItem(kKey, key);
  setLogin(false);
}

export async function logout() {
  await send("/logout", { method: "POST" }).catch(() => {});
  localStorage.removeItem(kKey);
  setLogin(true);
}

// ---- jobs
async function listJobs(query) {
  const out = [];
  for (let before = 0; ;) {
    const page = await get(`/v1/jobs?${query}&limit=${kPage}${before ? `&before=${before}` : ""}`);
    out.push(...page.jobs);
    if (!page.before) return out;
    before = page.before;
  }
}

const isLive = job => ["queued", "running", "paused"].includes(job.phase);

// Who asks, how many jobs there are, and the nodes.
async function readOverview() {
  const [overview, { nodes }] = await Promise.all([get("/v1/overview"), get("/v1/nodes")]);
  state.overview = { ...overview, nodes: nodes.map(node => ({ ...node,
    used: node.jobs.reduce((sum, held) => sum + held.devices, 0) })) };
}

async function readAll() {
  const ends = ["finished", "failed", "cancelled"].map(phase => get(`/v1/jobs?phase=${phase}&limit=${kRecent}`));
  const [live, ...ended] = await Promise.all([listJobs("live=1"), ...ends, readOverview()]);
  const seen = new Set(live.map(job => job.id));
  const recent = ended.flatMap(page => page ? page.jobs : []);
  for (const job of [...live, ...recent]) state.jobs.set(job.id, job);
  // What has ended since, and is older than the recent ones.
  const gone = [...state.jobs.values()].filter(job => isLive(job) && !seen.has(job.id));
  const listed = new Set(recent.map(job => job.id));
  await Promise.all(gone.filter(job => !listed.has(job.id)).slice(0, 50).map(job => readJob(job.id)));
}

async function readJob(id) {
  const job = await get(`/v1/jobs/${id}`);
  state.jobs.set(id, { ...job,
    devices: Object.values(job.holdings).reduce((sum, n) => sum + n, 0) });
}

// Why a job waits changes with others, and then without an event of its own.
async function readWaiting() {
  if (document.hidden || !state.online || state.login) return;
  if (![...state.jobs.values()].some(job => job.phase === "queued")) return;
  for (const job of await listJobs("phase=queued")) {
    const known = state.jobs.get(job.id);
    if (!known || known.revision <= job.revision) state.jobs.set(job.id, job);
  }
  tell("jobs");
}

/** Jobs anywhere in the store, the newest first, of which the list shows those that have all words. */
export async function searchJobs(text) {
  const { part, number } = searchOf(text);
  const found = await get(`/v1/jobs?part=${encodeURIComponent(part)}&limit=${kPage}`);
  for (const job of found.jobs) state.jobs.set(job.id, job);
  if (number) await readJob(number).catch(() => {});  // there may be none
  tell("jobs");
  return found.jobs.length;
}

let dirty = new Set(), timer = 0, reading = false;
function touch(id) {
  dirty.add(id);
  if (!timer) timer = window.setTimeout(settle, kSettle);
}
async function settle() {
  timer = 0;
  if (reading) return;
  reading = true;
  const ids = dirty;
  dirty = new Set();
  try {
    if (ids.size > 5) await readAll();
    else {
      await Promise.all([readOverview(), ...[...ids].filter(id => id > 0).map(readJob)]);
    }
    tell("jobs");
  } catch {
    for (const id of ids) dirty.add(id);  // the stream ends, too, and reads everything when it is back
  }
  reading = false;
  if (dirty.size && state.online && !timer) timer = window.setTimeout(settle, kSettle);
}

// ---- events
/** Calls `hear` with the number and the data of each event of a stream until it ends. */
async function readStream(body, hear) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = /** @type {string} */ (parts.pop());
    for (const part of parts) {
      const data = part.split("\n").find(line => line.startsWith("data: "));
      if (data) hear(JSON.parse(data.slice(6)));
    }
  }
}

function take(event) {
  state.events.push(event);
  if (state.events.length > kKeptEvents) state.events.splice(0, state.events.length - kKeptEvents);
  touch(event.job || 0);
  tell("events");
}

/** Follows the service for ever: while it is away this asks again and again. */
export async function follow() {
  setInterval(() => readWaiting().catch(() => {}), kWaiting);  // the stream ends, too, where it fails
  let whole = 0;  // not all events up to this one are kept
  while (true) {
    let rest = 1000;
    try {
      await readAll();
      if (!state.paths.size) state.paths = new Set(Object.keys((await get("/v1/openapi.json")).paths));
      const last = state.overview.event;
      if (!state.events.length || state.events[state.events.length - 1].seq > last) {
        const old = await get("/v1/events?newest=300");
        state.events = old.events;
        whole = old.after;
        tell("events");
      }
      tell("jobs");
      const after = Math.max(whole, state.events.length ? state.events[state.events.length - 1].seq : last);
      const stream = await send(`/v1/events?after=${after}`, { headers: { Accept: "text/event-stream" } });
      await readStream(stream.body, take);
      setOnline(false);
    } catch (error) {
      if (!(error instanceof Failure)) setOnline(false);
      else if (error.status === 410) state.events = [];  // what follows them was removed meanwhile
      else if (error.status === 429) rest = kCrowded;  // to read all each second would crowd it more
    }
    while (state.login) await new Promise(done => setTimeout(done, 200));
    await new Promise(done => setTimeout(done, rest));
  }
}
