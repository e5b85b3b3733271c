#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/options.h"
#include "ductile/base/paths.h"
#include "ductile/cli/commands.h"
#include "ductile/comm/cluster_fabric.h"
#include "ductile/emulate/emulator.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/formats.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/plan/baselines/megatron.h"
#include "ductile/plan/near_batch.h"
#include "ductile/plan/report.h"
#include "ductile/spec/cluster.h"

namespace ductile::cli {
namespace {

std::vector<std::string> find_baselines(const std::string& text) {
  std::vector<std::string> known = plan::baselines().names(), chosen;
  if (text == "all") return known;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, comma - at);
    at = comma + 1;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      known.insert(known.begin(), "all");
      fail_unknown_name("--baseline: planner", name, known);
    }
    chosen.push_back(name);
  }
  return chosen;
}

// The devices, with what was measured between them in place of what the cluster file declares.
plan::Devices devices_for(const PlanCommand& command) {
  if (!command.links) return plan::find_devices(command.devices);
  if (kind_of(command.devices) == FileKind::none)
    fail(ErrorCode::invalid_argument,
         "--links is of the machines of a cluster file, and --devices {} is no file",
         command.devices);
  const spec::Cluster cluster = spec::read_cluster(command.devices);
  const spec::Allocation all = spec::whole(cluster);
  comm::Fabric measured;
  OptionSet options(measured);
  options.read_toml(*command.links);
  if (!measured.host.empty() && std::ssize(measured.host) != measured.ranks)
    fail(ErrorCode::invalid_argument, "--links {}: host names the hosts of {} ranks, of {}",
         command.links->string(), measured.host.size(), measured.ranks);
  const comm::Topology shape = measured.topology();
  std::vector<int> hosts;
  for (int rank = 0; rank < shape.num_ranks; ++rank) hosts.push_back(shape.host_of(rank));
  std::ranges::sort(hosts);
  hosts.erase(std::ranges::unique(hosts).begin(), hosts.end());
  if (measured.ranks != spec::device_count(all) || hosts.size() != all.size())
    fail(ErrorCode::invalid_argument,
         "--links {}: measured between {} workers on {} hosts, and {} has {} devices on {} nodes; "
         "`ductile bench all-reduce --hosts` with a worker for each device measures them",
         command.links->string(), measured.ranks, hosts.size(), command.devices,
         spec::device_count(all), all.size());
  return plan::devices_of(comm::refined(cluster, all, measured));
}

void print_builders(Console& console) {
  std::vector<std::vector<std::string>> rows = {{"GRAPH", "PARAMETERS", "WHAT"}};
  for (const graph::Builder& b : graph::builders()) {
    std::string parameters;
    for (const graph::BuilderParameter& p : b.parameters) {
      parameters += fmt::format("{}{}={}", parameters.empty() ? "" : ",", p.name, p.value);
    }
    rows.push_back({std::string(b.name), parameters, std::string(b.help)});
  }
  console.print("{}", page::table(rows));
}

void print_stages(const plan::Report& r, Console& console) {
  std::vector<std::vector<std::string>> rows = {{"STAGE", "DEVICES", "REPLICAS", "SPLIT",
                                                 "MICRO-BATCH", "IN FLIGHT", "FORWARD", "BACKWARD",
                                                 "MEMORY", "LIMIT", "OPERATORS"}};
  for (size_t i = 0; i < r.planned.plan.stages.size(); ++i) {
    const plan::Stage& s = r.planned.plan.stages[i];
    const plan::StageTimes& t = r.costs.times[i];
    std::string ops = r.graph.ops[s.ops.front()].name;
    if (s.ops.size() > 1) ops += fmt::format(" and {} more", s.ops.size() - 1);
    if (!s.recompute.empty()) ops += fmt::format("; {} recomputed", s.recompute.size());
    if (s.shard_optimizer) ops += "; optimiser sharded";
    rows.push_back(
        {std::to_string(i),
         s.devices.empty() ? fmt::format("any {}", s.num_devices()) : plan::device_runs(s.devices),
         std::to_string(s.replicas), std::to_string(s.tensor), std::to_string(s.micro_batch),
         std::to_string(r.timeline.peak_in_flight[i]), page::as_short_duration(t.forward),
         page::as_short_duration(t.backward_input + t.backward_weight),
         page::as_bytes(r.timeline.peak_memory[i]), page::as_bytes(r.timeline.memory_limit[i]),
         ops});
  }
  console.print("{}", page::table(rows));
}

