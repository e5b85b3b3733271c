#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/version.h"
#include "ductile/page/numbers.h"
#include "ductile/page/progress_bar.h"
#include "ductile/page/terminal.h"
#include "ductile/sched/policy.h"
#include "ductile/sim/experiment.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/report.h"

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
  if (c.interference > 0) out += fmt::format("; interference {}", c.interference);
  if (c.neighbours > 1)
    out += fmt::format("; beside others steps take {} times as long", c.neighbours);
  if (c.unique) out += "; an application a job";
  if (c.device_cost) out += fmt::format("; device cost {}", *c.device_cost);
  return out;
}

std::string made_by(const Context& context) {
  return fmt::format("ductile {}: {}", version(), context.command);
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
  bool sla = false, services = false, unfinished = false;
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
  if (shown.unfinished)
    row.insert(row.begin() + 1, page::with_thousands(static_cast<double>(s.jobs - s.unfinished)));
  if (shown.sla) {
    const sim::TierSummary& basic = s.tiers[2];
    row.insert(row.end(), {kept(s.tiers[0]), kept(s.tiers[1]),
                           basic.windows == 0 ? "-" : fmt::format("{:.2f}", basic.fraction)});
  }
  if (shown.services)
    row.push_back(fmt::format("{:.1f} % ({:.0f} %)", 100 * s.attained, 100 * s.worst_hour));
  row.push_back(page::as_duration(s.decision_mean));
  return row;
}

sim::Catalog catalog_of(const SimCommand& command, const std::optional<fs::path>& traces) {
  sim::Catalog catalog = traces ? sim::read_catalog(*traces) : sim::built_in_catalog();
  catalog.rules.restart = command.restart;
  catalog.rules.resize = command.resize;
  catalog.rules.start_known = !command.as_service;
  catalog.rules.whole_seconds = !command.as_service;
  return catalog;
}

sim::ExperimentOptions experiment_of(const SimCommand& command) {
  sim::ExperimentOptions options;
  options.policies = split_list(command.policies);
  for (const std::string& policy : options.policies) sched::make_policy(policy);  // an error now
  options.sim.budget = budget_of(command.budget);
  options.sim.check = command.check;
  options.sim.interference = command.interference;
  options.sim.neighbours = command.neighbours;
  options.sim.as_service = command.as_service;
  options.sim.control = command.control;
  options.sim.noise = command.noise;
  options.sim.information = sim::information_from(command.information);
  options.first_seed = command.seed;
  options.num_seeds = command.seeds;
  options.load = command.load;
  options.interval = command.interval;
  options.device_cost = command.device_cost;
  options.unique = command.unique;
  options.bound = command.bound;
  options.keep_history = command.out.has_value();
  options.synthetic.tiers = command.tiers;
  options.synthetic.services = command.services;
  options.synthetic.teams = static_cast<int32_t>(command.teams);
  if (command.jobs > 0) options.synthetic.jobs = command.jobs;
  options.synthetic.hours = 8.0 * static_cast<double>(options.synthetic.jobs) / 160;
  return options;
}

std::vector<sim::Workload> read_workloads(const std::vector<fs::path>& files, int64_t jobs,
                                          const sim::Catalog& catalog) {
  std::vector<sim::Workload> workloads;
  for (const fs::path& file : files) {
    workloads.push_back(sim::read_workload(file, catalog));
    if (jobs > 0) sim::truncate(workloads.back(), jobs);
  }
  return workloads;
}

// As --out asks for.
void write_results(const fs::path& folder, const std::vector<sim::ExperimentRun>& runs,
                   const sched::Cluster& cluster, const std::string& conditions, Context& context) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& run : runs) all.push_back(sim::to_json(run.result));
  write_file_atomic(folder / "runs.json", dump_json(all) + "\n");
  write_file_atomic(
      folder / "report.html",
      sim::report_html(runs, cluster, fmt::format("{}. {}", conditions, made_by(context))));
  context.console.say("report: {}", (folder / "report.html").string());
}

