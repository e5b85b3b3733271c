// Charts of a page: curves that share their x axis, grouped bars, timelines of many rows. SVG and
// canvas in the page's own colours (colors.css), redrawn when the width or the theme changes.
// Nothing here interprets text as markup: a name from the data can only ever be shown.
"use strict";

(() => {
  const { extent, logTicks, logTimeTicks, nearest, scale, smoothed, tickText, ticks, timeSteps,
    valueText, visible, ySpan } = globalThis.ductile;

  // ---- elements
  const svgNames = new Set(["svg", "path", "line", "text", "circle", "rect", "g", "title",
    "clipPath", "defs"]);

  // element("p", { class: "about", onclick: f }, "text", child): children that are text stay text.
  function element(name, attributes, ...children) {
    const e = svgNames.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
      else if (key === "style") e.style.cssText = value;  // an attribute falls under a page's policy
      else e.setAttribute(key, value);
    }
    e.append(...children);
    return e;
  }

  const color = i => `var(--c${i % 8})`;
  const swatch = i => element("span", { class: "swatch", style: `background: ${color(i)}` });
  const pageData = () => JSON.parse(document.getElementById("data").textContent);

  // ---- charts that share their x axis: pointing at one marks that place in all of them, dragging
  // in one zooms all, a double click or the button shows everything again
  function chartGroup() {
    const group = {
      hover: null, range: null, charts: [],
      button: element("button", { type: "button", hidden: "", onclick: () => group.zoom(null) },
        "Show all"),
      add(chart) { group.charts.push(chart); },
      point(x) {
        group.hover = x;
        for (const chart of group.charts) chart.point();
      },
      zoom(range) {
        group.range = range;
        group.button.hidden = range === null;
        group.draw();
      },
      draw() { for (const chart of group.charts) chart.draw(); },
    };
    return group;
  }

  // Calls `draw` now, and whenever the box has another width; not while the page is being laid out.
  function whenResized(box, draw) {
    let width = box.clientWidth;
    draw();
    new ResizeObserver(() => {
      if (box.clientWidth === width) return;
      width = box.clientWidth;
      requestAnimationFrame(draw);
    }).observe(box);
  }

  // Pointing, dragging and keys on a chart. `place` gives its x scale and its longest series.
  function listen(node, group, place) {
    let start = null;
    const xOf = event => {
      const { x } = place();
      const v = x.value(event.clientX - node.getBoundingClientRect().left);
      return Math.min(Math.max(v, x.lo), x.hi);
    };
    node.addEventListener("pointerdown", event => {
      if (!place()) return;
      start = event.clientX;
      group.point(xOf(event));
    });
    node.addEventListener("pointermove", event => {
      if (!place()) return;
      group.dragged = start !== null && Math.abs(event.clientX - start) > 5
        ? [start, event.clientX].map(px => xOf({ clientX: px })).sort((a, b) => a - b) : null;
      group.point(xOf(event));
    });
    node.addEventListener("pointerup", () => {
      start = null;
      const range = group.dragged;
      group.dragged = null;
      if (range && range[1] > range[0]) group.zoom(range);
    });
    node.addEventListener("pointerleave", () => {
      start = null;
      group.dragged = null;
      group.point(null);
    });
    node.addEventListener("dblclick", () => group.zoom(null));
    node.addEventListener("keydown", event => {
      if (event.key === "Escape") return group.zoom(null);
      const at = place();
      if ((event.key !== "ArrowLeft" && event.key !== "ArrowRight") || !at || !at.xs) return;
      event.preventDefault();
      const i = group.hover === null ? at.xs.length - 1 : nearest(at.xs, group.hover);
      const jump = Math.max(1, Math.round(at.xs.length / 100)) * (event.key === "ArrowLeft" ? -1 : 1);
      group.point(at.xs[Math.min(Math.max(i + jump, 0), at.xs.length - 1)]);
    });
  }

  // ---- curves
  let charts = 0;

  // spec: title, unit, and as needed: zero (the axis begins there), range (of the axis), steps (the
  // value holds until the next), target, last (the legend gives the last values), ends (beyond its
  // last point a curve has no value), height.
  // show({ series: [{ name, color, x, y, smooth, faint }], x: { unit, log, lo, hi }, log, smoothing,
  // marks: [{ x, tone, text }] }) draws it; x values ascend. A faint series lies behind the others and
  // has no place in the legend: pointing at its curve names it.
  function lineChart(group, spec) {
    const legend = element("div", { class: "legend" });
    const svg = element("svg", { class: "chart", tabindex: "0", role: "img",
      "aria-label": spec.title });
    const box = element("div", { class: "panel" },
      element("div", { class: "panel-head" }, element("h3", {}, spec.title), legend), svg);
    const clip = `clip${charts++}`;
    const height = spec.height || 214, left = 50, right = 10, top = 10, bottom = 26;
    let view = null, series = [], x = null, y = null, log = false, overlay = null;

    const prepare = () => {
      log = Boolean(view.log && spec.log);
      series = view.series.map((s, i) => {
        const [begin, end] = group.range ? visible(s.x, group.range[0], group.range[1]) : [0, s.x.length];
        const keep = [];
        for (let k = begin; k < end; ++k) {
          if (s.y[k] !== null && (!log || s.y[k] > 0)) keep.push(k);
        }
        const values = keep.map(k => s.y[k]);
        const smooth = s.smooth && view.smoothing > 0 && values.length > 20;
        return { name: s.name, faint: Boolean(s.faint),
          color: s.faint ? "var(--muted)" : color(s.color === undefined ? i : s.color),
          x: keep.map(k => s.x[k]), y: values,
          line: smooth ? smoothed(values, view.smoothing) : values };
      });
      return extent(series.map(s => s.y));
    };

    const grid = (width, base) => {
      const values = log ? logTicks(y.lo, y.hi, 5) : ticks(y.lo, y.hi, 5).values
        .filter(v => spec.unit !== "count" || v === Math.round(v));
      const step = values.length > 1 ? values[1] - values[0] : values[0];
      for (const v of values) {
        const at = y.at(v);
        svg.append(
          element("line", { class: "gridline", x1: left, x2: width - right, y1: at, y2: at }),
          element("text", { x: left - 8, y: at + 4, "text-anchor": "end" },
            tickText(v, step, spec.unit)));
      }
      svg.append(element("line", { class: "axis", x1: left, x2: width - right, y1: base, y2: base }));
      const unit = view.x.unit, count = Math.max(2, Math.floor((width - left) / 84));
      const along = view.x.log ? { values: logTimeTicks(x.lo, x.hi, count), step: 1 }
        : ticks(x.lo, x.hi, count, unit === "duration" ? timeSteps : undefined);
      for (const v of along.values) {
        if (unit === "step" && v !== Math.round(v)) continue;
        const at = x.at(v);
        svg.append(element("text", { x: at, y: base + 17,
          "text-anchor": at > width - right - 16 ? "end" : "middle" },
        tickText(v, along.step, unit)));
      }
    };

    const decorate = (width, base) => {
      for (const m of view.marks || []) {
        if (m.x < x.lo || m.x > x.hi) continue;
        const at = { x1: x.at(m.x), x2: x.at(m.x), y1: top, y2: base };
        svg.append(element("line", { class: `mark ${m.tone}`, ...at }),
          element("line", { class: "mark-area", ...at }, element("title", {}, m.text)));
      }
      if (spec.target === undefined || (log && spec.target <= 0)) return;
      const at = y.at(spec.target);
      svg.append(element("line", { class: "target", x1: left, x2: width - right, y1: at, y2: at }),
        element("text", { class: "target-text", x: left + 6, y: at < top + 16 ? at + 14 : at - 5 },
          `target ${tickText(spec.target, 1e-4, spec.unit)}`));
    };

    const curves = () => {
      const inside = element("g", { "clip-path": `url(#${clip})` });
      const path = (s, values) => s.x.map((v, i) => {
        const px = x.at(v).toFixed(1), py = y.at(values[i]).toFixed(1);
        return i === 0 ? `M${px} ${py}` : spec.steps ? `H${px}V${py}` : `L${px} ${py}`;
      }).join("");
      for (const s of series.filter(s => s.faint && s.x.length > 0)) {
        const name = element("title", {}, s.name);
        inside.append(s.x.length > 1
          ? element("path", { class: "curve faint", stroke: s.color, d: path(s, s.y) }, name)
          : element("circle", { class: "faint", cx: x.at(s.x[0]), cy: y.at(s.y[0]), r: 2.6,
            fill: s.color }, name));
      }
      for (const s of series.filter(s => !s.faint)) {
        if (s.line !== s.y) {
          inside.append(element("path", { class: "curve raw", stroke: s.color, d: path(s, s.y) }));
        }
        inside.append(element("path", { class: "curve", stroke: s.color, d: path(s, s.line) }));
        if (s.x.length > 40 || spec.steps) continue;
        s.x.forEach((v, i) => inside.append(element("circle", { cx: x.at(v), cy: y.at(s.y[i]),
          r: s.x.length === 1 ? 4 : 2.6, fill: s.color })));
      }
      svg.append(inside);
    };

    const chart = {
      box,
      show(next) {
        view = next;
        chart.draw();
      },
      draw() {
        if (!view) return;
        const width = Math.max(svg.getBoundingClientRect().width || 600, 200);
        svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
        svg.style.height = `${height}px`;
        svg.replaceChildren();
        const [lo, hi] = prepare();
        if (lo > hi) {
          x = null;
          svg.append(element("text", { x: width / 2, y: height / 2, "text-anchor": "middle" },
            group.range ? "nothing here" : "no finite values"));
          return chart.point();
        }
        const base = height - bottom;
        const [x0, x1] = group.range || [view.x.lo, view.x.hi];
        x = scale(x0, x1, left, width - right, view.x.log);
        y = scale(...ySpan(lo, hi, spec, log), base, top, log);
        svg.append(element("defs", {}, element("clipPath", { id: clip }, element("rect",
          { x: left - 4, y: 0, width: width - left - right + 8, height: base + 2 }))));
        grid(width, base);
        decorate(width, base);
        curves();
        overlay = element("g", { "pointer-events": "none" });
        svg.append(overlay);
        chart.point();
      },
      point() {
        legend.replaceChildren();
        if (overlay) overlay.replaceChildren();
        if (!x) return;
        const at = group.hover;
        if (at !== null) {
          legend.append(element("span", { class: "at" }, valueText(at, view.x.unit)));
          overlay.append(element("line", { class: "cross", x1: x.at(at), x2: x.at(at), y1: top,
            y2: height - bottom }));
        }
        if (group.dragged) {
          const [from, to] = group.dragged.map(x.at);
          overlay.append(element("rect", { class: "zoom", x: from, y: top, width: to - from,
            height: height - bottom - top }));
        }
        for (const s of series) if (!s.faint) legend.append(item(s, at));
      },
    };

    // A series in the legend, and its point in the chart.
    const item = (s, at) => {
      const node = element("span", {},
        element("span", { class: "swatch", style: `background: ${s.color}` }), s.name);
      const beyond = spec.ends && at !== null && at > s.x[s.x.length - 1];
      if (!s.x.length || beyond || (at === null && !spec.last)) return node;
      let i = s.x.length - 1;
      if (at !== null) {
        i = nearest(s.x, at);
        if (spec.steps && s.x[i] > at && i > 0) --i;
        overlay.append(element("circle", { cx: x.at(spec.steps ? at : s.x[i]), cy: y.at(s.line[i]),
          r: 4, fill: s.color, stroke: "var(--card)", "stroke-width": 2 }));
      }
      node.append(s.name ? " " : "", element("b", {}, valueText(s.y[i], spec.unit)));
      return node;
    };

    listen(svg, group, () => x && { x,
      xs: series.reduce((longest, s) => (s.x.length > longest.length ? s.x : longest), []) });
    whenResized(box, chart.draw);
    group.add(chart);
    return chart;
  }

  // ---- bars: a group for each category, in it a bar for each series
  // spec: title, unit, log, categories, series: [{ name, values }], height.
  function barChart(spec) {
    const svg = element("svg", { class: "chart", role: "img", "aria-label": spec.title,
      style: "cursor: default" });
    const box = element("div", { class: "panel" },
      element("div", { class: "panel-head" }, element("h3", {}, spec.title)), svg);
    const height = spec.height || 214, left = 50, right = 10, top = 10, bottom = 26;
    const draw = () => {
      const width = Math.max(svg.getBoundingClientRect().width || 600, 200);
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.style.height = `${height}px`;
      svg.replaceChildren();
      const [least, hi] = extent(spec.series.map(s => s.values.filter(v => v > 0)));
      if (least > hi) return;
      const lo = spec.log ? Math.max(least / 2, 1e-12) : 0, base = height - bottom;
      const y = scale(lo, hi * 1.05, base, top, spec.log);
      const marks = !spec.log ? ticks(lo, y.hi, 5).values
        : spec.unit === "duration" ? logTimeTicks(lo, y.hi, 5) : logTicks(lo, y.hi, 5);
      const step = marks.length > 1 ? marks[1] - marks[0] : marks[0];
      for (const v of marks) {
        svg.append(
          element("line", { class: "gridline", x1: left, x2: width - right, y1: y.at(v), y2: y.at(v) }),
          element("text", { x: left - 8, y: y.at(v) + 4, "text-anchor": "end" },
            tickText(v, step, spec.unit)));
      }
      const slot = (width - left - right) / spec.categories.length;
      const bar = Math.min(slot * 0.8 / spec.series.length, 22);
      spec.categories.forEach((name, k) => {
        const begin = left + slot * k + (slot - bar * spec.series.length) / 2;
        spec.series.forEach((s, i) => {
          const at = Math.min(y.at(Math.max(s.values[k], lo)), base);
          svg.append(element("rect", { x: begin + i * bar + 0.5, width: Math.max(bar - 1, 0.5), y: at,
            height: base - at, fill: color(i), rx: 1.5 },
          element("title", {}, `${name}, ${s.name}: ${valueText(s.values[k], spec.unit)}`)));
        });
        // Where names do not fit they are cut; pointing at the bar tells them.
        const fits = Math.max(Math.floor(slot / 6.4), 1);
        svg.append(element("text", { x: left + slot * (k + 0.5), y: height - 8,
          "text-anchor": "middle" }, name.length > fits ? `${name.slice(0, fits - 1)}\u2026` : name));
      });
      svg.append(element("line", { class: "axis", x1: left, x2: width - right, y1: base, y2: base }));
    };
    whenResized(box, draw);
    return { box, draw };
  }

  // ---- timelines: bars in rows, on a canvas, since there may be many thousands
  let tip = null;
  function showTip(text, event) {
    if (!tip) {
      tip = element("div", { class: "tip", hidden: "" });
      document.body.append(tip);
    }
    tip.hidden = text === null;
    if (text === null) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - 330))}px`;
    tip.style.top = `${event.clientY + 14}px`;
  }

  // spec: title, label (for who cannot see it), rows: [[name, count]], bars: [[row, rows, from, to,
  // of]], color(of) a number, text(bar) of a bar, marks: [x], x: { lo, hi }; as needed: tallest (row,
  // in pixels), tick(x) the text of a place on the axis, choose(bar) when one is clicked.
  function timeline(group, spec) {
    const canvas = element("canvas", { role: "img", "aria-label": spec.label });
    const box = element("div", { class: "panel stacked" },
      element("div", { class: "panel-head" }, element("h3", {}, spec.title)), canvas);
    const total = spec.rows.reduce((sum, [, n]) => sum + n, 0);
    const row = Math.max(3, Math.min(spec.tallest || 7, 480 / total)), left = 62, right = 8, bottom = 20;
    const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    let x = null, shaded = false;

    const labels = (g, width) => {
      g.fillStyle = css("--muted");
      g.font = "11px system-ui, sans-serif";
      g.textAlign = "right";
      let at = 0, last = -99;
      for (const [name, n] of spec.rows) {
        const y = (at + n / 2) * row + 4;
        if (y - last >= 13) {
          g.fillText(name, left - 6, y);
          last = y;
        }
        g.save();
        g.fillStyle = css("--line");
        g.fillRect(left, at * row, width - left - right, 0.5);
        g.restore();
        at += n;
      }
      g.textAlign = "center";
      for (const v of ticks(x.lo, x.hi, Math.max(2, Math.floor(width / 110)), timeSteps).values) {
        g.fillText(spec.tick ? spec.tick(v) : tickText(v, 1, "duration"), Math.min(Math.max(x.at(v), left + 14), width - 24),
          total * row + 15);
      }
    };

    const chart = {
      box,
      draw() {
        const width = canvas.clientWidth || 1200, height = total * row + bottom;
        const ratio = devicePixelRatio || 1;
        canvas.width = width * ratio;
        canvas.height = height * ratio;
        canvas.style.height = `${height}px`;
        const g = canvas.getContext("2d");
        g.scale(ratio, ratio);
        const [lo, hi] = group.range || [spec.x.lo, spec.x.hi];
        x = scale(lo, hi, left, width - right);
        g.fillStyle = css("--lane");
        g.fillRect(left, 0, width - left - right, total * row);
        const palette = [0, 1, 2, 3, 4, 5, 6, 7].map(i => css(`--c${i}`));
        g.save();
        g.beginPath();
        g.rect(left, 0, width - left - right, total * row);
        g.clip();
        for (const [first, rows, from, to, of] of spec.bars) {
          if (to < lo || from > hi) continue;
          g.fillStyle = palette[spec.color(of) % 8];
          g.globalAlpha = 0.55 + 0.45 * ((of * 7) % 5) / 4;
          g.fillRect(x.at(from), first * row + 0.5, Math.max(x.at(to) - x.at(from) - 0.5, 0.6),
            rows * row - 0.8);
        }
        g.globalAlpha = 1;
        g.strokeStyle = css("--ink");
        g.lineWidth = 1;
        for (const at of spec.marks) {
          g.beginPath();
          g.setLineDash([3, 3]);
          g.moveTo(x.at(at), 0);
          g.lineTo(x.at(at), total * row);
          g.stroke();
        }
        g.restore();
        labels(g, width);
      },
      point() {
        if (!group.dragged && !shaded) return;
        chart.draw();
        shaded = Boolean(group.dragged);
        if (!shaded) return;
        const [from, to] = group.dragged.map(x.at), g = canvas.getContext("2d");
        g.globalAlpha = 0.18;
        g.fillStyle = css("--accent");
        g.fillRect(from, 0, to - from, total * row);
        g.globalAlpha = 1;
      },
    };
    const barAt = event => {
      const rect = canvas.getBoundingClientRect();
      const at = Math.floor((event.clientY - rect.top) / row), t = x.value(event.clientX - rect.left);
      return spec.bars.find(b => at >= b[0] && at < b[0] + b[1] && t >= b[2] && t <= b[3]);
    };
    canvas.addEventListener("pointermove", event => {
      const bar = barAt(event);
      showTip(bar ? spec.text(bar) : null, event);
    });
    if (spec.choose) {
      canvas.addEventListener("click", event => {
        const bar = barAt(event);
        if (!bar) return;
        showTip(null);
        spec.choose(bar);
      });
    }
    canvas.addEventListener("pointerleave", () => showTip(null));
    listen(canvas, group, () => x && { x });
    whenResized(box, chart.draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", chart.draw);
    group.add(chart);
    return chart;
  }

  // ---- controls: options are [value, text]; `set` is called with the one that was chosen
  function choice(options, get, set) {
    const box = element("div", { class: "choice", role: "group" });
    const mark = () => buttons.forEach((b, i) =>
      b.setAttribute("aria-pressed", String(options[i][0] === get())));
    const buttons = options.map(([value, text]) => element("button", { type: "button",
      onclick: () => {
        set(value);
        mark();
      } }, text));
    box.append(...buttons);
    mark();
    return box;
  }

  // What goes wrong in a script is said on the page, not only in the browser's console.
  if (typeof window !== "undefined") {
    window.addEventListener("error", event => {
      if (!event.error) return;  // a notice of the browser
      document.querySelector("main").prepend(element("p", { class: "banner" },
        `A part of this page could not be drawn (${event.message}); its numbers are still in it ` +
        "and in the files beside it."));
    });
  }

  Object.assign(globalThis.ductile, {
    barChart, chartGroup, choice, color, element, lineChart, pageData, swatch, timeline, whenResized,
  });
})();