void print_comparison(const plan::Report& r, Console& console) {
  std::vector<std::vector<std::string>> rows = {
      {"PLANNER", "ITERATION", "SAMPLES/S", "OURS IS FASTER BY", "BUBBLE", "STAGES", "SEARCH"}};
  const auto row = [&](const std::string& name, const plan::Timeline& t, const plan::Plan& p,
                       const std::string& ratio, double cpu) {
    rows.push_back({name, page::as_short_duration(t.seconds), page::with_thousands(t.throughput(p)),
                    ratio, page::as_percent(t.bubble), std::to_string(p.stages.size()),
                    page::as_short_duration(cpu)});
  };
  row("ductile", r.timeline, r.planned.plan, "", r.planned.cpu_seconds);
  for (const plan::Compared& c : r.compared) {
    if (c.result.ok()) {
      row(c.name, c.timeline, c.result.plan,
          r.timeline.seconds > 0 ? fmt::format("{:.2f} x", c.timeline.seconds / r.timeline.seconds)
                                 : "",
          c.result.cpu_seconds);
    } else {
      rows.push_back(
          {c.name, "none", "", "", "", "", page::as_short_duration(c.result.cpu_seconds)});
    }
  }
  console.print("\n{}", page::table(rows));
  for (const plan::Compared& c : r.compared) {
    if (!c.result.ok()) {
      console.print("{}: {}\n", c.name, c.result.failure);
    } else if (c.result.timed_out) {
      console.print("{}: ended by the time limit; with more it may find a better plan\n", c.name);
    }
  }
}

void print_near_batch(const plan::Report& r, const plan::NearBatch& near, Console& console) {
  console.print(
      "Batch      of the divisors of {} none is between {} and {}, so micro-batches are that "
      "small; "
      "with --batch {} an iteration takes {}\n",
      r.planned.plan.batch, near.micro_batch, near.next, near.batch,
      page::as_short_duration(near.seconds));
}

// What has to be said of a plan that leaves devices idle, or the model whole on several.
void print_uncut(const plan::Report& r, Console& console) {
  const int all = r.devices.size(), used = r.planned.plan.num_devices();
  if (used < all) {
    console.print(
        "Devices    {} of {} {} used: with these devices and links no plan on more of them was "
        "found to be faster\n",
        used, all, used == 1 ? "is" : "are");
  } else if (r.planned.plan.stages.size() == 1 && all > 1) {
    console.print(
        "Stages     one has all devices: with these devices and links no cut of the model was "
        "found to be faster\n");
  }
}

void print_report(const plan::Report& r, const std::optional<plan::NearBatch>& near,
                  Console& console) {
  const plan::Planned& p = r.planned;
  console.print("{}: {} operators on {} devices, {} an iteration, {}\n\n", r.graph.name,
                r.graph.ops.size(), r.devices.size(), plan::samples_text(r.graph, p.plan.batch),
                p.plan.schedule == plan::ScheduleKind::kfkb ? "1F1B" : "zero-bubble");
  print_stages(r, console);
  console.print("\nIteration  {}, {} {}/s, bubble {}\n",
                page::as_short_duration(r.timeline.seconds),
                page::with_thousands(r.timeline.throughput(p.plan)),
                r.graph.sample == "micro-batch" ? "micro-batches" : "samples",
                page::as_percent(r.timeline.bubble));
  if (!r.timeline.fits()) console.print("Memory     does not suffice: see the table\n");
  if (near) print_near_batch(r, *near, console);
  if (p.formula_seconds > 0) {  // the plan was sought, not given
    print_uncut(r, console);
    const bool time = r.objective == plan::Objective::time;
    const auto figure = [&](double v) {
      return time ? page::as_short_duration(v) : fmt::format("{:.3g} s for the steady state", v);
    };
    const std::string known =  // of the least that any plan has
        p.lower_bound > 0 ? fmt::format("; no plan of the space has less than {} by it: gap {}",
                                        figure(p.lower_bound), page::as_percent(p.gap))
                          : "";
    console.print("Formula    {} (best found: {}){}\n", figure(p.formula_seconds),
                  figure(p.best_formula_seconds), known);
    if (p.schedule_bound > 0) {
      console.print(
          "Bound      {} under any schedule, if no stages share devices: the plan takes at "
          "most {} more\n",
          page::as_short_duration(p.schedule_bound), page::as_percent(p.schedule_gap));
    }
    console.print("Search     {} CPU, {}{}\n", page::as_short_duration(p.cpu_seconds), p.space,
                  p.timed_out ? "; ended by the time limit" : "");
  }
  if (!r.compared.empty()) print_comparison(r, console);
}