void say_control(const std::vector<sim::ExperimentRun>& runs, Console& console) {
  for (const auto& run : runs) {
    const sim::ControlStats& c = run.result.control;
    console.say(
        "control plane, {} on {}: {} changes in {:.2f} s each (slowest {:.1f} s), {} generations, "
        "{} messages ({} lost, {} late)",
        run.result.policy, run.result.workload, c.changes,
        c.seconds / static_cast<double>(std::max<int64_t>(c.changes, 1)), c.slowest, c.generations,
        c.messages, c.lost, c.late);
  }
}

void print_table(const std::vector<sim::ExperimentRun>& runs,
                 const std::vector<std::string>& policies, Console& console) {
  Shown shown{.bound = sim::mean_bound(runs)};
  for (const auto& run : runs) {
    shown.sla |= run.summary.sla.has_value();
    shown.services |= run.summary.services > 0;
    shown.unfinished |= run.summary.unfinished > 0;
  }
  std::vector<std::vector<std::string>> rows = {{"POLICY", "MEAN JCT", "MEDIAN", "P90", "P99",
                                                 "MAKESPAN", "GPU H", "RESTARTS", "USED",
                                                 "WORST RHO", "MEAN RHO"}};
  if (shown.bound > 0) rows[0].insert(rows[0].begin() + 2, "OF BOUND");
  if (shown.unfinished) rows[0].insert(rows[0].begin() + 1, "FINISHED");
  if (shown.sla) rows[0].insert(rows[0].end(), {"PREMIUM", "STANDARD", "BASIC GOT"});
  if (shown.services) rows[0].push_back("ON TIME (WORST H)");
  rows[0].push_back("DECISION");
  for (const std::string& policy : policies)
    rows.push_back(row_of(policy, sim::average_of(runs, policy), shown));
  console.print("{}", page::table(rows));
}

}  // namespace

ExitCode sim(const SimCommand& command, Context& context) {
  sim::ExperimentOptions options = experiment_of(command);
  const std::vector<fs::path> files = workload_files(command.workloads);
  const sched::Cluster cluster = command.cluster
                                     ? sched::cluster_of(spec::read_cluster(*command.cluster))
                                     : sched::homogeneous_cluster();
  std::optional<fs::path> traces = command.applications;
  if (!traces && !files.empty()) traces = sim::traces_beside(files.front());
  const sim::Catalog catalog = catalog_of(command, traces);
  if (command.scenario) options.sim.scenario = sim::read_scenario(*command.scenario);
  std::vector<sim::Workload> workloads = read_workloads(files, command.jobs, catalog);
  if (command.out) make_folder(*command.out);

  Bar bar(context.console, sim::num_runs(options, workloads.size()));
  sim::ExperimentWatch watch;
  watch.on_workload = [&](const sim::Workload& workload) {
    if (command.out)
      write_file_atomic(*command.out / (workload.name + ".csv"), sim::to_csv(workload));
  };
  watch.on_progress = [&](size_t run, const std::string& policy, const sim::Workload& workload,
                          const sim::SimProgress& progress) {
    bar.show(policy.empty() ? fmt::format("bound on {}", workload.name)
                            : fmt::format("{} on {}, {}", policy, workload.name,
                                          page::as_duration(progress.now)),
             progress, run);
  };
  const std::vector<sim::ExperimentRun> runs =
      sim::run_experiment(options, std::move(workloads), catalog, cluster, watch);
  bar.clear();

  const std::string conditions = conditions_of(command);
  if (command.out) write_results(*command.out, runs, cluster, conditions, context);
  if (command.control) say_control(runs, context.console);
  if (command.json) {
    nlohmann::ordered_json out = sim::to_json(runs, options, cluster);
    out["conditions"] = conditions;
    out["version"] = version();
    out["command"] = context.command;
    context.console.print("{}\n", dump_json(out, 2));
    return kDone;
  }
  print_table(runs, options.policies, context.console);
  const size_t runs_each = runs.size() / options.policies.size();
  context.console.say("{} jobs on {} devices{}; times in seconds, means of {} run{} a policy",
                      runs.front().summary.jobs, cluster.usable_devices(),
                      traces ? "" : ", built-in applications", runs_each,
                      runs_each == 1 ? "" : "s");
  context.console.say("{}", conditions);
  context.console.say("{}", made_by(context));
  if (command.bound)
    context.console.say("estimate of the least mean JCT, with the future known: {} s",
                        seconds(sim::mean_bound(runs)));
  return kDone;
}

}  // namespace ductile::cli
