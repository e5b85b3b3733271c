// What the form of a new job means: pure functions between its texts and what the service takes.
"use strict";

const kMostMembers = 1000;
const kMostIndex = 2 ** 53;

/**
 * The words of a command line as a shell reads them: quotes, and backslashes. Nothing is expanded.
 * Throws for a quote that is not closed.
 */
export function wordsOf(text) {
  const out = [];
  let word = "", begun = false, quote = "";
  for (let i = 0; i < text.length; ++i) {
    const c = text[i];
    if (quote) {
      if (c === quote) quote = "";
      else if (c === "\\" && quote === "\"" && i + 1 < text.length && "\"\\$`".includes(text[i + 1])) word += text[++i];
      else word += c;
    } else if (/\s/.test(c)) {
      if (begun) out.push(word);
      word = "";
      begun = false;
    } else {
      begun = true;
      if (c === "'" || c === "\"") quote = c;
      else word += c === "\\" && i + 1 < text.length ? text[++i] : c;
    }
  }
  if (quote) throw new Error(`the command has a ${quote} that is not closed`);
  if (begun) out.push(word);
  return out;
}

/** The other way round: wordsOf(lineOf(words)) are the words. */
export const lineOf = words => words.map(word =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`).join(" ");

/** The numbers of an array, as `ductile submit --array` reads them: 0-9, 1,3,5 or 10-30:2. */
export function indicesOf(text) {
  const wrong = () => new Error(`array "${text}": up to ${kMostMembers} different numbers from 0 on are wanted, `
    + "such as 0-9, 1,3,5 or 10-30:2");
  const out = new Set();
  for (const part of text.split(",")) {
    const known = /^(\d+)(?:-(\d+))?(?::(\d+))?$/.exec(part.trim());
    if (!known) throw wrong();
    const first = Number(known[1]), last = Number(known[2] ?? known[1]), step = Number(known[3] ?? 1);
    if (last < first || step < 1 || last > kMostIndex) throw wrong();
    for (let index = first; index <= last; index += step) {
      if (out.has(index) || out.size === kMostMembers) throw wrong();
      out.add(index);
    }
  }
  return [...out].sort((a, b) => a - b);
}

/** Numbers of jobs, with or without #, between them commas or spaces. */
export function jobsOf(text) {
  return text.split(/[\s,]+/).filter(Boolean).map(word => {
    if (!/^#?\d+$/.test(word)) throw new Error(`"${word}": jobs that come first are named by their numbers, such as 17, 18`);
    return Number(word.replace("#", ""));
  });
}

/** NAME=VALUE lines as an object. */
export const variablesOf = text => Object.fromEntries(text.split("\n").filter(one => one.trim()).map(line => {
  const equals = line.indexOf("=");
  if (equals < 1) throw new Error(`"${line}": a variable is written as NAME=VALUE, each on a line of its own`);
  return [line.slice(0, equals).trim(), line.slice(equals + 1)];
}));

/** A job file of these options: [path, value as TOML] of each. Those of one section stand together. */
export function jobFileOf(options) {
  const sections = new Map([["", []]]);
  for (const [path, value] of options) {
    const dot = path.lastIndexOf("."), section = path.slice(0, Math.max(0, dot));
    if (!sections.has(section)) sections.set(section, []);
    sections.get(section).push(`${path.slice(dot + 1)} = ${value}`);
  }
  return [...sections].filter(([, lines]) => lines.length)
    .map(([section, lines]) => `${section ? `[${section}]\n` : ""}${lines.join("\n")}\n`).join("\n");
}

/** What people leave empty in the form. */
export const kNothing = { kind: "train", name: "", team: "", tier: "standard", least: "1", most: "", job: "", command: "",
  directory: "", environment: "", retries: "", limit: "", grace: "", gpus: "", run: "", version: "", follow: false,
  batch: "", target: "", port: "", rest: {}, plans: /** @type {any[]} */ ([]), region: "", transfer: "", stay: false,
  after: "", held: false, array: "" };

const number = (text, what, least) => {
  const value = Number(text);
  if (!text.trim() || !Number.isFinite(value) || value < least) throw new Error(`${what} = "${text}": a number from ${least} on is wanted`);
  return value;
};
const whole = (text, what, least) => {
  const value = number(text, what, least);
  if (!Number.isSafeInteger(value)) throw new Error(`${what} = "${text}": a whole number is wanted`);
  return value;
};
// Nothing where nothing was written.
const given = (key, text, read) => text.trim() ? { [key]: read(text.trim()) } : {};

function specOf(form, index) {
  if (form.kind === "train") {
    if (!form.job.trim()) throw new Error("the job file is empty");
    return { job: index === undefined ? form.job : form.job.replaceAll("{index}", String(index)),
      ...(form.plans.length ? { plans: form.plans } : {}) };
  }
  if (form.kind === "command") {
    const environment = variablesOf(form.environment);
    if (index !== undefined) environment.DUCTILE_ARRAY_INDEX = String(index);
    return { command: wordsOf(form.command), directory: form.directory.trim(), environment,
      ...given("retries", form.retries, text => whole(text, "starts after a failure", 0)),
      ...given("time_limit", form.limit, text => 60 * number(text, "time limit", 0)),
      ...given("grace", form.grace, text => number(text, "time to save", 0)),
      ...given("gpus", form.gpus, text => whole(text, "GPUs", 0)) };
  }
  // As the command line calls it: what addresses have.
  const model = (form.name.trim() || "model").replace(/[^A-Za-z0-9._-]/g, "_");
  return { ...form.rest, run: form.run.trim(), model, follow: form.follow,
    ...given("version", form.version, text => whole(text, "weights of step", 0)),
    ...given("max_batch", form.batch, text => whole(text, "samples at once", 1)),
    ...given("target", form.target, text => number(text, "seconds for an answer", 0.001)),
    ...given("port", form.port, text => whole(text, "port", 1)) };
}

/**
 * The body of POST /v1/jobs. Throws with a sentence that says what is wrong, and what would be right.
 * @returns {any}
 */
export function submissionOf(form) {
  const least = whole(form.least || "1", "devices", 1);
  const most = form.kind === "command" ? least : form.most.trim() ? whole(form.most, "most devices", 1) : least;
  if (most < least) throw new Error(`most devices = ${most}: fewer than the least, ${least}`);
  const after = jobsOf(form.after);
  const out = { ...given("name", form.name, text => text), ...given("team", form.team, text => text), tier: form.tier,
    kind: form.kind, min_devices: least, max_devices: most, ...(after.length ? { after } : {}),
    ...(form.held ? { held: true } : {}) };
  if (form.region.trim()) {
    Object.assign(out, { region: form.region.trim(), movable: !form.stay,
      ...given("transfer", form.transfer, text => 60 * number(text, "time to move its data", 0)) });
  }
  if (!form.array.trim()) return { ...out, spec: specOf(form, undefined) };
  if (form.kind === "serve") throw new Error("an array is of training jobs or commands, and not of services");
  if (form.kind === "train" && !form.job.includes("{index}")) {
    throw new Error("no line of the job file has {index} in it, so all jobs of the array would be the same, "
      + "as with seed = {index} they would not");
  }
  return { ...out, array: indicesOf(form.array.trim()).map(index => ({ index, spec: specOf(form, index) })) };
}

/** What is about to be submitted, in a sentence. */
export function submissionText(body) {
  const one = { train: "training job", command: "command", serve: "service" }[body.kind];
  const name = body.name || "job", members = body.array || [];
  const what = members.length === 0 ? `The ${one} "${name}"` : members.length === 1 ? `The ${one} "${name}-${members[0].index}"`
    : `${members.length} ${one}s, "${name}-${members[0].index}" to "${name}-${members[members.length - 1].index}",`;
  const [least, most] = [body.min_devices, body.max_devices];
  const each = members.length > 1 ? " each" : "";
  return `${what} on ${least === most ? "" : `${least} to `}${most} ${most === 1 ? "device" : "devices"}${each}, tier ${body.tier}.`
    + (body.after ? ` To begin after ${body.after.map(id => `#${id}`).join(", ")}.` : "")
    + (body.held ? " To begin when somebody resumes it." : "");
}

/**
 * The form that submits a job like this one: what `GET /v1/jobs/{job}` answered. `options`: of a training job what
 * `GET /v1/jobs/{job}/options` answered. Of variables with several lines nothing stands in it. Plans of stages are kept
 * as they came.
 */
export function formOf(job, options = undefined) {
  const spec = job.spec || {};
  const text = value => value === undefined || value === null || value === 0 ? "" : String(value);
  const out = { ...kNothing, kind: job.kind, name: job.name, team: job.team, tier: job.tier, least: String(job.min_devices),
    most: String(job.max_devices), region: job.region || "", transfer: job.transfer ? String(job.transfer / 60) : "",
    stay: job.movable === false };
  if (job.kind === "train") {
    out.job = options ? jobFileOf(options.changed.map(path => [path, options.options[path]])) : spec.job || "";
    if (!out.job) out.job = "# every option has its default\n";
    out.plans = spec.plans || [];
  } else if (job.kind === "command") {
    Object.assign(out, { command: lineOf(spec.command), directory: spec.directory, environment:
      Object.entries(spec.environment || {}).filter(([name, value]) => name !== "DUCTILE_ARRAY_INDEX" && !value.includes("\n"))
        .map(([name, value]) => `${name}=${value}\n`).join(""),
    retries: text(spec.retries), limit: spec.time_limit ? String(spec.time_limit / 60) : "",
    grace: spec.grace === undefined ? "" : String(spec.grace), gpus: text(spec.gpus) });
  } else {
    Object.assign(out, { run: spec.run, follow: Boolean(spec.follow), batch: text(spec.max_batch), target: text(spec.target),
      port: text(spec.port), version: spec.version === undefined || spec.version === null ? "" : String(spec.version),
    rest: Object.fromEntries(Object.entries(spec).filter(([key]) => ["max_waiting", "max_delay"].includes(key))) });
  }
  return out;
}
