// The frame of the page: logging in, which page is shown, keys, and whether the service is there.
"use strict";

import { accountsPage } from "./accounts.js";
import { apiPage } from "./api.js";
import { clusterPage } from "./cluster.js";
import { eventsPage } from "./events.js";
import { jobPage } from "./job.js";
import { jobsPage } from "./jobs.js";
import { byId, dialog, element, say } from "./parts.js";
import { follow, listen, login, logout, state } from "./service.js";
import { submitPage } from "./submit.js";

const kLetters = "ductile-letters";
const kPages = [["Cluster", "#/", "1"], ["Jobs", "#/jobs", "2"], ["Accounts", "#/accounts", "3"],
  ["Events", "#/events", "4"], ["API", "#/api", "5"]];
const kKeys = [["1 to 5", "the pages: cluster, jobs, accounts, events, API"], ["/", "search jobs"], ["n", "submit a new job"],
  ["j, k", "the next job of the list, the one before"], ["Enter", "open the job"],
  ["p", "on a job: pause or hold, or resume"], ["r", "on a job: resize"], ["w", "on a service: load other weights"],
  ["x", "on a job: cancel"],
  ["Left, Right", "on a chart: its values"], ["Escape", "close what is open; on a chart: show all"],
  ["?", "this list"]];

/** @typedef {{ heard: (what: string) => void, end: () => void, key?: (key: string) => boolean }} Shown */
/** @type {Shown} */
const kNone = { heard: () => {}, end: () => {} };
let page = kNone, place = "", loginFault = "";

// ---- which page
/** @returns {[string, Shown]} */
function open(root) {
  const [path, rest = ""] = location.hash.replace(/^#/, "").split("?");
  const query = new URLSearchParams(rest);
  const words = path.split("/").filter(Boolean).map(word => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
  if (words[0] === "jobs") return ["Jobs", jobsPage(root, query)];
  if (words[0] === "job" && words[1]) return [`Job ${words[1]}`, jobPage(root, words[1], query)];
  if (words[0] === "submit") return ["Submit", submitPage(root, query)];
  if (words[0] === "accounts") return ["Accounts", accountsPage(root)];
  if (words[0] === "events") return ["Events", eventsPage(root)];
  if (words[0] === "api") return ["API", apiPage(root)];
  return ["Cluster", clusterPage(root)];
}

function show() {
  page.end();
  page = kNone;
  const root = byId("content");
  if (state.login) return showLogin(root);
  if (!state.overview) return root.replaceChildren(element("p", { class: "empty" }, "Asking the service."));
  const [title, next] = open(root);
  page = next;
  document.title = `${title} \u00b7 Ductile`;
  showTop();
  if (place !== "" && place !== location.hash) {
    scrollTo(0, 0);
    root.focus({ preventScroll: true });
  }
  place = location.hash || "#/";
}

function showTop() {
  const here = location.hash.split("?")[0] || "#/";
  const isHere = path => here === path || (path === "#/jobs" && (here.startsWith("#/job/") || here === "#/submit"));
  const links = kPages.map(([name, path]) => element("a",
    { href: path, ...(isHere(path) ? { "aria-current": "page" } : {}) }, name));
  const me = state.overview;
  byId("top").replaceChildren(element("span", { class: "brand" }, "Ductile"),
    element("nav", { "aria-label": "pages" }, ...links),
    element("span", { class: "row end" }, element("span", { class: "me muted" }, me ? `${me.principal}, ${me.role}` : ""),
      element("button", { type: "button", onclick: help, "aria-label": "keys and help" }, "?"),
      element("button", { type: "button", onclick: logout }, "Log out")));
}

// ---- logging in
async function enter(code) {
  try {
    await login(code);
    say("You are logged in.");
    return "";
  } catch (error) {
    return error.message;
  }
}

function showLogin(root) {
  const fault = loginFault;
  loginFault = "";
  byId("top").replaceChildren(element("span", { class: "brand" }, "Ductile"));
  document.title = "Log in \u00b7 Ductile";
  const link = element("input", { type: "text", id: "link", autocomplete: "off", required: "", size: "50" });
  const banner = element("p", { class: "banner", role: "alert", ...(fault ? {} : { hidden: "" }) }, fault);
  root.replaceChildren(element("h1", {}, "Log in"), element("p", { class: "about" },
    "This page is for users of the machine that the service runs on. On that machine, ",
    element("code", {}, "ductile page"), " prints a link that lets one browser in. Every start of the service asks for a new one."),
  element("form", { class: "fields login", onsubmit: async event => {
    event.preventDefault();
    banner.textContent = await enter(link.value.trim().replace(/^.*#login=/, ""));
    banner.hidden = !banner.textContent;
  } }, element("label", { for: "link" }, "The link, or what stands behind #login="), link,
  element("button", { type: "submit", class: "main" }, "Log in")), banner);
}

// A link with a code: it is used, and taken out of the address.
async function useLink() {
  const code = /^#login=(.*)$/.exec(location.hash);
  if (!code) return;
  history.replaceState(null, "", sessionStorage.getItem("ductile-place") || "#/");
  const fault = await enter(code[1]);
  if (!fault) return;
  if (localStorage.getItem("ductile-key")) return say(fault);
  state.login = true;
  loginFault = fault;
}

// ---- keys
function help() {
  dialog("Keys and help", close => [
    element("table", { class: "keys-table" }, element("tbody", {}, ...kKeys.map(([key, what]) =>
      element("tr", {}, element("td", {}, element("kbd", {}, key)), element("td", {}, what))))),
    element("p", {}, element("label", {}, element("input", { type: "checkbox",
      ...(letters() ? { checked: "" } : {}), onchange: event =>
        localStorage.setItem(kLetters, event.target.checked ? "on" : "off") }), "Letters and digits are keys")),
    element("div", { class: "buttons" }, element("button", { type: "button", class: "main", onclick: close }, "Close"))]);
}
const letters = () => localStorage.getItem(kLetters) !== "off";

function pressed(event) {
  const at = /** @type {any} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName)) {
    if (event.key === "Escape") at.blur();
    return;
  }
  if (!letters() || state.login) return;
  const known = kPages.find(([, , key]) => key === event.key);
  if (event.key === "?") help();
  else if (known) location.hash = known[1];
  else if (event.key === "n") location.hash = "#/submit";
  else if (!page.key?.(event.key)) {
    if (event.key !== "/") return;
    location.hash = "#/jobs";
    setTimeout(() => byId("search")?.focus(), 50);
  }
  event.preventDefault();
}

// ---- the service
function showAway() {
  const line = byId("away");
  line.hidden = state.online || state.login;
  line.textContent = "The service does not answer. What you see is what was known last; the page goes on when it is back.";
}

listen(what => {
  if (what === "online" || what === "login") showAway();
  if (what === "online" && state.online && state.overview && !state.login) say("The service is back.");
  if (what === "login") return show();
  if (what === "jobs" && place === "") return show();  // the first answer
  page.heard(what);
});
window.addEventListener("hashchange", async () => {
  if (location.hash.startsWith("#login=")) await useLink();
  sessionStorage.setItem("ductile-place", location.hash);
  show();
});
document.addEventListener("keydown", pressed);

useLink().then(() => {
  show();
  follow();
});
