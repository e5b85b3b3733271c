// Predicted and emulated time of an iteration (src/ductile/emulate), and branches beside the best
// chain, both as they run. Usage: plan_emulated_bench plans|chains [SECONDS [ONLY]]
//
// plans: 20 plans of 4 to 64 devices, of six models on two kinds of machines: V100s, four to a node
// with 100 Gbit/s, and A100s, eight to a node with 10 Gbit/s. chains: MMT, DLRM and CANDLE-Uno on 8
// and 32 V100s beside the plans of all planners of chains. SECONDS: of the clock, that an iteration
// lasts; 0: chosen. ONLY: those rows whose "model machine devices" holds it. Prints Markdown. The
// column "exact" is the same emulation on the simulated clock, without the lateness of sleeps: what
// it differs from the prediction by, the judge's rules and those of the emulation differ by.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/emulate/emulator.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/baselines/baselines.h"

namespace {

using namespace ductile;

struct Row {
  const char* model;
  int64_t batch;
  const char* machine;
  int devices;
};

constexpr Row kPlans[] = {
    {"chain:32", 64, "V100", 4},  {"chain:32", 64, "A100", 16}, {"unet", 128, "V100", 4},
    {"unet", 256, "V100", 16},    {"unet", 256, "A100", 16},    {"gpt", 64, "V100", 8},
    {"gpt", 256, "V100", 64},     {"gpt", 128, "A100", 32},     {"mmt", 512, "V100", 4},
    {"mmt", 512, "V100", 16},     {"mmt", 512, "V100", 64},     {"mmt", 512, "A100", 16},
    {"dlrm", 2048, "V100", 8},    {"dlrm", 2048, "V100", 32},   {"dlrm", 2048, "A100", 8},
    {"dlrm", 2048, "A100", 32},   {"candle", 8192, "V100", 8},  {"candle", 8192, "V100", 32},
    {"candle", 8192, "V100", 64}, {"candle", 8192, "A100", 16}};
constexpr Row kBranches[] = {{"mmt", 512, "V100", 8},     {"mmt", 512, "V100", 32},
                             {"dlrm", 2048, "V100", 8},   {"dlrm", 2048, "V100", 32},
                             {"candle", 8192, "V100", 8}, {"candle", 8192, "V100", 32}};

plan::Devices devices_of(const Row& row) {
  if (std::string_view(row.machine) == "V100")
    return plan::find_devices(std::to_string(row.devices));
  plan::DeviceGroup group;
  group.name = "A100";
  group.memory = 40e9;
  group.model = {60e12, 1.5e12, 10e-6};
  group.intra = {200e9, 5e-6};
  group.inter = {1.25e9, 30e-6};
  return plan::uniform_devices(row.devices, 8, group);
}

plan::PlannerOptions options_of(const Row& row) {
  plan::PlannerOptions options;
  options.batch = row.batch;
  return options;
}

// The share of messages that begin later than they could, since others have the cards; by the
// judge, whose plans they are.
double waiting_share(const plan::Timeline& line) {
  size_t messages = 0, late = 0;
  for (const plan::Box& b : line.boxes) {
    if (b.kind != plan::Box::Kind::transfer) continue;
    ++messages;
    const bool at_once = std::ranges::any_of(line.boxes, [&](const plan::Box& task) {
      return task.kind < plan::Box::Kind::transfer && task.stage == b.stage && task.end == b.start;
    });
    late += !at_once;
  }
  return messages > 0 ? double(late) / double(messages) : 0;
}

// Seconds of an iteration on the simulated clock.
double exact_seconds(const graph::Graph& graph, const plan::Devices& devices,
                     const plan::Plan& plan) {
  return emulate::carry_out(graph, devices, plan, 1,
                            {.clock = emulate::Crew::Clock::simulated, .iterations = 1})
      .seconds;
}

double load() {
  double value = 0;
  return ::getloadavg(&value, 1) == 1 ? value : 0;
}

bool is_wanted(const Row& row, const std::string& only) {
  return fmt::format("{} {} {}", row.model, row.machine, row.devices).find(only) !=
         std::string::npos;
}

void print_head(std::initializer_list<const char*> columns) {
  for (const char* c : columns) fmt::print("| {} ", c);
  fmt::print("|\n|");
  for (size_t i = 0; i < columns.size(); ++i) fmt::print("---|");
  fmt::print("\n");
}

void print_plans(double seconds, const std::string& only) {
  print_head({"model, batch", "machine", "devices used", "stages", "widest", "schedule",
              "messages that wait for a card %", "predicted ms", "exact %", "emulated ms",
              "difference %", "iterations by the clock s", "sleeps late ms", "load"});
  for (const Row& row : kPlans) {
    if (!is_wanted(row, only)) continue;
    const plan::Devices devices = devices_of(row);
    const graph::Graph graph = graph::build_graph(row.model, devices.groups().front().model);
    const plan::Planned planned = plan::make_plan(graph, devices, options_of(row));
    const plan::Timeline line = plan::evaluate(graph, devices, planned.plan, {.record = true});
    int widest = 0;
    for (const plan::Stage& s : planned.plan.stages) widest = std::max(widest, s.num_devices());
    const emulate::Emulation e =
        emulate::carry_out(graph, devices, planned.plan, line.seconds, {.seconds = seconds});
    std::string clock;
    for (double s : e.iterations)
      clock += fmt::format("{}{:.2f}", clock.empty() ? "" : ", ", s * e.scale);
    const double exact = exact_seconds(graph, devices, planned.plan);
    fmt::print("| {} {} | {} | {} of {} | {} | {} | {} | {:.0f} | {:.3f} | {:+.2f} ", row.model,
               row.batch, row.machine, planned.plan.num_devices(), row.devices,
               planned.plan.stages.size(), widest, to_string(planned.plan.schedule),
               100 * waiting_share(line), 1e3 * line.seconds, 100 * (exact / line.seconds - 1));
    fmt::print("| {:.3f} | {:+.2f} | {} | {:.2f} | {:.0f} |\n", 1e3 * e.seconds,
               100 * e.difference(line.seconds), clock, 1e3 * e.lateness.mean, load());
    std::fflush(stdout);
  }
}

void print_branches(double seconds, const std::string& only) {
  print_head({"model, batch", "devices", "plan", "stages", "predicted ms", "exact %", "emulated ms",
              "difference %", "ours is faster by: predicted", "emulated", "sleeps late ms",
              "load"});
  for (const Row& row : kBranches) {
    if (!is_wanted(row, only)) continue;
    const plan::Devices devices = devices_of(row);
    const graph::Graph graph = graph::build_graph(row.model, devices.groups().front().model);
    double own_predicted = 0, own_emulated = 0;
    const auto show = [&](std::string_view name, const graph::Graph& as, const plan::Plan& plan) {
      const double predicted = plan::evaluate(as, devices, plan).seconds;
      const emulate::Emulation e =
          emulate::carry_out(as, devices, plan, predicted, {.seconds = seconds});
      if (own_predicted == 0) own_predicted = predicted, own_emulated = e.seconds;
      const double exact = exact_seconds(as, devices, plan);
      fmt::print("| {} {} | {} | {} | {} | {:.3f} | {:+.2f} ", row.model, row.batch, row.devices,
                 name, plan.stages.size(), 1e3 * predicted, 100 * (exact / predicted - 1));
      fmt::print("| {:.3f} | {:+.2f} | {:.2f} | {:.2f} | {:.2f} | {:.0f} |\n", 1e3 * e.seconds,
                 100 * e.difference(predicted), predicted / own_predicted, e.seconds / own_emulated,
                 1e3 * e.lateness.mean, load());
      std::fflush(stdout);
    };
    show("ours", graph, plan::make_plan(graph, devices, options_of(row)).plan);
    for (const plan::Baseline& baseline : plan::baselines()) {
      if (!baseline.chain) continue;
      const plan::BaselineResult r =
          plan::run_baseline(baseline.name, graph, devices, options_of(row));
      if (!r.ok()) {
        fmt::print("| {} {} | {} | {} | none: {} | | | | | | | | |\n", row.model, row.batch,
                   row.devices, baseline.name, r.failure);
        continue;
      }
      show(baseline.name, plan::chained(graph, r.plan), r.plan);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0;
  const std::string only = argc > 3 ? argv[3] : "";
  try {
    if (what == "plans") return print_plans(seconds, only), 0;
    if (what == "chains") return print_branches(seconds, only), 0;
  } catch (const Error& e) {
    fmt::print(stderr, "plan_emulated_bench: {}\n", e.what());
    return 1;
  }
  fmt::print(stderr, "usage: plan_emulated_bench plans|chains [SECONDS [ONLY]]\n");
  return 2;
}
