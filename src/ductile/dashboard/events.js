// What happened last, the newest first.
"use strict";

import { sentence } from "./figures.js";
import { clock, element, jobLink, redraw, table } from "./parts.js";
import { state } from "./service.js";

const kShown = 200;

export function eventRows(events, withJob) {
  return events.slice(-kShown).reverse().map(event => [
    clock(event.time),
    ...(withJob ? [event.job ? jobLink(event.job, `#${event.job} ${state.jobs.get(event.job)?.name ?? ""}`) : ""] : []),
    event.kind, sentence(event)]);
}

export function eventsPage(root) {
  const body = element("div");
  root.replaceChildren(element("h1", {}, "Events"), body);
  const show = () => {
    const last = state.events.slice(-kShown);
    const names = last.map(event => event.job && state.jobs.get(event.job)?.name);
    redraw(body, JSON.stringify([last.length && last[last.length - 1].seq, names]), () => [last.length === 0
      ? element("p", { class: "empty" }, "Nothing has happened yet.")
      : table("events", [["Time"], ["Job"], ["Kind"], ["What happened"]], eventRows(last, true), "log")]);
  };
  show();
  return { heard: what => { if (what === "events" || what === "jobs") show(); }, end: () => {} };
}
