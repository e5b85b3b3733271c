// The page of replays: for each task, the median regret of every method against what was spent.
"use strict";

(() => {
  const { chartGroup, lineChart, pageData } = globalThis.ductile;
  const box = document.getElementById("curves");
  for (const task of pageData().tasks) {
    const group = chartGroup();
    const chart = lineChart(group, { title: task.name, log: true, height: 260 });
    box.append(chart.box);
    const series = task.series.map(s => {
      const kept = s.y.map((v, i) => [i, v]).filter(([, v]) => v !== null);
      return { name: s.name, x: kept.map(([i]) => i * task.end / (s.y.length - 1)),
        y: kept.map(([, v]) => Math.max(v, 1e-4)) };
    });
    chart.show({ series, x: { unit: "step", lo: 0, hi: task.end }, log: true });
  }
})();
