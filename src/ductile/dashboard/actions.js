// What a person can do to jobs and nodes; each asks before it acts.
"use strict";

import { drainBody } from "./figures.js";
import { element, dialog, say } from "./parts.js";
import { post, state } from "./service.js";

/**
 * Asks, then sends. `fields(go)` may give inputs; `body()` is read when the answer is yes.
 * @param {{ heading: string, text: string, verb: string, danger?: boolean, path: string,
 *           fields?: any[], body?: () => any, done: string }} what
 */
function confirm(what) {
  dialog(what.heading, close => {
    const fault = element("p", { class: "banner", role: "alert", hidden: "" });
    const yes = element("button", { type: "submit", class: what.danger ? "danger" : "main" }, what.verb);
    const no = element("button", { type: "button", onclick: close }, "Leave as it is");
    const form = element("form", { method: "dialog", onsubmit: async event => {
      event.preventDefault();
      yes.disabled = true;
      try {
        await post(what.path, what.body ? what.body() : {});
        close();
        say(what.done);
      } catch (error) {
        fault.textContent = error.message;
        fault.hidden = false;
        yes.disabled = false;
      }
    } }, element("p", {}, what.text), ...(what.fields || []), fault,
    element("div", { class: "buttons" }, no, yes));
    return [form];
  });
}

const nameOf = job => `#${job.id} ${job.name}`;

const kJobActions = {
  pause: { verb: "Pause", text: "It saves its state, gives up its devices, and waits until somebody resumes it.",
    fits: job => job.wish === "run" },
  resume: { verb: "Resume", text: "It waits for devices again and goes on where it was.",
    fits: job => job.wish === "pause" },
  cancel: { verb: "Cancel for good", text: "It ends for good. What it saved stays in its run directory.",
    danger: true, fits: job => job.wish !== "cancel" },
};

export function mayAct(job) {
  const me = state.overview;
  return me && (me.role === "admin" || (me.role === "submit" && me.principal === job.owner));
}

/** The actions that a job's state allows: [name, label, whether it is dangerous]. */
export function actionsOf(job) {
  if (!["queued", "running", "paused"].includes(job.phase) || !mayAct(job)) return [];
  const out = Object.entries(kJobActions).filter(([, a]) => a.fits(job))
    .map(([name, a]) => [name, a.verb.split(" ")[0], Boolean(a.danger)]);
  // Older services cannot.
  if (state.paths.has("/v1/jobs/{job}/resize")) out.splice(1, 0, ["resize", "Resize", false]);
  return out;
}

export function actOnJob(name, job) {
  if (name === "resize") return resize(job);
  const { verb, text, danger } = kJobActions[name];
  confirm({ heading: `${verb}: ${nameOf(job)}?`, text, verb, danger,
    path: `/v1/jobs/${job.id}/${name}`, done: `Job ${nameOf(job)}: the service was asked to ${name} it.` });
}

function resize(job) {
  const input = (label, value) => element("input", { type: "number", min: 1, max: 1048576, required: "",
    value, "aria-label": label });
  const least = input("least devices", job.min_devices), most = input("most devices", job.max_devices);
  confirm({ heading: `Resize: ${nameOf(job)}?`, verb: "Resize",
    text: "The scheduler gives it between so many devices. It does not lose a step.",
    fields: [element("p", { class: "fields" }, element("label", {}, "Least", least),
      element("label", {}, "Most", most))],
    body: () => ({ min_devices: Number(least.value), max_devices: Number(most.value) }),
    path: `/v1/jobs/${job.id}/resize`, done: `Job ${nameOf(job)}: the service was asked to resize it.` });
}

export function actOnNode(node) {
  const path = `/v1/nodes/${encodeURIComponent(node.node)}`;
  if (node.drained || node.drain_starts) {
    return confirm({ heading: `Take back ${node.node}?`, verb: "Take back",
      text: node.drained ? "Jobs may use it again." : "It is not drained when the time comes.",
      path: `${path}/undrain`, done: `Node ${node.node} is taken back.` });
  }
  const reason = element("input", { type: "text", maxlength: 200, "aria-label": "reason",
    placeholder: "for those who wonder" });
  const minutes = (label, least) => element("input", { type: "number", min: least, max: 500000, step: "any",
    "aria-label": label });
  const begins = minutes("begins in minutes", 0), lasts = minutes("lasts minutes", 0.1);
  return confirm({ heading: `Drain ${node.node}?`, verb: "Drain", danger: true,
    text: "Nothing new starts there, and its jobs save their state and move away: now, or before the time that you say; "
      + "and until somebody takes it back, or for so long.",
    fields: [element("p", { class: "fields" }, element("label", {}, "Reason", reason)),
      element("p", { class: "fields" }, element("label", {}, "Begins in (minutes)", begins),
        element("label", {}, "Lasts (minutes)", lasts))],
    body: () => drainBody(reason.value, begins.value, lasts.value), path: `${path}/drain`,
    done: `Node ${node.node}: the drain is noted.` });
}

export const mayDrain = () => Boolean(state.overview) && state.overview.role === "admin";
