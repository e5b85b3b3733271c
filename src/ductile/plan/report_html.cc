#include <algorithm>

#include <fmt/format.h>

#include "ductile/plan/report_impl.h"
#include "ductile/run/format.h"
#include "ductile/run/html.h"

namespace ductile::plan {

using run::escape_html;

namespace {

constexpr std::string_view kPageStyle = R"css(
:root { --page: #f6f6f3; --card: #fdfdfc; --ink: #14140f; --soft: #6a6861; --line: #e3e2db;
  --lane: #efeee8; --f: #2a78d6; --good: #14713f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #0f0f0e; --card: #191918; --ink: #f4f3ee;
  --soft: #a09e95; --line: #2d2d2a; --lane: #262624; --f: #4a93ea; --good: #7fd6a2;
  --bad: #ff9b92; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1260px; margin: 0 auto; padding: 32px 28px 48px; }
h1 { margin: 0; font-size: 28px; font-weight: 650; letter-spacing: -0.015em;
  overflow-wrap: anywhere; }
h2 { margin: 30px 0 10px; font-size: 18px; font-weight: 620; }
.about { margin: 4px 0 18px; color: var(--soft); } .note { margin-top: 12px; font-size: 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 12px 16px; } .tile .label { color: var(--soft); font-size: 13px; }
.tile .value { font-size: 22px; font-weight: 620; font-variant-numeric: tabular-nums; }
.card { padding: 14px; overflow-x: auto; }
.card svg { display: block; width: 100%; min-width: 900px; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.ops { white-space: normal; min-width: 200px; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: none; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.meter { display: inline-block; width: 90px; height: 7px; border-radius: 3px;
  background: var(--lane); margin-right: 8px; overflow: hidden; }
.meter i { display: block; height: 100%; background: var(--f); }
.over { color: var(--bad); } .over .meter i { background: var(--bad); }
.ours td { font-weight: 600; } .better { color: var(--good); } .worse { color: var(--bad); }
)css";

std::string tile(std::string_view label, const std::string& value) {
  return fmt::format(
      "<div class='tile'><div class='label'>{}</div><div class='value'>{}</div>"
      "</div>\n",
      label, escape_html(value));
}

std::string stage_table(const Report& r) {
  std::string out =
      "<table><tr><th>Stage<th>Devices<th class='number'>Replicas<th class='number'>Split"
      "<th class='number'>Micro-batch<th class='number'>In flight<th class='number'>Forward"
      "<th class='number'>Backward<th>Memory of each device<th>Operators</tr>\n";
  const OpNames names(r.graph);
  for (size_t i = 0; i < r.planned.plan.stages.size(); ++i) {
    const Stage& s = r.planned.plan.stages[i];
    const StageTimes& t = r.costs.times[i];
    const double share = r.timeline.peak_memory[i] / r.timeline.memory_limit[i];
    std::string extra;
    if (!s.recompute.empty()) extra += fmt::format(", {} recomputed", s.recompute.size());
    if (s.shard_optimizer) extra += ", optimiser sharded";
    out += fmt::format(
        "<tr><td>{}<td>{}<td class='number'>{}<td class='number'>{}<td class='number'>{}"
        "<td class='number'>{}<td class='number'>{}<td class='number'>{}<td class='{}'>"
        "<span class='meter'><i style='width:{:.1f}%'></i></span>{} of {}<td class='ops' "
        "title='{}'>{}{}"
        "</tr>\n",
        i, s.devices.empty() ? fmt::format("{}", s.num_devices()) : device_runs(s.devices),
        s.replicas, s.tensor, s.micro_batch, r.timeline.peak_in_flight[i], seconds_text(t.forward),
        seconds_text(t.backward_input + t.backward_weight), share > 1 ? "over" : "",
        100 * std::min(1.0, share), run::as_bytes(r.timeline.peak_memory[i]),
        run::as_bytes(r.timeline.memory_limit[i]), names.some(s), names.ends(s), extra);
  }
  return out + "</table>\n";
}

std::string comparison(const Report& r) {
  std::string out =
      "<table><tr><th>Planner<th class='number'>Iteration<th class='number'>Samples/s"
      "<th class='number'>This plan is faster by<th class='number'>Bubble<th class='number'>Stages"
      "<th class='number'>Search</tr>\n";
  const auto row = [&](std::string_view name, const Timeline& t, const Plan& plan, double cpu,
                       bool ours) {
    const double ratio = r.timeline.seconds > 0 ? t.seconds / r.timeline.seconds : 1;
    return fmt::format(
        "<tr{}><td>{}<td class='number'>{}<td class='number'>{}<td class='number {}'>{}"
        "<td class='number'>{}<td class='number'>{}<td class='number'>{}</tr>\n",
        ours ? " class='ours'" : "", escape_html(name), seconds_text(t.seconds),
        run::with_thousands(t.throughput(plan)),
        ours         ? ""
        : ratio >= 1 ? "better"
                     : "worse",
        ours ? "" : fmt::format("{:.2f} x", ratio), run::as_percent(t.bubble), plan.stages.size(),
        cpu > 0 ? seconds_text(cpu) : "");
  };
  out += row("ductile", r.timeline, r.planned.plan, r.planned.cpu_seconds, true);
  for (const Compared& c : r.compared) {
    out += c.result.ok() ? row(c.name, c.timeline, c.result.plan, c.result.cpu_seconds, false)
                         : fmt::format("<tr><td>{}<td class='ops' colspan='6'>{}</tr>\n",
                                       escape_html(c.name), escape_html(c.result.failure));
  }
  return out + "</table>\n";
}

}  // namespace

std::string to_html(const Report& r) {
  const Planned& p = r.planned;
  std::string about =
      fmt::format("{} operators on {} devices", r.graph.ops.size(), r.devices.size());
  if (p.feasible) {
    about += fmt::format(", {} an iteration, {} schedule", samples_text(r.graph, p.plan.batch),
                         p.plan.schedule == ScheduleKind::kfkb ? "1F1B" : "zero-bubble");
  }
  std::string body = fmt::format("<h1>{}</h1><p class='about'>{}</p>\n", escape_html(r.graph.name),
                                 escape_html(about));
  if (!p.feasible) {
    body += fmt::format("<p class='over'>{}</p>\n", escape_html(advice(r)));
  } else {
    body += "<div class='tiles'>" + tile("Iteration", seconds_text(r.timeline.seconds)) +
            tile(samples_word(r.graph) + " per second",
                 run::with_thousands(r.timeline.throughput(p.plan))) +
            tile("Bubble", run::as_percent(r.timeline.bubble)) +
            tile("Stages", fmt::format("{}", p.plan.stages.size())) +
            tile("Devices used", fmt::format("{}", p.plan.num_devices()));
    if (p.lower_bound > 0 && p.formula_seconds > 0) {
      body += tile("Above the bound at most", run::as_percent(p.schedule_gap));
    }
    double height = 0;
    const std::string picture = svg_body(r, height);
    body += fmt::format(
        "</div>\n<h2>Stages and one iteration</h2><div class='card'><svg viewBox='0 0 1200 {:.0f}' "
        "role='img' aria-label='stage graph and timeline'>{}</svg></div>\n",
        height, picture);
    if (p.formula_seconds > 0) {
      const bool time = r.objective == Objective::time;
      body += fmt::format(
          "<p class='about note'>Under a row of the timeline: what its devices send. The planner "
          "searched by a formula, which gives {}{}; the best it found is {} above the least that "
          "any plan of its space has by it. It leaves out what a good schedule hides and a busy "
          "link delays, so the timeline may lie on either side. Under any schedule no plan of the "
          "space takes less than {}: the plan takes at most {} more than the best there is. "
          "Searched in {} of CPU time: {}{}.</p>\n",
          seconds_text(p.formula_seconds), time ? "" : " for the steady state",
          run::as_percent(p.gap), seconds_text(p.schedule_bound), run::as_percent(p.schedule_gap),
          seconds_text(p.cpu_seconds), escape_html(p.space),
          p.timed_out ? "; ended by the time limit" : "");
    }
    body += "<h2>Stages</h2><div class='card'>" + stage_table(r) + "</div>\n";
    if (!r.compared.empty()) {
      body += "<h2>Other planners, by the same judge</h2><div class='card'>" + comparison(r) +
              "</div>\n";
    }
  }
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width, initial-scale=1'><title>Plan of {}</title><style>{}{}</style>"
      "</head>\n<body><main>{}</main></body></html>\n",
      escape_html(r.graph.name), kSvgStyle, kPageStyle, body);
}

}  // namespace ductile::plan
