#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/version.h"
#include "ductile/page/numbers.h"
#include "ductile/page/progress_bar.h"
#include "ductile/page/terminal.h"
#include "ductile/sched/policy.h"
#include "ductile/sim/lower_bound.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/report.h"
#include "ductile/sim/simulator.h"

namespace ductile::cli {
namespace {

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, comma - at);
    if (word.empty()) fail(ErrorCode::invalid_argument, "sim: '{}' has an empty name in it", text);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
    at = comma + 1;
  }
  return words;
}

std::vector<fs::path> workload_files(const std::vector<std::string>& named) {
  std::vector<fs::path> files;
  for (const std::string& name : named) {
    if (!fs::is_directory(name)) {
      files.emplace_back(name);
      continue;
    }
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(name))
      if (entry.path().extension() == ".csv") inside.push_back(entry.path());
    if (inside.empty()) fail(ErrorCode::not_found, "{}: no .csv file in this folder", name);
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

// The nearest folder `traces` with application folders, at or above the workload.
std::optional<fs::path> traces_beside(const fs::path& file) {
  fs::path at = fs::absolute(file).parent_path();
  for (int up = 0; up < 4; ++up, at = at.parent_path()) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(at / "traces", error))
      if (fs::exists(entry.path() / "placements.csv", error)) return at / "traces";
    if (!at.has_relative_path()) break;
  }
  return std::nullopt;
}

std::optional<double> budget_of(const std::string& text) {
  if (text == "none") return std::nullopt;
  if (text == "exact") return 1.0;
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  if (error != std::errc() || end != text.data() + text.size() || !(factor >= 1) || factor > 1e3)
    fail(ErrorCode::invalid_argument,
         "sim: --budget {}: write exact, none, or a factor from 1 to 1000", text);
  return factor;
}

ductile::sim::Information information_of(const std::string& text) {
  if (text == "published") return ductile::sim::Information::published;
  return text == "full" ? ductile::sim::Information::full : ductile::sim::Information::own;
}

// What the figures were made with, for who reads them later.
std::string conditions_of(const SimCommand& c) {
  std::string budget = c.budget == "none" ? "jobs declare nothing of their length"
                       : c.budget == "exact"
                           ? "jobs declare their exact length"
                           : fmt::format("declared lengths are off by up to {}", c.budget);
  std::string out = fmt::format(
      "{}; {}; rounds {}; seed{} {}{}", budget,
      c.restart ? fmt::format("restarts of {} s", *c.restart) : "restarts as each application's",
      c.interval ? fmt::format("every {} s", *c.interval) : "as each policy's",
      c.seeds > 1 ? "s" : "", c.seed,
      c.seeds > 1 ? fmt::format(" to {}", c.seed + c.seeds - 1) : "");
  if (c.information != "own") out += fmt::format("; information: {}", c.information);
  if (c.noise > 0) out += fmt::format("; noise {}", c.noise);
  if (c.unique) out += "; an application a job";
  if (c.device_cost) out += fmt::format("; device cost {}", *c.device_cost);
  return out;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    fail(ErrorCode::unavailable, "sim: --out {}: {}; name a folder that can be made and written",
         folder.string(), error.message());
}

// All runs on one live line of a terminal; nothing elsewhere.
class Bar {
 public:
  Bar(const Console& console, size_t runs) : runs_(runs) {
    if (console.err_terminal && console.verbosity >= 0) bar_.emplace(STDERR_FILENO);
  }
  void show(const std::string& what, const sim::SimProgress& progress, size_t run) {
    if (!bar_) return;
    const double done = progress.jobs > 0 ? static_cast<double>(progress.finished) /
                                                static_cast<double>(progress.jobs)
                                          : 1;
    const double share = (static_cast<double>(run) + done) / static_cast<double>(runs_);
    bar_->show({.parts = {{what, 1}, {fmt::format("{:.0f}%", 100 * share), 2}}, .share = share});
  }
  void clear() {
    if (bar_) bar_->clear();
  }

 private:
  size_t runs_;
  std::optional<page::ProgressBar> bar_;
};

std::string seconds(double value) { return page::with_thousands(std::round(value)); }

// Columns that only some runs have.
struct Shown {
  bool sla = false, services = false;
  double bound = 0;  // of the mean JCT; 0: not asked for
};

