// The simulator and the policies, for ductile.sim and ductile.sched.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/python/base_functions_impl.h"
#include "ductile/sched/cluster.h"
#include "ductile/sched/goodput.h"
#include "ductile/sched/perf_fit.h"
#include "ductile/sched/policy.h"
#include "ductile/sim/application.h"
#include "ductile/sim/experiment.h"
#include "ductile/sim/metrics.h"
#include "ductile/sim/scenario.h"
#include "ductile/sim/workload.h"
#include "ductile/spec/cluster.h"

namespace ductile::python {
namespace {

namespace py = pybind11;
using OrderedJson = nlohmann::ordered_json;

// The arguments of ductile.sim.run() and compare() that are numbers and names; -1 stands for None.
struct SimRequest {
  std::vector<std::string> policies = {"ductile"};
  int64_t seed = 0, seeds = 1, jobs = 0, services = 0, teams = 1;
  double hours = 0, load = 1, budget = 0, noise = 0, interference = 0;
  double interval = -1, restart = -1, device_cost = -1;
  std::string information = "own";
  bool unique = false, bound = false, control = false, tiers = false;
};

void describe(Describer& d, SimRequest& o) {
  d.field("policies", o.policies, "names of policies");
  d.field("seed", o.seed, "the first seed").range(0, 1e12);
  d.field("seeds", o.seeds, "how many").range(1, 10'000);
  d.field("jobs", o.jobs, "0: 160 synthetic ones, or all of a workload").range(0, 1e8);
  d.field("services", o.services, "synthetic ones").range(0, 100'000);
  d.field("teams", o.teams, "of synthetic jobs").range(1, 100'000);
  d.field("hours", o.hours, "of synthetic arrivals; 0: 8 for 160 jobs").range(0, 1e6);
  d.field("load", o.load, "how many times as dense arrivals are").range(1e-3, 1e3);
  d.field("budget", o.budget, "0: jobs declare nothing; 1: exactly; else the factor of the error")
      .range(0, 1e3);
  d.field("noise", o.noise, "of measurements").range(0, 2);
  d.field("interference", o.interference, "slowdown of jobs that share a node").range(0, 1);
  d.field("interval", o.interval, "seconds between rounds").range(-1, 1e6);
  d.field("restart", o.restart, "seconds").range(-1, 1e6);
  d.field("device_cost", o.device_cost, "of ductile").range(-1, 1e6);
  d.field("information", o.information, "what policies are told");
  d.field("unique", o.unique, "each job is the only one of its application");
  d.field("bound", o.bound, "estimate the least possible");
  d.field("control", o.control, "changes go through the real control plane");
  d.field("tiers", o.tiers, "synthetic jobs have service levels");
}

std::optional<double> if_given(double value) {
  return value < 0 ? std::nullopt : std::optional<double>(value);
}

// None, the name of a file, or its tree.
sched::Cluster cluster_from(const std::string& text) {
  const nlohmann::json value = parse_json(text, "cluster", ErrorCode::invalid_argument);
  if (value.is_null()) return sched::homogeneous_cluster();
  return sched::cluster_of(value.is_string() ? spec::read_cluster(value.get<std::string>())
                                             : spec::cluster_from_json(value, "cluster"));
}

sim::ExperimentOptions options_from(const SimRequest& request) {
  if (request.budget > 0 && request.budget < 1)
    fail(ErrorCode::invalid_argument,
         "budget = {}: None, \"exact\" or a factor of at least 1 is possible", request.budget);
  sim::ExperimentOptions options;
  options.policies = request.policies;
  options.first_seed = request.seed;
  options.num_seeds = request.seeds;
  options.load = request.load;
  options.interval = if_given(request.interval);
  if (options.interval && *options.interval < 0.1)
    fail(ErrorCode::invalid_argument, "interval = {}: at least 0.1 s is possible",
         *options.interval);
  options.device_cost = if_given(request.device_cost);
  options.unique = request.unique;
  options.bound = request.bound;
  options.synthetic.tiers = request.tiers;
  options.synthetic.services = request.services;
  options.synthetic.teams = static_cast<int32_t>(request.teams);
  if (request.jobs > 0) options.synthetic.jobs = request.jobs;
  options.synthetic.hours =
      request.hours > 0 ? request.hours : 8.0 * static_cast<double>(options.synthetic.jobs) / 160;
  options.synthetic.seed = static_cast<uint64_t>(request.seed);
  options.sim.budget = request.budget > 0 ? std::optional(request.budget) : std::nullopt;
  options.sim.interference = request.interference;
  options.sim.control = request.control;
  options.sim.noise = request.noise;
  options.sim.information = sim::information_from(request.information);
  return options;
}

SimRequest request_from(const std::string& text) {
  SimRequest request;
  OptionSet(request).read_json(parse_json(text, "arguments", ErrorCode::invalid_argument),
                               "ductile.sim");
  for (const std::string& policy : request.policies) sched::make_policy(policy);  // an error now
  return request;
}

// A workload: its name or file, and its text where it is no file.
using Source = std::pair<std::string, std::optional<std::string>>;

sim::Catalog catalog_from(const std::optional<std::string>& folder,
                          const std::vector<Source>& sources) {
  std::optional<fs::path> traces;
  if (folder) {
    traces = *folder;
  } else {
    const auto file = std::ranges::find_if(sources, [](const Source& s) { return !s.second; });
    if (file != sources.end()) traces = sim::traces_beside(file->first);
  }
  return traces ? sim::read_catalog(*traces) : sim::built_in_catalog();
}

sim::Workload workload_from(const Source& source, const sim::Catalog& catalog) {
  return source.second ? sim::parse_workload(*source.second, source.first, catalog)
                       : sim::read_workload(source.first, catalog);
}

// A run with the periods in which each job held the same devices.
OrderedJson whole_run(const sim::ExperimentRun& run) {
  OrderedJson out = sim::to_json(run.result);
  out["seed"] = run.seed;
  out["end"] = run.result.end;
  out["summary"] = sim::to_json(run.summary);
  OrderedJson& timeline = out["timeline"] = OrderedJson::array();
  for (const sim::Segment& segment : run.result.timeline) {
    OrderedJson nodes = OrderedJson::array();
    for (const sched::NodeShare& share : segment.allocation)
      nodes.push_back({share.node, share.devices});
    timeline.push_back({{"job", run.result.jobs[static_cast<size_t>(segment.job)].name},
                        {"from", segment.from},
                        {"to", segment.to},
                        {"nodes", std::move(nodes)}});
  }
  return out;
}

// Calls progress(policy, seconds, finished, jobs), at most twenty times a second.
sim::ExperimentWatch watch_of(const py::object& progress) {
  sim::ExperimentWatch watch;
  if (progress.is_none()) return watch;
  auto next = std::chrono::steady_clock::time_point();
  watch.on_progress = [&progress, next](size_t, const std::string& policy, const sim::Workload&,
                                        const sim::SimProgress& now) mutable {
    if (std::chrono::steady_clock::now() < next) return;
    {
      const py::gil_scoped_acquire lock;
      progress(policy, now.now, now.finished, now.jobs);
    }
    next = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  };
  return watch;
}

std::string simulate(const std::string& arguments, const std::string& cluster_text,
                     const std::vector<Source>& sources,
                     const std::optional<std::string>& applications,
                     const std::optional<std::string>& scenario, bool whole,
                     const py::object& progress) {
  return unlocked([&] {
    const SimRequest request = request_from(arguments);
    sim::ExperimentOptions options = options_from(request);
    options.keep_history = whole;
    const sched::Cluster cluster = cluster_from(cluster_text);
    sim::Catalog catalog = catalog_from(applications, sources);
    catalog.rules.restart = if_given(request.restart);
    if (scenario) options.sim.scenario = sim::parse_scenario(*scenario, "scenario");
    std::vector<sim::Workload> workloads;
    for (const Source& source : sources) {
      workloads.push_back(workload_from(source, catalog));
      if (request.jobs > 0) sim::truncate(workloads.back(), request.jobs);
    }
    const auto runs =
        sim::run_experiment(options, std::move(workloads), catalog, cluster, watch_of(progress));
    if (!whole) return dump_json(sim::to_json(runs, options, cluster));
    OrderedJson all = OrderedJson::array();
    for (const sim::ExperimentRun& run : runs) all.push_back(whole_run(run));
    return dump_json(all);
  });
}

std::string synthetic(const std::string& arguments,
                      const std::optional<std::string>& applications) {
  return unlocked([&] {
    const sim::ExperimentOptions options = options_from(request_from(arguments));
    return sim::to_csv(sim::synthetic_workload(options.synthetic, catalog_from(applications, {})));
  });
}

std::string read(const std::string& file, const std::optional<std::string>& applications) {
  return unlocked([&] {
    const Source source{file, std::nullopt};
    return sim::to_csv(workload_from(source, catalog_from(applications, {source})));
  });
}

std::string policies() {
  OrderedJson out = OrderedJson::array();
  for (const sched::PolicyEntry& entry : sched::policies())
    out.push_back({{"name", entry.name}, {"help", entry.help}, {"interval", entry.interval}});
  return dump_json(out);
}

std::string cluster(const std::string& text) {
  return dump_json(sched::to_json(cluster_from(text)));
}

OrderedJson json_of(const sched::PerfParams& p) {
  return {{"alpha_c", p.alpha_c}, {"beta_c", p.beta_c},   {"alpha_n", p.alpha_n},
          {"beta_n", p.beta_n},   {"alpha_r", p.alpha_r}, {"beta_r", p.beta_r},
          {"gamma", p.gamma}};
}

struct Perf : sched::PerfParams {};

void describe(Describer& d, Perf& p) {
  d.field("alpha_c", p.alpha_c, "").at_least(0);
  d.field("beta_c", p.beta_c, "").at_least(0);
  d.field("alpha_n", p.alpha_n, "").at_least(0);
  d.field("beta_n", p.beta_n, "").at_least(0);
  d.field("alpha_r", p.alpha_r, "").at_least(0);
  d.field("beta_r", p.beta_r, "").at_least(0);
  d.field("gamma", p.gamma, "").range(1, 10);
}

sched::PerfParams perf_from(const std::string& text) {
  Perf perf;
  OptionSet(perf).read_json(parse_json(text, "perf", ErrorCode::invalid_argument), "perf");
  return perf;
}

// Of rows (nodes, replicas, local_batch, gradient_seconds, step_seconds).
std::string fit(const std::vector<std::tuple<int32_t, int32_t, int32_t, double, double>>& rows,
                double least_gain) {
  return unlocked([&] {
    std::vector<sched::StepSample> samples;
    for (const auto& [nodes, replicas, local, gradient, step] : rows)
      samples.push_back({nodes, replicas, local, gradient, step});
    return dump_json(json_of(sched::fit_perf(samples, least_gain).perf));
  });
}

double step_seconds(const std::string& perf, int32_t nodes, int32_t replicas, int32_t local_batch,
                    int32_t accumulation) {
  if (nodes < 1 || replicas < nodes || local_batch < 1 || accumulation < 0)
    fail(ErrorCode::invalid_argument,
         "step_seconds(): {} nodes, {} replicas, local_batch {}, accumulation {}: a node has at "
         "least one replica, a replica one sample, and accumulation is at least 0",
         nodes, replicas, local_batch, accumulation);
  return sched::step_seconds(perf_from(perf), nodes, replicas, local_batch, accumulation);
}

std::tuple<double, int32_t, int32_t> best_batch(const std::string& perf, double sqr, double var,
                                                int32_t init_batch, int32_t max_batch,
                                                int32_t min_local, int32_t max_local, int32_t nodes,
                                                int32_t replicas) {
  if (init_batch < 1 || max_batch < init_batch || min_local < 1 || max_local < min_local)
    fail(ErrorCode::invalid_argument,
         "best_batch(): batches from {} to {}, local ones from {} to {}: each begins at 1 or more "
         "and does not end before",
         init_batch, max_batch, min_local, max_local);
  if (nodes < 1 || replicas < nodes || !(sqr >= 0) || !(var >= 0))
    fail(ErrorCode::invalid_argument,
         "best_batch(): {} nodes, {} replicas, noise ({}, {}): a node has at least one replica, "
         "and noise is not negative",
         nodes, replicas, sqr, var);
  const sched::BatchChoice choice = sched::best_batch(
      perf_from(perf), {sqr, var}, {init_batch, max_batch, min_local, max_local}, nodes, replicas);
  return {choice.goodput, choice.local_batch, choice.accumulation};
}

}  // namespace

void bind_sim(py::module_& m) {
  m.def("simulate", simulate, py::arg("arguments"), py::arg("cluster"), py::arg("sources"),
        py::arg("applications"), py::arg("scenario"), py::arg("whole"), py::arg("progress"));
  m.def("synthetic", synthetic, py::arg("arguments"), py::arg("applications"));
  m.def("read_workload", read, py::arg("file"), py::arg("applications"));
  m.def("policies", policies);
  m.def("cluster", cluster, py::arg("text"));
  m.def("fit", fit, py::arg("rows"), py::arg("least_gain"));
  m.def("step_seconds", step_seconds, py::arg("perf"), py::arg("nodes"), py::arg("replicas"),
        py::arg("local_batch"), py::arg("accumulation"));
  m.def("best_batch", best_batch, py::arg("perf"), py::arg("sqr"), py::arg("var"),
        py::arg("init_batch"), py::arg("max_batch"), py::arg("min_local"), py::arg("max_local"),
        py::arg("nodes"), py::arg("replicas"));
}

}  // namespace ductile::python