// The plan of a report and those it is compared with, as they ran on sleeping threads.
struct Emulations {
  emulate::Emulation own;
  std::vector<std::pair<const plan::Compared*, emulate::Emulation>> others;
};

Emulations emulate_plans(const plan::Report& r, double seconds, Console& console) {
  emulate::Options options;
  if (std::isnan(seconds)) fail(ErrorCode::invalid_argument, "--emulate-seconds is no number");
  options.seconds = seconds;
  const auto run = [&](const graph::Graph& graph, const plan::Plan& plan, double predicted) {
    if (console.err_terminal)
      console.say("emulating the plan of {}, {} ...", plan.planner,
                  options.seconds > 0
                      ? fmt::format("about {}", page::as_short_duration(3 * options.seconds))
                      : "12 s to 2 min");
    return emulate::carry_out(graph, r.devices, plan, predicted, options);
  };
  Emulations out;
  out.own = run(r.graph, r.planned.plan, r.timeline.seconds);
  for (const plan::Compared& c : r.compared) {
    if (!c.result.ok()) continue;
    const bool chain = std::ranges::any_of(
        plan::baselines(), [&](const plan::Baseline& b) { return b.name == c.name && b.chain; });
    const graph::Graph& graph = chain ? plan::chained(r.graph, c.result.plan) : r.graph;
    out.others.emplace_back(&c, run(graph, c.result.plan, c.timeline.seconds));
  }
  return out;
}

// How busy the devices of each set were, by the judge and as they ran.
void print_busy(const plan::Report& r, const emulate::Emulation& e, Console& console) {
  std::vector<std::vector<std::string>> rows = {{"DEVICES", "STAGES", "BUSY", "PREDICTED"}};
  std::map<std::vector<int>, std::pair<std::string, double>> sets;  // stages, busy seconds
  for (size_t s = 0; s < r.planned.plan.stages.size(); ++s) {
    std::vector<int> devices = r.planned.plan.stages[s].devices;
    std::sort(devices.begin(), devices.end());
    auto& [stages, busy] = sets[devices];
    stages += fmt::format("{}{}", stages.empty() ? "" : ",", s);
    busy += r.timeline.busy[s];
  }
  for (const auto& [devices, set] : sets) {
    double busy = 0;
    for (int d : devices) busy += e.busy[d] / static_cast<double>(devices.size());
    const double predicted = r.timeline.seconds > 0 ? set.second / r.timeline.seconds : 0;
    rows.push_back({plan::device_runs(devices), set.first, page::as_percent(busy),
                    page::as_percent(predicted)});
  }
  console.print("\n{}", page::table(rows));
}