std::vector<std::string> row_of(const std::string& policy, const sim::Summary& s, Shown shown) {
  std::vector<std::string> row = {policy,
                                  seconds(s.mean),
                                  seconds(s.median),
                                  seconds(s.p90),
                                  seconds(s.p99),
                                  seconds(s.makespan),
                                  page::with_thousands(std::round(s.device_hours)),
                                  fmt::format("{:.2f}", s.restarts),
                                  fmt::format("{:.1f} %", 100 * s.utilisation),
                                  fmt::format("{:.2f}", s.worst_fairness),
                                  fmt::format("{:.2f}", s.mean_fairness)};
  if (shown.bound > 0) row.insert(row.begin() + 2, fmt::format("{:.2f} x", s.mean / shown.bound));
  const auto kept = [](const sim::TierSummary& tier) {
    return tier.windows == 0 ? "-"
                             : fmt::format("{:.1f} %", 100.0 * static_cast<double>(tier.kept) /
                                                           static_cast<double>(tier.windows));
  };
  if (shown.sla) row.insert(row.end(), {kept(s.tiers[0]), kept(s.tiers[1])});
  if (shown.services)
    row.push_back(fmt::format("{:.1f} % ({:.0f} %)", 100 * s.attained, 100 * s.worst_hour));
  row.push_back(page::as_duration(s.decision_mean));
  return row;
}

}  // namespace

