// The form of a new job: what `ductile submit` takes. Nothing is sent before the question at its end.
"use strict";

import { confirm, maySubmit } from "./actions.js";
import { element, jobPath, say, section } from "./parts.js";
import { get, state } from "./service.js";
import { formOf, kNothing, submissionOf, submissionText } from "./submission.js";

const { choice } = globalThis.ductile;
/** @type {[any, string][]} */
const kKinds = [["train", "Training"], ["command", "Command"], ["serve", "Service"]];

export function submitPage(root, query) {
  let form = { ...kNothing }, alive = true;
  const heading = element("h1", {}, "Submit a job");
  if (!maySubmit()) {
    root.replaceChildren(heading, element("p", { class: "empty" }, state.overview
      ? `Your role is "${state.overview.role}", which looks at jobs; with the role "submit" you submit some.`
      : "Asking the service."));
    return { heard: () => {}, end: () => {} };
  }
  const admin = state.overview.role === "admin";
  const fault = element("p", { class: "banner", role: "alert", hidden: "" });
  const body = element("div");

  // ---- inputs, each with the text of the form that it shows
  const takes = (key, attributes, kind = "input") => {
    const input = element(kind, { id: `field-${key}`, ...attributes, oninput: () => { form[key] = input.value; } });
    input.value = form[key];
    return input;
  };
  const field = (label, input, note = "") => {
    const box = element("div", { class: "field" }, element("label", { for: input.id }, label), input);
    if (!note) return box;
    box.append(element("span", { class: "muted", id: `${input.id}-note` }, note));
    input.setAttribute("aria-describedby", `${input.id}-note`);
    return box;
  };
  const line = (key, label, note = "", more = {}) => field(label, takes(key, { type: "text", autocomplete: "off", ...more }), note);
  const count = (key, label, note = "", more = {}) => field(label, takes(key, { type: "number", min: 0, ...more }), note);
  const lines = (key, label, note, rows) => field(label, takes(key, { rows, spellcheck: "false" }, "textarea"), note);
  const tick = (key, label) => {
    const input = element("input", { type: "checkbox", id: `field-${key}`, ...(form[key] ? { checked: "" } : {}),
      onchange: () => { form[key] = input.checked; } });
    return element("p", {}, element("label", {}, input, label));
  };
  const tiers = () => {
    const input = element("select", { id: "field-tier", onchange: () => { form.tier = input.value; } },
      ...["premium", "standard", "basic"].filter(tier => admin || tier !== "premium").map(tier => element("option", {}, tier)));
    input.value = form.tier;
    if (!input.value) input.value = form.tier = "standard";  // of somebody else's job
    return field("Tier", input, admin ? "" : "an admin submits jobs of tier premium");
  };

  // A job file from this machine, whose text is then looked at.
  const chooser = () => {
    const input = element("input", { type: "file", id: "field-file", accept: ".toml", onchange: async () => {
      const chosen = input.files[0];
      if (!chosen) return;
      form.job = await chosen.text();
      form.plans = [];  // of another job
      if (alive) draw();
    } });
    return field("Read a file of yours", input);
  };

  // What the job came with says how it is cut, whatever its file says of that.
  const plans = () => form.plans.length === 0 ? [] : [element("p", { class: "muted", id: "plans" },
    `By ${form.plans.length === 1 ? "the plan" : `one of the ${form.plans.length} plans`} of stages that this job came with.`)];

  const what = {
    train: () => [...plans(), lines("job", "Job file", "TOML, as `ductile config` explains it. Paths in it are those of "
      + "the service's machine: write them from /.", 12), chooser()],
    command: () => [line("command", "Command", "with quotes as in a shell, which does not see it: $ and * mean themselves",
      { required: "" }),
    line("directory", "Its folder", "on the service's machine, from /", { required: "" }),
    lines("environment", "Variables", "NAME=VALUE, each on a line of its own", 3),
    element("div", { class: "fields" }, count("retries", "Starts after a failure"), count("gpus", "GPUs of one node"),
      count("limit", "Time limit (minutes)", "", { step: "any" }), count("grace", "Time to save (seconds)", "", { step: "any" }))],
    serve: () => [line("run", "Run", "its directory on the service's machine, or the number of a job: #17", { required: "" }),
      element("div", { class: "fields" }, count("version", "Weights of step", "empty: the newest"), count("batch", "Samples at once"),
        count("target", "Seconds for an answer", "", { step: "any" }), count("port", "Port")),
      tick("follow", "Take newer weights as soon as they are there")],
  };

  function draw() {
    const kinds = choice(kKinds.filter(([kind]) => admin || kind !== "command"), () => form.kind, kind => {
      form.kind = kind;
      draw();
      /** @type {any} */ (body.querySelector(".choice [aria-pressed=true]"))?.focus();
    });
    kinds.setAttribute("aria-label", "what kind of job");
    const regions = new Set(state.overview.nodes.map(node => node.region));
    body.replaceChildren(element("form", { onsubmit: event => {
      event.preventDefault();
      ask();
    } }, section("What runs", element("div", { class: "card" }, kinds, ...what[form.kind]())),
    section("Who it is, and how much it takes", element("div", { class: "card" }, element("div", { class: "fields" },
      line("name", "Name", "", { maxlength: 200 }), line("team", "Team", "", { maxlength: 200 }), tiers()),
    element("div", { class: "fields" }, count("least", form.kind === "command" ? "Devices" : "Least devices", "", { min: 1 }),
      ...(form.kind === "command" ? [] : [count("most", "Most devices", "empty: the least", { min: 1 })])),
    ...(regions.size < 2 ? [] : [element("div", { class: "fields" }, line("region", "Region of its data"),
      count("transfer", "Time to move them (minutes)", "", { step: "any" })), tick("stay", "It runs in that region alone")]))),
    section("When it begins", element("div", { class: "card" }, element("div", { class: "fields" },
      line("after", "After these jobs", "numbers; it is cancelled if one of them does not finish"),
      ...(form.kind === "serve" ? [] : [line("array", "One for each of these numbers",
        form.kind === "train" ? "0-9, 1,3,5 or 10-30:2; {index} in the job file becomes it"
          : "0-9, 1,3,5 or 10-30:2; DUCTILE_ARRAY_INDEX says which")])),
    tick("held", "Hold: it begins when somebody resumes it"))),
    fault, element("div", { class: "buttons" }, element("button", { type: "submit", class: "main" }, "Submit"))));
  }

  // ---- sending
  // The directory of a job's run, where its number was written.
  async function runOf(text) {
    const known = /^#?(\d+)$/.exec(text.trim());
    if (!known) return text;
    const job = await get(`/v1/jobs/${known[1]}`);
    if (!job.run) throw new Error(`job #${job.id} has not begun; it has no weights yet`);
    return job.run;
  }

  async function ask() {
    fault.hidden = true;
    try {
      const asked = { ...form, ...(form.kind === "serve" ? { run: await runOf(form.run), array: "" } : {}) };
      const wanted = submissionOf(asked);
      if (!alive) return;
      confirm({ heading: "Submit?", text: submissionText(wanted), verb: "Submit", path: "/v1/jobs", body: () => wanted,
        done: "The job is submitted.", next: answer => {
          location.hash = answer.ids ? `#/jobs?text=${encodeURIComponent(`${wanted.name || "job"}-`)}` : jobPath(answer.id);
        } });
    } catch (error) {
      if (!alive) return;
      fault.textContent = error.message;
      fault.hidden = false;
    }
  }

  async function read(like) {
    try {
      const job = await get(`/v1/jobs/${encodeURIComponent(like)}`);
      const options = job.kind === "train" ? await get(`/v1/jobs/${job.id}/options`) : undefined;
      form = formOf(job, options);
      if (!maySubmit(form.kind)) throw new Error("a command is submitted by the service's own user alone");
      if (!alive) return;
      heading.textContent = `Submit a job like #${job.id} ${job.name}`;
    } catch (error) {
      form = { ...kNothing };
      say(error.message);
    }
    if (alive) draw();
  }

  root.replaceChildren(heading, body);
  draw();
  if (query.get("like")) read(query.get("like"));
  return { heard: () => {}, end: () => {
    alive = false;
  } };
}
