// Who uses how much: by team, tier and owner.
"use strict";

import { makeToken, isAdmin, revokeToken } from "./actions.js";
import { entitlement, tally } from "./figures.js";
import { clock, deviceTime, element, redraw, section, table } from "./parts.js";
import { get } from "./service.js";

const kGroups = [["team", "Teams", "no team"], ["tier", "Tiers", "none"], ["owner", "Owners", "nobody"]];

export function accountsPage(root) {
  let alive = true;
  const body = element("div"), tokens = element("div", { id: "tokens" });
  root.replaceChildren(element("h1", {}, "Accounts"), element("p", { class: "about" },
    "Device time is the number of devices times how long they were held, of all jobs in the store."), body, tokens);
  async function read() {
    try {
      const { accounts, teams = [] } = await get("/v1/accounts");
      if (!alive) return;
      redraw(body, JSON.stringify([accounts, teams]), () => kGroups.map(([by, heading, none]) =>
        section(heading, groupTable(accounts, by, none, by === "team" ? teams : []))));
      await readTokens();
    } catch { /* the line at the top says that the service is away */ }
  }
  // Who gets in with one, for those who may know it.
  async function readTokens() {
    if (!isAdmin()) return tokens.replaceChildren();
    const list = (await get("/v1/tokens")).tokens;
    if (alive) redraw(tokens, JSON.stringify(list), () => [section("Tokens", list.length ? tokenTable(list)
      : element("p", { class: "empty" }, "There are none: users of this machine need none."),
    element("p", {}, element("button", { type: "button", onclick: () => makeToken(readTokens) }, "Make a token")))]);
    return undefined;
  }
  function tokenTable(list) {
    return table("tokens", [["Token"], ["Role"], ["Team"], ["State"], ["Made"], ["Expires"], ["Actions"]], list.map(token =>
      [token.name, token.role, token.team, element("span", { class: `kind ${token.state === "good" ? "good" : "plain"}` }, token.state),
        clock(token.made), clock(token.expires), token.state === "revoked" ? "" : element("button", { type: "button",
          "aria-label": `Revoke ${token.name}`, onclick: () => revokeToken(token.name, readTokens) }, "Revoke")]));
  }
  // Teams with a quota or a share are there before their first job.
  function groupTable(accounts, by, none, teams) {
    const without = teams.filter(team => !accounts.some(account => account.team === team.team))
      .map(team => ({ team: team.team, jobs: {}, devices: 0, device_seconds: 0 }));
    const rows = tally([...accounts, ...without], by);
    const owed = new Map(teams.map(team => [team.team, team]));
    if (!rows.length) return element("p", { class: "empty" }, "No job was submitted yet.");
    const total = rows.reduce((sum, row) => sum + row.seconds, 0);
    return table(by, [[by[0].toUpperCase() + by.slice(1)], ["Running", true], ["Waiting", true], ["Ended", true],
      ["Devices now", true], ...(teams.length ? [["Quota", true], ["Entitled to", true]] : []), ["Device time", true],
      ["Part of it"]],
    rows.map(row => [row.name || element("span", { class: "muted" }, none), String(row.running), String(row.queued),
      String(row.ended), String(row.devices), ...(teams.length ? entitlement(owed.get(row.name)) : []),
      deviceTime(row.seconds), share(total ? row.seconds / total : 0)]));
  }
  function share(value) {
    return element("span", { class: "row nowrap" }, element("span", { class: "meter" },
      element("i", { style: `width: ${(100 * value).toFixed(1)}%` })), `${Math.round(100 * value)} %`);
  }
  read();
  const timer = setInterval(() => { if (!document.hidden) read(); }, 10000);
  return { heard: what => { if (what === "online") read(); }, end: () => {
    alive = false;
    clearInterval(timer);
  } };
}