void print_emulations(const plan::Report& r, const Emulations& all, Console& console) {
  std::vector<std::vector<std::string>> rows = {
      {"PLAN", "PREDICTED", "EMULATED", "DIFFERENCE", "OURS IS FASTER BY"}};
  const auto row = [&](std::string_view name, double predicted, const emulate::Emulation& e) {
    const bool own = &e == &all.own;
    rows.push_back(
        {std::string(name), page::as_short_duration(predicted), page::as_short_duration(e.seconds),
         fmt::format("{:+.2f} %", 100 * e.difference(predicted)),
         own || all.own.seconds == 0 ? "" : fmt::format("{:.2f} x", e.seconds / all.own.seconds)});
  };
  row("ductile", r.timeline.seconds, all.own);
  for (const auto& [c, e] : all.others) row(c->name, c->timeline.seconds, e);
  console.print("\n{}", page::table(rows));
  const emulate::Emulation& e = all.own;
  console.print(
      "Emulated   by {} threads, {:.3g} s of the clock for a second of the plan: iterations of {} "
      "by the clock, "
      "{} of them after a warm-up; sleeps ended {} late on average, {} at worst\n",
      e.threads, e.scale, page::as_short_duration(e.seconds * e.scale), e.iterations.size(),
      page::as_short_duration(e.lateness.mean), page::as_short_duration(e.lateness.worst));
  double late = all.own.late_share;
  for (const auto& [c, other] : all.others) late = std::max(late, other.late_share);
  if (late > emulate::Emulation::kMostLateShare) {
    console.print(
        "Void       this machine is too busy to compare times: sleeps that ended late add about {} "
        "to an iteration; emulate while nothing else runs, or give an iteration more time "
        "(--emulate-seconds)\n",
        page::as_percent(late));
  }
  print_busy(r, e, console);
}

nlohmann::json with_emulations(const plan::Report& r, const Emulations& all) {
  nlohmann::json out = plan::to_json(r);
  out["emulation"] = emulate::to_json(all.own, r.timeline.seconds);
  for (const auto& [c, e] : all.others) {
    const auto at = static_cast<size_t>(c - r.compared.data());
    out["baselines"][at]["emulation"] = emulate::to_json(e, c->timeline.seconds);
  }
  return out;
}

// What the plan was made of: a run by it can be planned anew where devices are lost.
void add_origin(const PlanCommand& command, const plan::Report& r, nlohmann::json& out) {
  if (kind_of(command.devices) != FileKind::file) return;
  out["profile"] = graph::to_json(r.graph);
  out["cluster"] = spec::to_json(spec::read_cluster(command.devices));
}

// Says which graphs can be written so, where this one cannot.
void check_for_megatron(const std::string& name, const graph::Graph& graph) {
  try {
    plan::check_megatron(graph);
  } catch (const Error& error) {
    if (name == "gpt" || name.starts_with("gpt:")) throw;
    fail(error.code(),
         "{}; the built-in graphs gpt:LAYERS,... are of that form, those of other models and "
         "profiles are not",
         error.message());
  }
}

// The options of another system that make it run a plan: that given, or the best it can run. What
// is no option of it goes to stderr, so that a command line may take the rest as it is.
ExitCode emit(const PlanCommand& command, const graph::Graph& graph, const plan::Devices& devices,
              const plan::PlannerOptions& options, Console& console) {
  if (*command.emit != "megatron") {
    fail(ErrorCode::invalid_argument, "--emit: \"{}\"; megatron is possible", *command.emit);
  }
  if (command.json)
    fail(ErrorCode::invalid_argument,
         "--emit prints options of another system, which are no JSON; leave --json out, or use "
         "--json alone for the report of a plan");
  check_for_megatron(command.graph, graph);
  plan::Plan plan;
  if (command.plan) {
    plan = plan::read_plan(*command.plan, graph);
  } else {
    plan::BaselineResult found = plan::megatron_plan(graph, devices, options);
    if (!found.ok()) {
      console.error(found.failure);
      return kFailed;
    }
    if (found.timed_out)
      console.say("ended by the time limit; with more it may find a better plan");
    plan = std::move(found.plan);
  }
  console.print("{}\n", plan::megatron_options(graph, plan));
  int tensor = 1;
  for (const plan::Stage& stage : plan.stages) tensor = std::max(tensor, stage.tensor);
  console.say("for {}, data-parallel degree {}{}",
              page::plural(static_cast<double>(plan.num_devices()), "GPU"),
              plan.stages.front().num_devices() / tensor,
              plan.predicted_seconds > 0
                  ? fmt::format(", {} an iteration predicted",
                                page::as_short_duration(plan.predicted_seconds))
                  : "");
  return kDone;
}

