// The report of a run: its panels of curves and their controls, the strip of events, the switches.
"use strict";

(() => {
  const { ascending, asDuration, chartGroup, choice, element, extent, lineChart, pageData, tickText,
    ticks, timeSteps, valueText, whenResized } = globalThis.ductile;
  const data = pageData();
  const state = { x: "step", smoothing: 0.6, log: false };
  const byId = id => /** @type {any} */ (document.getElementById(id));

  // ---- curves
  const group = chartGroup();
  const panels = data.panels.map(panel => ({ panel, chart: lineChart(group, { ...panel, last: true }) }));
  const units = { step: "step", epoch: "epoch", seconds: "duration" };

  function span() {
    let [lo, hi] = extent(data.panels.flatMap(p => p.series.map(s => s[state.x])));
    if (lo > hi) return [0, 1];
    if (lo > 0 && lo < hi * 0.2) lo = 0;
    return lo === hi ? [lo - 0.5, hi + 0.5] : [lo, hi];
  }

  function show() {
    const [lo, hi] = span();
    const marks = data.marks
      .filter(m => m[state.x] !== undefined && m.tone !== "plain" && m.kind !== "end")
      .map(m => ({ x: Math.min(Math.max(m[state.x], lo), hi), tone: m.tone, text: m.text }));
    for (const { panel, chart } of panels) {
      // A test is the second colour, also where it stands alone.
      // Epochs begin anew where a tuner went back.
      const series = panel.series.map((s, i) => {
        const kept = ascending(s[state.x]);
        return { name: s.name, smooth: s.smooth, x: kept.map(k => s[state.x][k]),
          y: kept.map(k => s.value[k]), color: s.name === "test" ? 1 : i };
      });
      chart.show({ series, x: { unit: units[state.x], lo, hi }, log: state.log,
        smoothing: state.smoothing, marks });
    }
  }

  function addControls() {
    const slider = element("input", { type: "range", min: 0, max: 0.98, step: 0.02,
      value: state.smoothing, "aria-label": "smoothing", oninput: e => {
        state.smoothing = +e.target.value;
        show();
      } });
    byId("controls").append(group.button,
      choice([["step", "Steps"], ["epoch", "Epochs"], ["seconds", "Time"]], () => state.x, x => {
        state.x = x;
        group.hover = null;
        show();
        group.zoom(null);
      }),
      element("label", {}, "Smoothing", slider));
    if (!data.panels.some(p => p.log)) return;
    byId("controls").append(element("label", {}, element("input", { type: "checkbox",
      onchange: e => {
        state.log = e.target.checked;
        show();
      } }), "Logarithmic loss"));
  }

  // What the dotted lines are.
  function addKeys() {
    const tones = new Map();
    for (const m of data.marks) {
      if (m.tone === "plain" || m.kind === "end") continue;
      if (!tones.has(m.tone)) tones.set(m.tone, new Set());
      tones.get(m.tone).add(m.kind.replaceAll("_", " "));
    }
    for (const [tone, kinds] of tones) {
      byId("marks").append(element("span", { class: `key ${tone}` }, [...kinds].join(", ")));
    }
  }

  if (panels.length) {
    byId("panels").append(...panels.map(p => p.chart.box));
    addControls();
    addKeys();
    show();
  } else {
    byId("panels").append(element("p", { class: "empty" }, "No metrics yet."));
  }

  // ---- slices of the loss through the minimum: lines, or the map of a plane
  const atStep = data.slices && data.slices.step !== null
    ? ` at ${valueText(data.slices.step, "step")}` : "";

  function lines({ places, losses }) {
    const alone = chartGroup();
    const chart = lineChart(alone, { unit: "number", title:
      `Loss along random directions${atStep}, by the distance from the weights in filter norms` });
    chart.box.querySelector(".panel-head").append(alone.button);
    chart.show({ series: losses.map((y, i) => ({ name: `direction ${i + 1}`, x: places, y,
      smooth: false })), x: { unit: "number", lo: places[0], hi: places[places.length - 1] },
      marks: [{ x: 0, tone: "plain", text: "the weights" }] });
    return chart.box;
  }

  // What the colours of a plane mean.
  function colors(lo, hi, strength, opacity, allFinite) {
    const key = (style, text) => element("span", {}, element("span", { class: "swatch",
      style: `height: 11px; ${style}` }), text);
    const values = lo < hi ? [lo, Math.sqrt(lo * hi), hi] : lo > hi ? [] : [lo];
    const keys = values.map(v => key(`background: var(--c0); opacity: ${opacity(strength(v))}`,
      valueText(v, "number")));
    if (!allFinite) keys.push(key("background: var(--bad)", "not finite"));
    return element("div", { class: "legend" }, ...keys);
  }

  // Along x the first direction, along y the second.
  function plane({ places, losses }) {
    const n = places.length, [lo, hi] = extent(losses.map(row => row.filter(v => v > 0)));
    const strength = v => v > lo && hi > lo ? Math.log(v / lo) / Math.log(hi / lo) : 0;
    const opacity = share => 0.06 + 0.94 * share;
    const left = 58, top = 8, side = 340, cell = side / n;
    const step = n > 1 ? places[1] - places[0] : 1;
    const right = v => left + ((v - places[0]) / step + 0.5) * cell;
    const down = v => top + side - ((v - places[0]) / step + 0.5) * cell;
    const svg = element("svg", { class: "chart", viewBox: `0 0 ${left + side + 12} ${top + side + 46}`,
      role: "img", "aria-label": "loss in a random plane", style: "cursor: default; max-width: 460px" });
    losses.forEach((row, j) => row.forEach((v, i) => {
      const known = v !== null;
      const text = known ? valueText(v, "number") : "not finite";
      svg.append(element("rect", { x: left + i * cell, y: top + side - (j + 1) * cell,
        width: cell, height: cell, "shape-rendering": "crispEdges",
        fill: known ? "var(--c0)" : "var(--bad)", opacity: known ? opacity(strength(v)) : 1 },
      element("title", {}, `${places[i].toFixed(2)}, ${places[j].toFixed(2)}: ${text}`)));
    }));
    const marks = ticks(places[0], places[n - 1], 4);
    for (const v of marks.values) {
      const text = tickText(v, marks.step, "number");
      svg.append(element("text", { x: right(v), y: top + side + 16, "text-anchor": "middle" }, text),
        element("text", { x: left - 8, y: down(v) + 4, "text-anchor": "end" }, text));
    }
    const middle = top + side / 2;
    svg.append(
      element("text", { x: left + side / 2, y: top + side + 38, "text-anchor": "middle" },
        "first direction, in filter norms"),
      element("text", { x: 14, y: middle, "text-anchor": "middle",
        transform: `rotate(-90 14 ${middle})` }, "second direction, in filter norms"));
    if (places[0] <= 0 && places[n - 1] >= 0) {
      svg.append(element("circle", { cx: right(0), cy: down(0), r: 5, fill: "var(--card)",
        stroke: "var(--ink)", "stroke-width": 1.5 }, element("title", {}, "the weights")));
    }
    return element("div", { class: "panel" }, element("div", { class: "panel-head" },
      element("h3", {},
        `Loss in a plane of two random directions${atStep}; the circle: the weights`),
      colors(lo, hi, strength, opacity, losses.every(row => row.every(v => v !== null)))), svg);
  }

  if (data.slices && byId("slices")) {
    byId("slices").append(data.slices.plane ? plane(data.slices) : lines(data.slices));
  }

  // ---- the strip of events over time: each start or resume begins a new band
  function drawStrip() {
    const strip = byId("strip");
    const marks = data.marks.filter(m => m.seconds !== undefined);
    if (!strip || marks.length === 0 || !(data.seconds > 0)) return;
    const width = Math.max(strip.clientWidth, 200), left = 2, right = 2, mid = 24;
    const at = s => left + s / data.seconds * (width - left - right);
    const svg = element("svg", { class: "chart", viewBox: `0 0 ${width} 58`, role: "img",
      "aria-label": "events over time", style: "height: 58px; cursor: default" });
    const begins = marks.filter(m => m.kind === "start" || m.kind === "resume").map(m => m.seconds);
    begins.forEach((begin, i) => {
      const last = i + 1 === begins.length, end = last ? data.seconds : begins[i + 1];
      svg.append(element("rect", { class: "session", x: at(begin), y: mid - 7, rx: 3, height: 14,
        width: Math.max(at(end) - at(begin) - (last ? 0 : 2), 1) }));
    });
    for (const m of marks) {
      const title = element("title", {}, `${asDuration(m.seconds)}: ${m.text}`);
      const x = at(m.seconds);
      if (m.tone !== "plain") {
        svg.append(element("path", { class: `pin ${m.tone}`, d: `M${x} ${mid - 9}l-5 -9h10z` }, title));
      } else if (m.kind !== "start") {
        const half = m.kind === "checkpoint" ? 7 : 3.5;
        svg.append(element("line", { class: "tick", x1: x, x2: x, y1: mid - half, y2: mid + half,
          opacity: m.kind === "checkpoint" ? 0.9 : 0.45 }, title));
      }
    }
    for (const v of ticks(0, data.seconds, Math.max(2, Math.floor(width / 110)), timeSteps).values) {
      const x = at(v);
      svg.append(element("text", { x, y: 52,
        "text-anchor": x < 16 ? "start" : x > width - 24 ? "end" : "middle" },
      tickText(v, 1, "duration")));
    }
    strip.replaceChildren(svg);
  }
  if (byId("strip")) whenResized(byId("strip"), drawStrip);

  // ---- kinds of events, each a switch
  const rows = [...document.querySelectorAll(".events tbody tr")];
  const kindOf = row => row.querySelector(".kind")?.textContent;
  const kinds = [...new Set(rows.map(kindOf))].filter(kind => kind !== undefined);
  if (byId("kinds") && kinds.length > 1) {
    for (const kind of kinds) {
      const mine = rows.filter(row => kindOf(row) === kind);
      byId("kinds").append(element("button", { type: "button", "aria-pressed": "true", onclick: e => {
        const on = e.target.getAttribute("aria-pressed") !== "true";
        e.target.setAttribute("aria-pressed", String(on));
        mine.forEach(row => row.toggleAttribute("hidden", !on));
      } }, `${kind} ${data.kinds[kind] || mine.length}`));
    }
  }

  // ---- configuration and commands
  const config = byId("config"), all = byId("all-options");
  if (config && all) {
    const showAll = () => config.classList.toggle("only-changed", !all.checked);
    all.addEventListener("change", showAll);
    showAll();
  }
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentNode.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      } catch {
        getSelection().selectAllChildren(code);
      }
    });
  }
})();
