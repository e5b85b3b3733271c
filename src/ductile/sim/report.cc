#include "ductile/sim/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/page/html.h"
#include "ductile/page/numbers.h"

namespace ductile::sim {

extern const std::string_view kReportJs;  // report.js

namespace {

using page::Cell;
using Json = nlohmann::ordered_json;

constexpr int64_t kMostDeviceRows = 256;
constexpr size_t kMostPoints = 160;  // of a curve

// Whole numbers stay short on the page.
double tidy(double value) { return std::round(value * 1000) / 1000; }

// Bars [row, rows, from, to, job]: each node's devices are rows; a job takes the first free ones.
Json bars(const SimResult& result, const sched::Cluster& cluster, bool by_device) {
  std::vector<int64_t> first_row(cluster.nodes() + 1, 0);
  for (int32_t n = 0; n < cluster.nodes(); ++n)
    first_row[n + 1] = first_row[n] + (by_device ? cluster.node_devices[n] : 1);
  std::vector<std::vector<double>> free_at(cluster.nodes());
  for (int32_t n = 0; n < cluster.nodes(); ++n) free_at[n].assign(cluster.node_devices[n], 0);
  Json out = Json::array();
  for (const Segment& segment : result.timeline) {
    for (const sched::NodeShare& share : segment.allocation) {
      if (!by_device) {
        out.push_back(
            {first_row[share.node], 1, tidy(segment.from), tidy(segment.to), segment.job});
        continue;
      }
      int32_t left = share.devices;
      auto& devices = free_at[share.node];
      for (size_t d = 0; d < devices.size() && left > 0;) {
        if (devices[d] > segment.from + 1e-6) {
          ++d;
          continue;
        }
        size_t end = d;
        while (end < devices.size() && left > 0 && devices[end] <= segment.from + 1e-6) {
          devices[end++] = segment.to;
          --left;
        }
        out.push_back({first_row[share.node] + static_cast<int64_t>(d), end - d, tidy(segment.from),
                       tidy(segment.to), segment.job});
        d = end;
      }
    }
  }
  return out;
}

Json curve(const SimResult& result, const std::function<double(const RoundSample&)>& value) {
  Json out = Json::array();
  const size_t step = std::max<size_t>(1, result.rounds.size() / kMostPoints);
  for (size_t i = 0; i < result.rounds.size(); i += step) {
    double sum = 0;
    const size_t end = std::min(i + step, result.rounds.size());
    for (size_t k = i; k < end; ++k) sum += value(result.rounds[k]);
    out.push_back({tidy(result.rounds[i].time), tidy(sum / static_cast<double>(end - i))});
  }
  return out;
}

Json run_json(const ExperimentRun& run, const sched::Cluster& cluster, bool by_device) {
  const SimResult& result = run.result;
  Json jobs = Json::array();
  for (const JobResult& job : result.jobs)
    jobs.push_back({{"name", job.name},
                    {"app", job.application + (job.served ? " (service)" : "")},
                    {"service", job.served.has_value()},
                    {"arrival", tidy(job.arrival)},
                    {"finish", tidy(job.finish)},
                    {"restarts", job.restarts}});
  Json faults = Json::array();
  for (const FaultEvent& fault : result.faults)
    if (fault.start && !fault.announce)
      faults.push_back({tidy(fault.time), to_string(fault.kind), fault.node});
  const auto share = [](double part, double whole, double none) {
    return whole > 0 ? part / whole : none;
  };
  return {{"policy", result.policy},
          {"workload", result.workload},
          {"seed", run.seed},
          {"mean", tidy(run.summary.mean)},
          {"end", tidy(result.end)},
          {"jobs", std::move(jobs)},
          {"bars", bars(result, cluster, by_device)},
          {"faults", std::move(faults)},
          {"goodput", curve(result, [](const auto& r) { return r.goodput; })},
          {"waiting", curve(result, [](const auto& r) { return r.waiting; })},
          {"served", curve(result, [&](const auto& r) { return share(r.on_time, r.load, 1); })},
          {"used", curve(result, [&](const auto& r) {
             return share(static_cast<double>(r.used), static_cast<double>(r.usable), 0);
           })}};
}

// The policies in the order in which they came, each with the mean of its runs.
std::vector<std::pair<std::string, Summary>> averages(const std::vector<ExperimentRun>& runs) {
  std::vector<std::pair<std::string, Summary>> out;
  std::set<std::string> seen;
  for (const ExperimentRun& run : runs) {
    const std::string& policy = run.result.policy;
    if (seen.insert(policy).second) out.emplace_back(policy, average_of(runs, policy));
  }
  return out;
}

// A figure of a policy: which values are better, and none where the runs have no such thing.
struct Figure {
  const char* head;
  int better;  // -1: less, 1: more, 0: neither
  std::string (*text)(double);
  std::function<std::optional<double>(const Summary&)> value;
};

std::string two_digits(double value) { return fmt::format("{:.2f}", value); }
std::string whole(double value) { return page::with_thousands(std::round(value)); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::vector<Figure> figures() {
  const auto always = [](double Summary::*member) {
    return [member](const Summary& s) { return std::optional<double>(s.*member); };
  };
  const auto kept = [](size_t tier) {
    return [tier](const Summary& s) -> std::optional<double> {
      const TierSummary& t = s.tiers[tier];
      if (!s.sla || t.windows == 0) return std::nullopt;
      return static_cast<double>(t.kept) / static_cast<double>(t.windows);
    };
  };
  const auto of_services = [](double Summary::*member) {
    return [member](const Summary& s) {
      return s.services > 0 ? std::optional(s.*member) : std::nullopt;
    };
  };
  const auto duration = page::as_short_duration;
  return {
      {"mean JCT", -1, duration, always(&Summary::mean)},
      {"median", -1, duration, always(&Summary::median)},
      {"p90", -1, duration, always(&Summary::p90)},
      {"p99", -1, duration, always(&Summary::p99)},
      {"makespan", -1, duration, always(&Summary::makespan)},
      {"device hours", -1, whole, always(&Summary::device_hours)},
      {"restarts", -1, two_digits, always(&Summary::restarts)},
      {"utilisation", 0, percent, always(&Summary::utilisation)},
      {"worst \u03c1", -1, two_digits, always(&Summary::worst_fairness)},
      {"mean \u03c1", -1, two_digits, always(&Summary::mean_fairness)},
      {"Premium", 1, percent, kept(0)},
      {"Standard", 1, percent, kept(1)},
      {"Basic got", 1, two_digits,
       [](const Summary& s) {
         return s.sla && s.tiers[2].windows > 0 ? std::optional(s.tiers[2].fraction) : std::nullopt;
       }},
      {"unfinished", -1, whole,
       [](const Summary& s) {
         return s.unfinished > 0 ? std::optional(static_cast<double>(s.unfinished)) : std::nullopt;
       }},
      {"held while work waits", 0, percent, always(&Summary::busy)},
      {"starts", 0, whole, always(&Summary::starts)},
      {"nodes lost by jobs", -1, whole,
       [](const Summary& s) { return s.hits > 0 ? std::optional(s.hits) : std::nullopt; }},
      {"on time", 1, percent, of_services(&Summary::attained)},
      {"worst hour", 1, percent, of_services(&Summary::worst_hour)},
      {"hours done again", -1, whole, [](const Summary& s) {
         return s.lost_hours > 0 ? std::optional(s.lost_hours) : std::nullopt;
       }}};
}

Cell policy_cell(size_t number, const std::string& policy) {
  return Cell::of_markup(fmt::format("<span class=\"swatch\" data-policy=\"{}\"></span><b>{}</b>",
                                     number, page::escape_html(policy)));
}

// The best of each column is marked, where there is more than one.
std::string policy_table(const std::vector<std::pair<std::string, Summary>>& policies) {
  std::vector<page::HtmlTable::Column> columns = {{"policy"}};
  std::vector<std::vector<Cell>> rows;
  for (size_t i = 0; i < policies.size(); ++i) rows.push_back({policy_cell(i, policies[i].first)});
  for (const Figure& figure : figures()) {
    std::vector<std::optional<double>> values;
    std::optional<double> best;
    int count = 0;
    for (const auto& [policy, summary] : policies) {
      const auto v = figure.value(summary);
      values.push_back(v);
      if (!v) continue;
      ++count;
      if (!best || figure.better * *v > figure.better * *best) best = v;
    }
    if (count == 0) continue;
    columns.push_back({figure.head, true});
    for (size_t i = 0; i < policies.size(); ++i) {
      const bool marked = count > 1 && figure.better != 0 && values[i] == best;
      rows[i].push_back(values[i] ? Cell(figure.text(*values[i])).with_tone(marked ? "best" : "")
                                  : Cell());
    }
  }
  page::HtmlTable table(std::move(columns), "figures");
  for (const auto& row : rows) table.row(row);
  return table.html();
}

// A row for each team and policy; "" where no run has teams.
std::string team_table(const std::vector<std::pair<std::string, Summary>>& policies) {
  page::HtmlTable table({{"team"},
                         {"policy"},
                         {"jobs", true},
                         {"mean JCT", true},
                         {"device hours", true},
                         {"above its quota, h", true}},
                        "figures");
  std::set<int32_t> numbers;
  for (const auto& [policy, summary] : policies)
    for (const TeamSummary& team : summary.teams) numbers.insert(team.team);
  for (const int32_t number : numbers) {
    std::string name = fmt::format("{}", number);
    for (size_t i = 0; i < policies.size(); ++i) {
      for (const TeamSummary& team : policies[i].second.teams) {
        if (team.team != number) continue;
        table.row({name, policy_cell(i, policies[i].first),
                   page::with_thousands(static_cast<double>(team.jobs)),
                   page::as_short_duration(team.mean), whole(team.device_hours),
                   whole(team.over_quota_hours)});
        name.clear();  // once
      }
    }
  }
  return numbers.empty() ? "" : page::section("Teams", table.html());
}

std::string layout(const std::vector<std::pair<std::string, Summary>>& policies, bool by_device) {
  return page::section("Policies", policy_table(policies)) + team_table(policies) +
         page::section("Completion times", "<div id=\"completion\" class=\"panels\"></div>",
                       false) +
         "<section><div class=\"bar\"><h2>Over time</h2><div class=\"controls\">"
         "<span id=\"zoom\"></span><span id=\"choice\"></span></div></div>\n"
         "<div id=\"curves\" class=\"panels\"></div></section>\n" +
         fmt::format(
             "<section><h2>Cluster</h2><p class=\"about\">{}; a bar is a job, its colour the "
             "application, a dashed line a fault. Point at a bar for its job; drag here or in a "
             "curve "
             "to see a part of the time, click twice to see all.</p>\n"
             "<div id=\"legend\" class=\"keys\"></div><div id=\"timelines\"></div></section>\n",
             by_device ? "A row is a device" : "A row is a node") +
         "<noscript><p class=\"empty\">The charts are drawn by a script in this page; their "
         "numbers "
         "are in runs.json.</p></noscript>\n";
}

}  // namespace

std::string report_html(const std::vector<ExperimentRun>& runs, const sched::Cluster& cluster,
                        std::string_view about) {
  const auto policies = averages(runs);
  const bool by_device = cluster.usable_devices() <= kMostDeviceRows;
  Json data;
  auto& rows = data["rows"] = Json::array();
  for (int32_t n = 0; n < cluster.nodes(); ++n)
    rows.push_back({fmt::format("{} {}", cluster.types[cluster.node_type[n]], n),
                    by_device ? cluster.node_devices[n] : 1});
  for (const auto& [policy, summary] : policies) data["policies"].push_back(policy);
  data["services"] = std::any_of(policies.begin(), policies.end(),
                                 [](const auto& p) { return p.second.services > 0; });
  std::set<std::string> workloads;
  for (const ExperimentRun& run : runs) {
    workloads.insert(run.result.workload);
    data["runs"].push_back(run_json(run, cluster, by_device));
  }
  const auto count = [](auto n) { return static_cast<double>(n); };
  page::Page page;
  page.kind = "Ductile simulation";
  page.title =
      fmt::format("{} on {} devices",
                  policies.size() == 1 ? "1 policy" : fmt::format("{} policies", policies.size()),
                  cluster.usable_devices());
  page.about = {fmt::format("{}; {} of {}", page::plural(count(workloads.size()), "workload"),
                            page::plural(count(cluster.nodes()), "node"),
                            page::plural(count(cluster.type_count()), "type"))};
  if (!about.empty()) page.about.push_back(page::escape_html(about));
  page.body = layout(policies, by_device);
  page.data = dump_json(data);
  page.scripts = {kReportJs};
  return page::to_html(page);
}

}  // namespace ductile::sim