// As the planner does, in the words of the options.
void check_sizes(const PlanCommand& command) {
  const auto divides = [](const char* option, int64_t n, int64_t of, const char* what) {
    if (n > 0 && of % n == 0) return;
    fail(ErrorCode::invalid_argument, "{} {} does not divide {} {}; {}", option, n, what, of,
         plan::near_divisors(of, n));
  };
  if (command.batch < 1) return;
  if (command.micro_batch) divides("--micro-batch", *command.micro_batch, command.batch, "--batch");
  if (command.replicas <= 0) return;
  divides("--replicas", command.replicas, command.batch, "--batch");
  if (command.micro_batch)
    divides("--replicas", command.replicas, *command.micro_batch, "--micro-batch");
}

// The best plan; and, where it is `wanted`, another batch, with what is left of the time.
plan::Planned searched(const graph::Graph& graph, const plan::Devices& devices,
                       plan::PlannerOptions options, bool wanted,
                       std::optional<plan::NearBatch>& near) {
  const auto begin = std::chrono::steady_clock::now();
  plan::Planned planned = plan::make_plan(graph, devices, options);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  options.time_limit -= taken.count();
  if (wanted) near = plan::near_batch(graph, devices, options, planned);
  return planned;
}

}  // namespace

ExitCode plan(const PlanCommand& command, Context& context) {
  Console& console = context.console;
  if (command.schema) {
    if (*command.schema != "graph" && *command.schema != "plan" && *command.schema != "cluster") {
      fail(ErrorCode::invalid_argument, "--schema: \"{}\"; graph, plan and cluster have one",
           *command.schema);
    }
    const auto schema = *command.schema == "graph"     ? graph::graph_schema()
                        : *command.schema == "cluster" ? spec::cluster_schema()
                                                       : plan::plan_schema();
    console.print("{}\n", dump_json(schema, 2));
    return kDone;
  }
  if (command.graph.empty()) {
    print_builders(console);
    return kDone;
  }
  plan::Devices devices = devices_for(command);
  graph::Graph graph = graph::find_graph(command.graph, devices.groups().front().model);
  if (command.optimizer_state) graph.optimizer_factor = *command.optimizer_state;
  graph::check(graph);
  if (command.write_graph) {
    console.print("{}\n", dump_json(graph::to_json(graph), 1));
    return kDone;
  }

  if (!command.plan) check_sizes(command);
  plan::PlannerOptions options;
  options.batch = command.batch;
  options.objective = plan::objective_from(command.objective);
  options.time_limit = command.time_limit;
  options.runnable = command.runnable;
  options.replicas = static_cast<int>(command.replicas);
  if (command.micro_batch) options.micro_batches = {*command.micro_batch};
  if (command.emit) return emit(command, graph, devices, options, console);
  const bool as_text = !command.json && !command.html && !command.svg;
  std::optional<plan::NearBatch> near;
  plan::Report report;
  if (command.plan) {
    plan::Plan given = plan::read_plan(*command.plan, graph);
    report = plan::make_report(std::move(graph), std::move(devices), std::move(given));
  } else {
    const std::vector<std::string> names = find_baselines(command.baseline);
    plan::Planned planned = searched(graph, devices, options, as_text, near);
    std::vector<plan::Compared> compared;
    for (const std::string& name : names) {
      compared.push_back({name, plan::run_baseline(name, graph, devices, options)});
    }
    report =
        plan::make_report(std::move(graph), std::move(devices), options.objective,
                          std::move(planned), std::move(compared), command.svg || command.html);
  }
  std::optional<Emulations> emulations;
  if (command.emulate && report.planned.feasible) {
    emulations = emulate_plans(report, command.emulate_seconds, console);
  }
  if (command.json) {
    nlohmann::json out = emulations ? with_emulations(report, *emulations) : plan::to_json(report);
    if ((command.runnable || command.plan) && report.planned.feasible)
      add_origin(command, report, out);
    console.print("{}\n", dump_json(out, 2));
  } else if (command.html) {
    console.print("{}", plan::to_html(report));
  } else if (report.planned.feasible) {
    if (command.svg) {
      console.print("{}", plan::to_svg(report));
    } else {
      print_report(report, near, console);
      if (emulations) print_emulations(report, *emulations, console);
    }
  }
  if (report.planned.feasible) {
    if (!command.plan || report.timeline.fits()) return kDone;
    console.error(plan::misfit(report));
    return kFailed;
  }
  console.error(plan::advice(report));
  return kFailed;
}

}  // namespace ductile::cli
