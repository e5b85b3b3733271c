// The report of a tuning session: the curves of its trials.
"use strict";

(() => {
  const { chartGroup, element, lineChart, pageData } = globalThis.ductile;
  const data = pageData();
  const panels = /** @type {any} */ (document.getElementById("panels"));
  if (!data.curves.length) {
    panels.append(element("p", { class: "empty" }, "No evaluations yet."));
    return;
  }
  const group = chartGroup();
  const chart = lineChart(group, {
    title: `${data.metric} by epochs`, unit: data.metric === "accuracy" ? "percent" : "number", last: true,
    height: 320 });
  chart.box.querySelector(".panel-head").append(group.button);
  panels.append(chart.box);
  chart.show({ series: data.curves, x: { unit: "epoch", lo: 0, hi: data.epochs }, log: false,
    smoothing: 0, marks: [] });
})();
