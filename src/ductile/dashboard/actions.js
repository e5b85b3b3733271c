// What a person can do to jobs and nodes; each asks before it acts.
"use strict";

import { drainBody } from "./figures.js";
import { element, dialog, say } from "./parts.js";
import { post, state } from "./service.js";

/**
 * Asks, then sends. `fields` may be inputs; `body()` is read when the answer is yes, and `next()` is told what the
 * service answered. `send()` stands in place of one request: it throws what the dialog then says.
 * @param {{ heading: string, text: string, verb: string, danger?: boolean, path?: string, fields?: any[],
 *           body?: () => any, send?: () => Promise<any>, done: string, next?: (answer: any) => void }} what
 */
export function confirm(what) {
  // Of all tries until there is an answer: one whose answer was lost may have been carried out.
  let key = crypto.randomUUID(), lost = false;
  dialog(what.heading, close => {
    const fault = element("p", { class: "banner", role: "alert", hidden: "" });
    const yes = element("button", { type: "submit", class: what.danger ? "danger" : "main" }, what.verb);
    const no = element("button", { type: "button", onclick: close }, "Leave as it is");
    const form = element("form", { method: "dialog", onsubmit: async event => {
      event.preventDefault();
      yes.disabled = true;
      try {
        const answer = await (what.send ? what.send() : post(what.path || "", what.body ? what.body() : {}, key));
        close();
        say(what.done);
        what.next?.(answer);
      } catch (error) {
        if (error.status === 0) lost = true;
        else if (!lost) key = crypto.randomUUID();
        fault.textContent = error.message + (lost && error.status === 409
          ? "; the first try, whose answer was lost, may have been carried out: close this, and look" : "");
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
const kHold = { verb: "Hold", text: "It does not begin before somebody resumes it. What it saved before is kept." };

export function mayAct(job) {
  const me = state.overview;
  const own = me && (me.principal === job.owner || Boolean(me.team && me.team === job.team));
  return me && (me.role === "admin" || (me.role === "submit" && own));
}

/** Whether the user may submit a job of this kind: a command runs as the user of the service. */
export const maySubmit = (kind = "train") => Boolean(state.overview) &&
  (state.overview.role === "admin" || (state.overview.role === "submit" && kind !== "command"));

/** The actions that a job's state allows: [name, label, whether it is dangerous]. */
export function actionsOf(job) {
  if (!["queued", "running", "paused"].includes(job.phase) || !mayAct(job)) return [];
  const out = Object.entries(kJobActions).filter(([, a]) => a.fits(job))
    .map(([name]) => [name, actionOn(name, job).verb.split(" ")[0], Boolean(kJobActions[name].danger)]);
  // Older services cannot. Who takes newer weights by itself is not told to.
  const reloads = job.kind === "serve" && job.spec && !job.spec.follow;
  if (reloads && state.paths.has("/v1/jobs/{job}/reload")) out.splice(1, 0, ["reload", "Reload", false]);
  if (state.paths.has("/v1/jobs/{job}/resize")) out.splice(1, 0, ["resize", "Resize", false]);
  return out;
}

// What waits has nothing to save.
function actionOn(name, job) {
  return name === "pause" && job.phase === "queued" ? { ...kJobActions.pause, ...kHold } : kJobActions[name];
}

export function actOnJob(name, job) {
  if (name === "resize") return resize(job);
  if (name === "reload") return reload(job);
  const { verb, text, danger } = actionOn(name, job);
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

function reload(job) {
  const step = element("input", { type: "number", min: 0, "aria-label": "step", placeholder: "the newest" });
  confirm({ heading: `Reload: ${nameOf(job)}?`, verb: "Reload",
    text: "Its replicas load other weights of its run, one after the other; no request is lost. Empty: the newest weights.",
    fields: [element("p", { class: "fields" }, element("label", {}, "Weights of step", step))],
    body: () => step.value.trim() ? { version: Number(step.value) } : {},
    path: `/v1/jobs/${job.id}/reload`, done: `Job ${nameOf(job)}: the service was asked to change its weights.` });
}

/** Which of these jobs an action fits: those that people see, may act on, and have not asked the same of. */
export const thoseFor = (name, jobs) => jobs.filter(job => actionsOf(job).some(([what]) => what === name));

/** Does one thing with several jobs, one after the other; what was refused is said, and the others are done. */
export function actOnJobs(name, jobs) {
  const { verb, danger } = kJobActions[name];
  const shown = jobs.slice(0, 5).map(nameOf).join(", ") + (jobs.length > 5 ? ` and ${jobs.length - 5} more` : "");
  let left = jobs;
  confirm({ heading: `${verb}: ${jobs.length} jobs?`, text: `${shown}. Each as with its own button.`, verb, danger,
    done: `The service was asked to ${name} ${jobs.length} jobs.`,
    send: async () => {
      const refused = [];
      for (const job of left) {
        await post(`/v1/jobs/${job.id}/${name}`).catch(error => refused.push([job, error.message]));
      }
      const asked = left.length;
      left = refused.map(([job]) => job);
      if (refused.length) throw new Error(`${refused.length} of ${asked} were refused, the first: ${nameOf(refused[0][0])}: ${refused[0][1]}`);
    } });
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

/** Who drains nodes, and makes and revokes tokens. */
export const isAdmin = () => Boolean(state.overview) && state.overview.role === "admin";

/** Makes a token, which a second dialog shows once; `then()` is called when it is there. */
export function makeToken(then) {
  const input = (label, more = {}) => element("input", { type: "text", maxlength: 200, "aria-label": label, ...more });
  const name = input("name", { required: "" }), team = input("team");
  const days = element("input", { type: "number", min: 0.01, max: 36500, step: "any", "aria-label": "days", placeholder: "for ever" });
  const role = element("select", { "aria-label": "role" }, ...["read", "submit", "admin"].map(one => element("option", {}, one)));
  const field = (label, control) => element("label", {}, label, control);
  confirm({ heading: "Make a token?", verb: "Make it", path: "/v1/tokens",
    text: "It lets in whoever has it, from wherever the service is reached. What it stands for owns the jobs that it submits.",
    fields: [element("p", { class: "fields" }, field("Name", name), field("Role", role)),
      element("p", { class: "fields" }, field("Team", team), field("Good for (days)", days))],
    body: () => ({ name: name.value.trim(), role: role.value, ...(team.value.trim() ? { team: team.value.trim() } : {}),
      ...(days.value.trim() ? { seconds: 86400 * Number(days.value) } : {}) }),
    done: "The token is made.",
    next: ({ address, fingerprint, token }) => {
      then();
      dialog("An access file, shown once", close => [
        element("p", {}, "Whoever has it is let in. Write it into a file for ", element("code", {}, "ductile --server FILE"), "."),
        element("pre", { tabindex: "0", "aria-label": "access file" },
          JSON.stringify({ address, ...(fingerprint ? { fingerprint } : {}), token }, null, 2)),
        element("div", { class: "buttons" }, element("button", { type: "button", class: "main", onclick: close }, "Close"))]);
    } });
}

export function revokeToken(name, then) {
  confirm({ heading: `Revoke ${name}?`, verb: "Revoke", danger: true, path: `/v1/tokens/${encodeURIComponent(name)}/revoke`,
    text: "It lets nobody in any more, from now on. Its jobs go on.", done: `The token ${name} is revoked.`, next: then });
}
