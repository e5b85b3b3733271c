// The list of jobs. Only the rows that are seen are elements, so that thousands cost no more.
"use strict";

import { actOnJobs, maySubmit, thoseFor } from "./actions.js";
import { isLive, matches, places, wishOf } from "./figures.js";
import { byId, element, jobPath, now, phaseChip, redraw, since } from "./parts.js";
import { searchJobs, state } from "./service.js";

const { choice } = globalThis.ductile;
/** @type {[any, string][]} */
const kPhases = [["live", "Live"], ["running", "Running"], ["queued", "Queued"], ["paused", "Paused"],
  ["ended", "Ended"], ["all", "All"]];
const kHeads = [["Job", "job"], ["Owner", "owner"], ["Team", "team"], ["Tier", "tier"], ["Phase", "phase"],
  ["Devices", "num devices"], ["Place", "num line"], ["Age", "num age"], ["Why", "why"]];

export function jobsPage(root, query) {
  let phase = query.get("phase") || "live", text = query.get("text") || "";
  let shown = [], line = new Map(), selected = -1;
  const search = element("input", { type: "search", id: "search", value: text, placeholder: "name, owner, team, number",
    "aria-label": "search jobs", oninput: () => {
      text = search.value;
      refresh();
    } });
  const count = element("span", { class: "muted", id: "count", role: "status" });
  const everywhere = element("button", { type: "button", onclick: async () => {
    everywhere.disabled = true;
    phase = "all";
    filters.replaceChildren(...makeFilters());
    await searchJobs(text).catch(() => {});
    everywhere.disabled = false;
    refresh();
  } }, "Search jobs that ended long ago");
  // What can be done with all jobs that are found, as the verbs of the command line take a pattern.
  const together = element("div", { class: "row", id: "together" });
  const filters = element("div", { class: "row" });
  const makeFilters = () => {
    const box = choice(kPhases, () => phase, value => {
      phase = value;
      refresh();
    });
    box.setAttribute("aria-label", "which jobs");
    return [box];
  };
  filters.append(...makeFilters());
  const top = element("tr", { class: "space", "aria-hidden": "true" }, element("td", { colspan: kHeads.length }));
  const bottom = top.cloneNode(true);
  const body = element("tbody", {}, top, bottom);
  const grid = element("table", { class: "jobs" }, element("thead", {}, element("tr", {},
    ...kHeads.map(([head, look]) => element("th", { scope: "col", class: look,
      ...(head === "Place" ? { title: "who is next, by the policy; it changes with every job" } : {}) },
    head)))), body);
  const scroll = element("div", { class: "list", tabindex: "0", role: "region", "aria-label": "jobs" }, grid);
  root.replaceChildren(element("div", { class: "bar" }, element("h1", {}, "Jobs"), element("div", { class: "row" }, together,
    ...(maySubmit() ? [element("a", { href: "#/submit", id: "submit" }, "Submit a job")] : []))),
  element("div", { class: "bar" }, filters, element("div", { class: "controls" }, search, everywhere, count)), scroll);

  function rowOf(job, index) {
    const wants = job.min_devices === job.max_devices ? job.max_devices : `${job.min_devices}-${job.max_devices}`;
    const cell = (look, ...content) => element("td", { class: look }, ...content);
    const place = line.get(job.id);
    return element("tr", { "aria-rowindex": index + 2, ...(index === selected ? { class: "selected" } : {}) },
      cell("job", element("a", { href: jobPath(job.id), title: job.name }, `#${job.id} ${job.name}`)),
      cell("owner", job.owner), cell("team", job.team), cell("tier", job.tier),
      cell("phase", phaseChip([job.phase, wishOf(job)].filter(Boolean).join(", "))),
      cell("num devices", isLive(job) ? `${job.devices} of ${wants}` : ""),
      cell("num line", place ? String(place) : ""),
      cell("num age", since(job.submitted, now())),
      element("td", { class: "why", title: job.reason }, job.reason));
  }

  let drawn = "", version = 0;
  function draw(force = false) {
    const height = matchMedia("(max-width: 700px)").matches ? 62 : 34;
    const first = Math.max(0, Math.floor(scroll.scrollTop / height) - 8);
    const last = Math.min(shown.length, Math.ceil((scroll.scrollTop + scroll.clientHeight) / height) + 8);
    const key = `${first}-${last}`;
    if (!force && key === drawn) return;
    drawn = key;
    top.firstChild.style.height = `${first * height}px`;
    bottom.firstChild.style.height = `${(shown.length - last) * height}px`;
    redraw(body, String(++version), () =>
      [top, ...shown.slice(first, last).map((job, i) => rowOf(job, first + i)), bottom]);
  }

  function refresh() {
    const all = [...state.jobs.values()];
    line = places(all, state.overview?.policy);
    const fits = { live: isLive, ended: job => !isLive(job), all: () => true }[phase]
      || (job => job.phase === phase);
    shown = all.filter(job => fits(job) && (!text || matches(job, text))).sort((a, b) => b.id - a.id);
    selected = Math.min(selected, shown.length - 1);
    count.textContent = `${shown.length} ${shown.length === 1 ? "job" : "jobs"}`;
    everywhere.hidden = !text;
    showTogether();
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    draw(true);
  }

  function showTogether() {
    const kinds = [["pause", "Pause"], ["resume", "Resume"], ["cancel", "Cancel"]].map(([name, verb]) =>
      ({ name, verb, jobs: text ? thoseFor(name, shown) : [] })).filter(({ jobs }) => jobs.length > 1);
    redraw(together, JSON.stringify(kinds.map(({ name, jobs }) => [name, jobs.map(job => job.id)])), () =>
      kinds.map(({ name, verb, jobs }) => element("button", { type: "button", ...(name === "cancel" ? { class: "danger" } : {}),
        onclick: () => actOnJobs(name, jobs) }, `${verb} all ${jobs.length}`)));
  }

  scroll.addEventListener("scroll", () => requestAnimationFrame(() => draw()), { passive: true });
  const resized = () => draw(true);
  window.addEventListener("resize", resized);
  const select = step => {
    if (!shown.length) return;
    selected = Math.max(0, Math.min(shown.length - 1, selected + step));
    const height = matchMedia("(max-width: 700px)").matches ? 62 : 34;
    const at = selected * height;
    if (at < scroll.scrollTop) scroll.scrollTop = at;
    if (at + 2 * height > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = at + 2 * height - scroll.clientHeight;
    draw(true);
    body.querySelector(".selected a")?.focus({ preventScroll: true });
  };
  refresh();
  return {
    heard: what => { if (what === "jobs") refresh(); },
    key: key => {
      if (key === "j") select(1);
      else if (key === "k") select(-1);
      else if (key === "/") byId("search").focus();
      else return false;
      return true;
    },
    end: () => window.removeEventListener("resize", resized),
  };
}
