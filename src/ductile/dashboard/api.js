// The interface for programs: every route, as the service describes itself.
"use strict";

import { operations } from "./figures.js";
import { element, section, table } from "./parts.js";
import { get } from "./service.js";

export function apiPage(root) {
  let alive = true;
  const body = element("div", { id: "routes" });
  root.replaceChildren(element("h1", {}, "API"), element("p", { class: "about" },
    "What programs ask the service for, over its unix socket or with a token over TLS: JSON over HTTP. As OpenAPI: ",
    element("code", {}, "GET /v1/openapi.json"), ". Each role may do what the ones before may: read, submit, admin."),
  body);
  get("/v1/openapi.json").then(api => {
    if (!alive) return;
    body.replaceChildren(...operations(api).map(({ path, method, summary, role, takes }) =>
      section(`${method} ${path}`, element("p", {}, summary, " ", element("span", { class: "muted" }, `Role: ${role}.`)),
        ...(takes.length ? [table(`what ${method} ${path} takes`, [["Name"], ["Where"], ["Meaning"]],
          takes.map(([name, where, help]) => [element("code", {}, name), where, help]))] : []))));
  }).catch(error => {
    if (alive) body.replaceChildren(element("p", { class: "banner" }, error.message));
  });
  return { heard: () => {}, end: () => {
    alive = false;
  } };
}
