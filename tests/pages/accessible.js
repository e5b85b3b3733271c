// What of a page hinders people: text that stands out too little from what is behind it, controls
// without a name, headings that skip a level, things that cannot be reached by keys. Gives a list of
// sentences. The thresholds are those of WCAG 2.1, level AA.
"use strict";

globalThis.hindrances = () => {
  const out = [];
  const seen = e => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden" && !e.closest("[aria-hidden=true]");
  const what = e => `${e.tagName.toLowerCase()}${e.id ? `#${e.id}` : ""}${e.className && e.className.baseVal === undefined ? `.${e.className}` : ""} "${(e.textContent || "").trim().slice(0, 30)}"`;
  const rgba = text => (/rgba?\(([^)]*)\)/.exec(text)?.[1] || "0,0,0,0").split(/[ ,/]+/).map(Number);
  const over = (top, below) => [0, 1, 2].map(i => top[i] * (top[3] ?? 1) + below[i] * (1 - (top[3] ?? 1)));
  const luminance = c => {
    const [r, g, b] = c.map(v => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = e => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255]);
  };

  // ---- contrast
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const checked = new Set();
  while (walk.nextNode()) {
    const e = /** @type {any} */ (walk.currentNode.parentElement);
    if (!walk.currentNode.textContent.trim() || checked.has(e) || !seen(e) || e.closest(":disabled")) continue;
    if (e.closest(".told:not(.shown), .skip, script, style")) continue;
    checked.add(e);
    const style = getComputedStyle(e), base = behind(e);
    const ink = over(rgba(e.ownerSVGElement ? style.fill : style.color), base);
    const [hi, lo] = [luminance(ink), luminance(base)].sort((a, b) => b - a);
    const ratio = (hi + 0.05) / (lo + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) out.push(`contrast ${ratio.toFixed(2)} of ${what(e)}`);
  }

  // ---- names
  for (const e of document.querySelectorAll("button, a[href], input, select, textarea, [tabindex='0'], dialog, svg[role], canvas")) {
    if (!seen(e)) continue;
    const labels = /** @type {any} */ (e).labels;
    const by = (e.getAttribute("aria-labelledby") || "").split(/\s+/).map(id => document.getElementById(id)?.textContent || "").join("");
    const name = e.getAttribute("aria-label") || by || (labels && labels.length ? labels[0].textContent : "") ||
      (/^(BUTTON|A)$/.test(e.tagName) ? e.textContent : "");
    if (!name.trim()) out.push(`no name: ${what(e)}`);
  }
  for (const e of document.querySelectorAll("table")) {
    if (seen(e) && !e.closest("dialog") && e.querySelectorAll("thead th").length === 0) out.push(`no heads: ${what(e)}`);
  }
  for (const e of document.querySelectorAll("[onclick], .choice")) {
    if (e.classList.contains("choice") && !e.getAttribute("aria-label")) out.push(`no name: ${what(e)}`);
  }

  for (const e of document.querySelectorAll("button")) {
    if (seen(e) && e.getBoundingClientRect().height > 44) out.push(`a button is broken into lines: ${what(e)}`);
  }

  // ---- structure
  let level = 0;
  const headings = [...document.querySelectorAll("h1, h2, h3, h4")].filter(seen);
  if (headings.filter(h => h.tagName === "H1").length !== 1) out.push("a page has one heading of the first level");
  for (const h of headings) {
    const own = Number(h.tagName[1]);
    if (own > level + 1) out.push(`a heading skips a level: ${what(h)}`);
    level = own;
  }
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  for (const id of new Set(ids)) if (ids.filter(other => other === id).length > 1) out.push(`the id ${id} is there twice`);
  if (!document.documentElement.lang) out.push("the page has no language");
  if (document.documentElement.scrollWidth > innerWidth + 1) {
    out.push(`the page is wider than the window: ${document.documentElement.scrollWidth} of ${innerWidth}`);
  }
  return out;
};
