#include <algorithm>

#include <fmt/format.h>

#include "ductile/page/html.h"
#include "ductile/page/numbers.h"
#include "ductile/plan/report_impl.h"

namespace ductile::plan {

using page::as_percent;
using page::as_short_duration;
using page::escape_html;

namespace {

std::string stage_table(const Report& r) {
  page::HtmlTable table({{"Stage"},
                         {"Devices"},
                         {"Replicas", true},
                         {"Split", true},
                         {"Micro-batch", true},
                         {"In flight", true},
                         {"Forward", true},
                         {"Backward", true},
                         {"Memory of each device"},
                         {"Operators"}},
                        "figures");
  const OpNames names(r.graph);
  for (size_t i = 0; i < r.planned.plan.stages.size(); ++i) {
    const Stage& s = r.planned.plan.stages[i];
    const StageTimes& t = r.costs.times[i];
    const double peak = r.timeline.peak_memory[i], limit = r.timeline.memory_limit[i];
    std::string extra;
    if (!s.recompute.empty()) extra += fmt::format(", {} recomputed", s.recompute.size());
    if (s.shard_optimizer) extra += ", optimiser sharded";
    const std::string memory = fmt::format("{} of {}", page::as_bytes(peak), page::as_bytes(limit));
    table.row({fmt::format("{}", i),
               s.devices.empty() ? fmt::format("{}", s.num_devices()) : device_runs(s.devices),
               fmt::format("{}", s.replicas), fmt::format("{}", s.tensor),
               fmt::format("{}", s.micro_batch), fmt::format("{}", r.timeline.peak_in_flight[i]),
               as_short_duration(t.forward),
               as_short_duration(t.backward_input + t.backward_weight),
               page::Cell::of_markup(page::meter(peak / limit, memory))
                   .with_tone(peak > limit ? "worse" : ""),
               page::Cell(names.ends(s) + extra).with_tone("wide").with_title(names.some(s))});
  }
  return table.html();
}

std::string comparison(const Report& r) {
  page::HtmlTable table({{"Planner"},
                         {"Iteration", true},
                         {"Samples/s", true},
                         {"This plan is faster by", true},
                         {"Bubble", true},
                         {"Stages", true},
                         {"Search", true}},
                        "figures");
  const auto row = [&](std::string_view name, const Timeline& t, const Plan& plan, double cpu,
                       bool ours) {
    const double ratio = r.timeline.seconds > 0 ? t.seconds / r.timeline.seconds : 1;
    table.row({name, as_short_duration(t.seconds), page::with_thousands(t.throughput(plan)),
               ours ? page::Cell()
                    : page::Cell(fmt::format("{:.2f} x", ratio))
                          .with_tone(ratio >= 1 ? "better" : "worse"),
               as_percent(t.bubble), fmt::format("{}", plan.stages.size()),
               cpu > 0 ? as_short_duration(cpu) : ""},
              ours ? "first" : "");
  };
  row("ductile", r.timeline, r.planned.plan, r.planned.cpu_seconds, true);
  for (const Compared& c : r.compared) {
    if (c.result.ok()) {
      row(c.result.timed_out ? c.name + ", ended by the time limit" : c.name, c.timeline,
          c.result.plan, c.result.cpu_seconds, false);
    } else {
      table.row({c.name, page::Cell(c.result.failure).with_tone("wide").across(6)});
    }
  }
  return table.html();
}

std::vector<page::Tile> headline(const Report& r) {
  const Planned& p = r.planned;
  std::vector<page::Tile> tiles = {
      {"Iteration", as_short_duration(r.timeline.seconds)},
      {samples_word(r.graph) + " per second", page::with_thousands(r.timeline.throughput(p.plan))},
      {"Bubble", as_percent(r.timeline.bubble)},
      {"Stages", fmt::format("{}", p.plan.stages.size())},
      {"Devices used", fmt::format("{}", p.plan.num_devices())}};
  if (p.lower_bound > 0 && p.formula_seconds > 0)
    tiles.push_back({"Above the bound at most", as_percent(p.schedule_gap)});
  return tiles;
}

// How the plan was found, and how far it may be from the best.
std::string search_note(const Report& r) {
  const Planned& p = r.planned;
  return fmt::format(
      "Under a row of the timeline: what its devices send. The planner searched by a formula, "
      "which "
      "gives {}{}; the best it found is {} above the least that any plan of its space has by it. "
      "It "
      "leaves out what a good schedule hides and a busy link delays, so the timeline may lie on "
      "either side. Under any schedule no plan of the space, where each stage has devices of its "
      "own, takes less than {}: the plan takes at most {} more than the best of these. Searched in "
      "{} of CPU time: {}{}.",
      as_short_duration(p.formula_seconds),
      r.objective == Objective::time ? "" : " for the steady state", as_percent(p.gap),
      as_short_duration(p.schedule_bound), as_percent(p.schedule_gap),
      as_short_duration(p.cpu_seconds), p.space, p.timed_out ? "; ended by the time limit" : "");
}

std::string plan_markup(const Report& r) {
  double height = 0;
  const std::string picture = svg_body(r, height);
  std::string out = page::tiles(headline(r));
  std::string pictured = fmt::format(
      "<div class=\"card scroll\"><svg class=\"picture\" viewBox=\"0 0 1200 {:.0f}\" role=\"img\" "
      "aria-label=\"stage graph and timeline\">{}</svg></div>\n",
      height, picture);
  if (r.planned.formula_seconds > 0)
    pictured += fmt::format("<p class=\"note-text\">{}</p>\n", escape_html(search_note(r)));
  out += page::section("Stages and one iteration", pictured, false);
  out += page::section("Stages", stage_table(r));
  if (!r.compared.empty()) out += page::section("Other planners, by the same judge", comparison(r));
  return out;
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
  page::Page page;
  page.kind = "Ductile plan";
  page.title = r.graph.name;
  page.about = {escape_html(about)};
  page.style = kPictureCss;
  page.body = p.feasible ? plan_markup(r)
                         : fmt::format("<p class=\"banner\">{}</p>\n", escape_html(advice(r)));
  return page::to_html(page);
}

}  // namespace ductile::plan