ExitCode sim(const SimCommand& command, Context& context) {
  const std::vector<std::string> policies = split_list(command.policies);
  for (const std::string& policy : policies) sched::make_policy(policy);  // unknown: an error now
  const std::optional<double> budget = budget_of(command.budget);
  const std::vector<fs::path> files = workload_files(command.workloads);
  const sched::Cluster cluster =
      command.cluster ? sched::read_cluster(*command.cluster) : sched::homogeneous_cluster();
  std::optional<fs::path> traces = command.applications;
  if (!traces && !files.empty()) traces = traces_beside(files.front());
  ductile::sim::Catalog catalog =
      traces ? ductile::sim::read_catalog(*traces) : ductile::sim::built_in_catalog();
  catalog.rules.restart = command.restart;
  ductile::sim::SimOptions options;
  options.budget = budget;
  options.check = command.check;
  options.interference = command.interference;
  options.control = command.control;
  options.noise = command.noise;
  options.information = information_of(command.information);
  if (command.scenario) options.scenario = ductile::sim::read_scenario(*command.scenario);

  std::vector<ductile::sim::Workload> workloads;
  for (const fs::path& file : files) {
    workloads.push_back(ductile::sim::read_workload(file, catalog));
    if (command.jobs > 0) ductile::sim::truncate(workloads.back(), command.jobs);
    ductile::sim::compress(workloads.back(), command.load);
  }
  if (command.out) make_folder(*command.out);
  std::vector<ductile::sim::ReportRun> runs;
  std::map<std::string, std::vector<ductile::sim::Summary>> by_policy;
  const size_t total =
      policies.size() * static_cast<size_t>(command.seeds) * std::max<size_t>(workloads.size(), 1);
  Bar bar(context.console, total);
  size_t started = 0;
  std::vector<double> bounds;  // of workloads: files, or one made up a seed
  std::vector<double> least;   // the bound of each run
  for (int64_t s = 0; s < command.seeds; ++s) {
    options.seed = static_cast<uint64_t>(command.seed + s);
    std::vector<ductile::sim::Workload> made;
    if (files.empty()) {
      ductile::sim::SyntheticOptions synthetic;
      synthetic.seed = options.seed;
      synthetic.tiers = command.tiers;
      synthetic.services = command.services;
      synthetic.teams = static_cast<int32_t>(command.teams);
      if (command.jobs > 0) synthetic.jobs = command.jobs;
      synthetic.hours = 8.0 * static_cast<double>(synthetic.jobs) / 160;
      made.push_back(ductile::sim::synthetic_workload(synthetic, catalog));
      ductile::sim::compress(made.back(), command.load);
    }
    // All policies on one workload, then the next: figures stand side by side early.
    const auto& all = files.empty() ? made : workloads;
    for (size_t w = 0; w < all.size(); ++w) {
      const ductile::sim::Workload& workload = all[w];
      const size_t which = files.empty() ? static_cast<size_t>(s) : w;
      if (command.out)
        write_file_atomic(*command.out / (workload.name + ".csv"), ductile::sim::to_csv(workload));
      ductile::sim::Workload unique = workload;
      ductile::sim::Catalog own = catalog;
      if (command.unique) ductile::sim::make_unique(unique, own, options.seed);
      if (command.bound && which == bounds.size()) {
        bar.show(fmt::format("bound on {}", workload.name), {}, started);
        bounds.push_back(ductile::sim::lower_bound(unique, own, cluster).mean_jct);
      }
      for (const std::string& policy : policies) {
        options.interval = command.interval.value_or(sched::usual_interval(policy));
        options.progress = [&](const ductile::sim::SimProgress& progress) {
          bar.show(
              fmt::format("{} on {}, {}", policy, workload.name, page::as_duration(progress.now)),
              progress, started);
        };
        sched::PolicyOptions policy_options{options.seed, options.interval, command.device_cost};
        policy_options.share_by_application =
            options.information != ductile::sim::Information::published;
        const auto decider = sched::make_policy(policy, policy_options);
        ductile::sim::ReportRun done;
        done.seed = command.seed + s;
        done.result = ductile::sim::simulate(unique, own, cluster, *decider, options);
        done.summary = ductile::sim::summarise(done.result, unique, own, cluster);
        by_policy[policy].push_back(done.summary);
        if (!command.out) {
          done.result.timeline.clear();
          done.result.rounds.clear();
        }
        runs.push_back(std::move(done));
        if (command.bound) least.push_back(bounds[which]);
        ++started;
      }
    }
  }
  bar.clear();
  const std::string conditions = conditions_of(command);
  double bound = 0;  // mean over all runs: as many of each policy
  for (const double l : least) bound += l / static_cast<double>(least.size());

  if (command.out) {
    auto all = nlohmann::ordered_json::array();
    for (const auto& run : runs) all.push_back(ductile::sim::to_json(run.result));
    write_file_atomic(*command.out / "runs.json", dump_json(all) + "\n");
    write_file_atomic(*command.out / "report.html",
                      ductile::sim::report_html(runs, cluster,
                                                fmt::format("{}. ductile {}: {}", conditions,
                                                            version(), context.command)));
    context.console.say("report: {}", (*command.out / "report.html").string());
  }
  if (command.control)
    for (const auto& run : runs) {
      const ductile::sim::ControlStats& c = run.result.control;
      context.console.say(
          "control plane, {} on {}: {} changes in {:.2f} s each (slowest {:.1f} s), {} "
          "generations, "
          "{} messages ({} lost, {} late)",
          run.result.policy, run.result.workload, c.changes,
          c.seconds / static_cast<double>(std::max<int64_t>(c.changes, 1)), c.slowest,
          c.generations, c.messages, c.lost, c.late);
    }
  if (command.json) {
    nlohmann::ordered_json out;
    out["cluster"] = sched::to_json(cluster);
    for (const std::string& policy : policies) {
      auto entry = ductile::sim::to_json(ductile::sim::average(by_policy[policy]));
      entry["policy"] = policy;
      if (command.bound) entry["least_mean_jct"] = bound;
      out["policies"].push_back(std::move(entry));
    }
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto& run = runs[i];
      auto entry = ductile::sim::to_json(run.summary);
      entry["policy"] = run.result.policy;
      entry["workload"] = run.result.workload;
      entry["seed"] = run.seed;
      if (command.control) {
        const ductile::sim::ControlStats& c = run.result.control;
        entry["control"] = {{"changes", c.changes}, {"generations", c.generations},
                            {"steps", c.steps},     {"messages", c.messages},
                            {"lost", c.lost},       {"late", c.late},
                            {"seconds", c.seconds}, {"slowest", c.slowest}};
      }
      if (command.bound) entry["least_mean_jct"] = least[i];
      out["runs"].push_back(std::move(entry));
    }
    context.console.print("{}\n", dump_json(out, 2));
    return kDone;
  }
  Shown shown{false, false, bound};
  for (const auto& run : runs) {
    shown.sla |= run.summary.sla.has_value();
    shown.services |= run.summary.services > 0;
  }
  std::vector<std::vector<std::string>> rows = {{"POLICY", "MEAN JCT", "MEDIAN", "P90", "P99",
                                                 "MAKESPAN", "GPU H", "RESTARTS", "USED",
                                                 "WORST RHO", "MEAN RHO"}};
  if (shown.bound > 0) rows[0].insert(rows[0].begin() + 2, "OF BOUND");
  if (shown.sla) rows[0].insert(rows[0].end(), {"PREMIUM", "STANDARD"});
  if (shown.services) rows[0].push_back("ON TIME (WORST H)");
  rows[0].push_back("DECISION");
  for (const std::string& policy : policies)
    rows.push_back(row_of(policy, ductile::sim::average(by_policy[policy]), shown));
  context.console.print("{}", page::table(rows));
  context.console.say("{} jobs on {} devices{}; times in seconds, means of {} run{} a policy",
                      runs.front().summary.jobs, cluster.usable_devices(),
                      traces ? "" : ", built-in applications", by_policy[policies[0]].size(),
                      by_policy[policies[0]].size() == 1 ? "" : "s");
  context.console.say("{}", conditions);
  if (command.bound)
    context.console.say("estimate of the least mean JCT, with the future known: {} s",
                        seconds(bound));
  return kDone;
}

}  // namespace ductile::cli
