#include "ductile/emulate/emulator.h"

#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/emulate/machine_impl.h"

namespace ductile::emulate {
namespace {

// Each wait adds about the lateness of a sleep to the iteration; all of them may add this share.
constexpr double kWaitsShare = 0.005;
constexpr double kLeastSeconds = 4, kMostSeconds = 40;

double clock_seconds(const Machine& machine, const Options& options) {
  if (options.seconds > 0) return options.seconds;
  const double late = measure_lateness(machine.num_threads()).mean;
  return std::clamp(machine.num_waits() * late / kWaitsShare, kLeastSeconds, kMostSeconds);
}

void check_placed(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].devices.empty()) continue;
    fail(ErrorCode::invalid_argument,
         "stage {}: devices: has none, and the emulation sends messages between devices; name "
         "those of each stage, as a plan of ductile plan --json does",
         s);
  }
}

}  // namespace

Emulation carry_out(const graph::Graph& graph, const plan::Devices& devices, const plan::Plan& plan,
                    double expected, const Options& options) {
  plan::check(plan, graph, devices);
  check_placed(plan);
  DUCTILE_CHECK(options.iterations >= 1, "{} iterations", options.iterations);
  const plan::PlanCosts costs = plan::plan_costs(graph, devices, plan);
  const plan::Orders orders = plan::make_orders(plan, costs);
  Machine machine(graph, devices, plan, costs, orders, options);
  Emulation result;
  if (options.clock == Crew::Clock::real && expected > 0) {
    result.scale = clock_seconds(machine, options) / expected;
  }
  Crew crew(options.clock, result.scale);
  machine.play(crew, result);
  if (const double clock = result.seconds * result.scale; clock > 0)
    result.late_share = machine.num_waits() * result.lateness.mean / clock;
  return result;
}

nlohmann::json to_json(const Emulation& emulation, double predicted) {
  return {{"seconds", emulation.seconds},
          {"predicted_seconds", predicted},
          {"difference", emulation.difference(predicted)},
          {"iterations", emulation.iterations},
          {"scale", emulation.scale},
          {"threads", emulation.threads},
          {"sleeps", emulation.lateness.sleeps},
          {"mean_lateness", emulation.lateness.mean},
          {"worst_lateness", emulation.lateness.worst},
          {"late_share", emulation.late_share},
          {"busy", emulation.busy}};
}

}  // namespace ductile::emulate
