// Parts that the pages share.
"use strict";

import { toneOf } from "./figures.js";

export const { element } = globalThis.ductile;
const { asShortDuration } = globalThis.ductile;

/** @param {string} id @returns {any} */
export const byId = id => document.getElementById(id);

export const phaseChip = phase => element("span", { class: `kind ${toneOf(phase)}` }, phase);

export const jobPath = id => `#/job/${id}`;
export const jobLink = (id, text = "") =>
  element("a", { href: jobPath(id) }, text || `#${id}`);

/** Seconds since 1970 as a local time; the day only where it is not today. */
export function clock(time) {
  if (time === null || time === undefined) return "";
  const at = new Date(1000 * time), two = n => String(n).padStart(2, "0");
  const hours = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (at.toDateString() === new Date().toDateString()) return hours;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${hours}`;
}

export const since = (from, to) => asShortDuration(Math.max(0, to - from) || 0);

/** Device-seconds as people say them. */
export const deviceTime = seconds => seconds >= 360
  ? `${(seconds / 3600).toFixed(seconds < 36000 ? 2 : 1)} h` : asShortDuration(Math.round(seconds));

export const now = () => Date.now() / 1000;

export function tile(label, value, note = "") {
  return element("div", { class: "tile" }, element("div", { class: "label" }, label),
    element("div", { class: "value", title: value }, value),
    ...(note ? [element("div", { class: "note" }, note)] : []));
}

export function section(heading, ...children) {
  return element("section", {}, element("h2", {}, heading), ...children);
}

/** heads: [text, is a number]; rows: lists of texts and elements. */
export function table(label, heads, rows, look = "") {
  const cell = (value, i) => element("td", heads[i][1] ? { class: "num" } : {}, value);
  return element("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": label },
    element("table", { class: look },
      element("thead", {}, element("tr", {}, ...heads.map(([text, number]) =>
        element("th", { scope: "col", ...(number ? { class: "num" } : {}) }, text)))),
      element("tbody", {}, ...rows.map(row => element("tr", {}, ...row.map(cell))))));
}

// ---- drawing anew what changes while people use it
/** @type {WeakMap<any, string>} */
const drawn = new WeakMap();
/** @type {Map<any, () => void>} */
const waiting = new Map();
let pressed = null;  // what the pointer is held down on
document.addEventListener("pointerdown", event => { pressed = event.target; }, true);
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => setTimeout(() => {
    pressed = null;
    const fills = [...waiting.values()];
    waiting.clear();
    for (const fill of fills) fill();
  }), true);
}

/**
 * Fills a box anew if its `key` is another one: not while the pointer is down in it, since a click on
 * what is gone would be none. Focus and scrolling stay where they were.
 * @param {any} box @param {string} key @param {() => any[]} make
 */
export function redraw(box, key, make) {
  if (pressed && box.contains(pressed)) return void waiting.set(box, () => redraw(box, key, make));
  waiting.delete(box);
  if (drawn.get(box) === key) return;
  drawn.set(box, key);
  const reachable = () => [...box.querySelectorAll("a, button, input, [tabindex]")];
  const nameOf = e => `${e.getAttribute("href")} ${e.textContent}`;
  const focused = /** @type {any} */ (document.activeElement);
  const at = reachable().indexOf(focused);
  const scrolled = [...box.querySelectorAll(".scroll")].map(e => e.scrollTop);
  box.replaceChildren(...make());
  box.querySelectorAll(".scroll").forEach((e, i) => { e.scrollTop = scrolled[i] || 0; });
  if (at < 0) return;
  const now = reachable();
  (now.find(e => nameOf(e) === nameOf(focused)) || now[at])?.focus({ preventScroll: true });
}

/** Says something in a line that screen readers read, for a while. */
let telling = 0;
export function say(text) {
  const line = byId("told");
  line.textContent = text;
  line.classList.add("shown");
  clearTimeout(telling);
  telling = window.setTimeout(() => line.classList.remove("shown"), 6000);
}

/** A dialog with a heading, which Escape closes; `fill(close)` gives its content. */
export function dialog(heading, fill) {
  const before = /** @type {any} */ (document.activeElement);
  const box = element("dialog", { "aria-labelledby": "dialog-heading" });
  const close = () => box.close();
  box.append(element("h2", { id: "dialog-heading" }, heading), ...fill(close));
  box.addEventListener("close", () => {
    box.remove();
    if (before && before.isConnected) before.focus();
  });
  document.body.append(box);
  box.showModal();
  return box;
}
