// The page of simulations: completion times of the policies, curves over time, the cluster.
"use strict";

(() => {
  const { asDuration, asShortDuration, barChart, chartGroup, color, element, extent, lineChart,
    pageData, swatch, timeline } = globalThis.ductile;
  const data = pageData();
  const byId = id => document.getElementById(id);
  const policies = data.policies;
  const runsOf = policy => data.runs.filter(r => r.policy === policy);
  const jobsOf = runs => runs.flatMap(r => r.jobs);
  const apps = [...new Set(jobsOf(data.runs).map(j => j.app))].sort();
  const batchApps = [...new Set(jobsOf(data.runs).filter(j => !j.service).map(j => j.app))].sort();
  const took = job => job.finish - job.arrival;

  // ---- share of jobs done within a time, all runs of a policy together
  function completion() {
    const series = policies.map(policy => {
      const x = jobsOf(runsOf(policy)).filter(j => !j.service).map(j => Math.max(took(j), 1))
        .sort((a, b) => a - b);
      return { name: policy, x, y: x.map((_, k) => (k + 1) / x.length) };
    });
    const [lo, hi] = extent(series.map(s => s.x));
    const chart = lineChart(chartGroup(), { title: "Share of jobs done within", unit: "percent",
      range: [0, 1], steps: true });
    byId("completion").append(chart.box);
    if (lo < hi) chart.show({ series, x: { unit: "duration", log: true, lo, hi } });
  }

  function byApplication() {
    const mean = v => (v.length ? v.reduce((sum, x) => sum + x, 0) / v.length : 0);
    const series = policies.map(policy => ({ name: policy, values: batchApps.map(app =>
      mean(jobsOf(runsOf(policy)).filter(j => j.app === app).map(took))) }));
    byId("completion").append(barChart({ title: "Mean completion time by application",
      unit: "duration", log: true, categories: batchApps, series }).box);
  }

  // ---- one workload: curves over time, a timeline for each policy
  const nameOf = run => run.workload + (run.seed ? `, seed ${run.seed}` : "");
  const workloads = [...new Set(data.runs.map(nameOf))];

  const curves = [
    { key: "goodput", title: "Goodput, jobs an hour", zero: true },
    { key: "waiting", title: "Jobs waiting without a device", unit: "count", zero: true },
    { key: "used", title: "Devices in use", unit: "percent", range: [0, 1] },
  ];
  if (data.services) {
    curves.push({ key: "served", title: "Requests of services answered on time", unit: "percent",
      range: [0, 1] });
  }

  function show(workload) {
    const runs = data.runs.filter(run => nameOf(run) === workload);
    const end = Math.max(...runs.map(run => run.end), 1);
    const group = chartGroup();
    byId("zoom").replaceChildren(group.button);
    const boxes = curves.map(spec => {
      const chart = lineChart(group, { ...spec, ends: true });
      chart.show({ x: { unit: "duration", lo: 0, hi: end }, series: runs.map(run => ({
        name: run.policy, color: policies.indexOf(run.policy), x: run[spec.key].map(p => p[0]),
        y: run[spec.key].map(p => p[1]) })) });
      return chart.box;
    });
    byId("curves").replaceChildren(...boxes);
    byId("timelines").replaceChildren(...runs.map(run => timeline(group, {
      title: `${run.policy}: mean JCT ${asShortDuration(run.mean)}, done after ` +
        asShortDuration(run.end),
      label: `Timeline of ${run.policy}: ${run.jobs.length} jobs`,
      rows: data.rows, bars: run.bars, marks: run.faults.map(([time]) => time),
      x: { lo: 0, hi: end },
      color: job => apps.indexOf(run.jobs[job].app),
      text: ([, , from, to, at]) => {
        const job = run.jobs[at];
        return `${job.name} (${job.app}): held ${asDuration(from)} to ${asDuration(to)}; came ` +
          `${asDuration(job.arrival)}, done ${asDuration(job.finish)}, ${job.restarts} restarts`;
      } }).box));
    group.draw();
  }

  byId("legend").append(...apps.map((app, i) => element("span", {}, swatch(i), app)));
  if (workloads.length > 1) {
    const select = element("select", { "aria-label": "workload" },
      ...workloads.map(name => element("option", {}, name)));
    select.addEventListener("change", () => show(workloads[select.selectedIndex]));
    byId("choice").append(select);
  }
  for (const mark of document.querySelectorAll("[data-policy]")) {
    mark.setAttribute("style", `background: ${color(+mark.getAttribute("data-policy"))}`);
  }
  completion();
  byApplication();
  show(workloads[0]);
})();
