// Predicted and emulated time of an iteration (src/ductile/emulate), and branches beside the best
// chain, both as they run. Usage: plan_emulated_bench plans|chains [SECONDS [ONLY]]
//
// plans: 20 different plans of several stages on 4 to 64 devices, of models on two kinds of
// machines: V100s, four to a node with 100 Gbit/s, and A100s, eight to a node with 10 Gbit/s.
// chains: MMT, DLRM and CANDLE-Uno on 8 and 32 V100s beside chains: the plans of all planners of
// chains, and those of our own planner for the model as a chain, which has every freedom that ours
// has but stages side by side; then the same two with what `ductile train` runs alone
// (`--runnable`). A planner of chains offers several plans, and the one that is fastest as it runs
// counts; of ours the one that `ductile plan` prints. SECONDS: of the clock, that an iteration
// lasts; 0: chosen. ONLY: those rows whose "model machine devices" holds it. Prints Markdown. The
// column "exact" is the same emulation on the simulated clock, without the lateness of sleeps: what
// it differs from the prediction by, the judge's rules and those of the emulation differ by.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/emulate/emulator.h"
#include "ductile/graph/builders.h"
#include "ductile/plan/baselines/baselines.h"

namespace {

using namespace ductile;

constexpr size_t kNumPlans = 20;
constexpr double kTimeLimit = 600;  // of a search, so that a busy machine does not cut it short
constexpr double kAllowed = 0.03;   // between predicted and emulated
constexpr double kNear = 1.1;       // a plan of a chain is run if its prediction is within this

struct Row {
  const char* model;
  int64_t batch;
  const char* machine;
  int devices;
};

// From the first one on, until there are enough: those of a single stage, and those whose plan an
// earlier row has already, do not count.
constexpr Row kPlans[] = {
    {"chain:32", 64, "V100", 4},  {"chain:32", 64, "A100", 16}, {"unet", 128, "V100", 4},
    {"unet", 256, "V100", 16},    {"unet", 256, "A100", 16},    {"gpt", 64, "V100", 8},
    {"gpt", 256, "V100", 64},     {"gpt", 128, "A100", 32},     {"mmt", 512, "V100", 4},
    {"mmt", 512, "V100", 16},     {"mmt", 512, "V100", 64},     {"mmt", 512, "A100", 16},
    {"dlrm", 2048, "V100", 8},    {"dlrm", 2048, "V100", 32},   {"dlrm", 2048, "A100", 8},
    {"dlrm", 2048, "A100", 32},   {"candle", 8192, "V100", 8},  {"candle", 8192, "V100", 32},
    {"candle", 8192, "V100", 64}, {"candle", 8192, "A100", 16}, {"candle", 8192, "V100", 16},
    {"dlrm", 2048, "V100", 16},   {"mmt", 512, "V100", 8},      {"mmt", 512, "V100", 32},
    {"gpt", 128, "V100", 16},     {"bert", 128, "V100", 16},    {"bert", 64, "A100", 16}};
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
  options.time_limit = kTimeLimit;
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

// Whether what is carried out is the same; the bound of a larger machine may be another one.
bool is_same(const plan::Plan& a, const plan::Plan& b) {
  return a.graph == b.graph && a.batch == b.batch && a.stages == b.stages && a.orders == b.orders;
}

void print_plan(const Row& row, const graph::Graph& graph, const plan::Devices& devices,
                const plan::Plan& plan, double seconds, size_t& met) {
  const plan::Timeline line = plan::evaluate(graph, devices, plan, {.record = true});
  int widest = 0;
  for (const plan::Stage& s : plan.stages) widest = std::max(widest, s.num_devices());
  const emulate::Emulation e =
      emulate::carry_out(graph, devices, plan, line.seconds, {.seconds = seconds});
  std::string clock;
  for (double s : e.iterations)
    clock += fmt::format("{}{:.2f}", clock.empty() ? "" : ", ", s * e.scale);
  const double exact = exact_seconds(graph, devices, plan);
  fmt::print("| {} {} | {} | {} of {} | {} | {} | {} | {:.0f} | {:.3f} | {:+.2f} ", row.model,
             row.batch, row.machine, plan.num_devices(), row.devices, plan.stages.size(), widest,
             to_string(plan.schedule), 100 * waiting_share(line), 1e3 * line.seconds,
             100 * (exact / line.seconds - 1));
  fmt::print("| {:.3f} | {:+.2f} | {} | {:.2f} | {:.0f} |\n", 1e3 * e.seconds,
             100 * e.difference(line.seconds), clock, 1e3 * e.lateness.mean, load());
  std::fflush(stdout);
  met += std::abs(e.difference(line.seconds)) <= kAllowed;
}

void print_plans(double seconds, const std::string& only) {
  print_head({"model, batch", "machine", "devices used", "stages", "widest", "schedule",
              "messages that wait for a card %", "predicted ms", "exact %", "emulated ms",
              "difference %", "iterations by the clock s", "sleeps late ms", "load"});
  std::vector<std::pair<std::string_view, plan::Plan>> shown;  // with the machine
  std::string left_out;
  size_t met = 0;
  for (const Row& row : kPlans) {
    if (shown.size() == kNumPlans) break;
    if (!is_wanted(row, only)) continue;
    const plan::Devices devices = devices_of(row);
    const graph::Graph graph = graph::build_graph(row.model, devices.groups().front().model);
    plan::Plan plan = plan::make_plan(graph, devices, options_of(row)).plan;
    const bool again = std::ranges::any_of(shown, [&](const auto& earlier) {
      return earlier.first == row.machine && is_same(earlier.second, plan);
    });
    if (plan.stages.size() < 2 || again) {
      left_out += fmt::format("{}{} on {} {}s ({})", left_out.empty() ? "" : ", ", row.model,
                              row.devices, row.machine, again ? "an earlier plan" : "one stage");
      continue;
    }
    print_plan(row, graph, devices, plan, seconds, met);
    shown.emplace_back(row.machine, std::move(plan));
  }
  fmt::print("\n{} of {} within {:.0f} %. Left out: {}.\n", met, shown.size(), 100 * kAllowed,
             left_out.empty() ? "none" : left_out);
}

// A plan as it runs: a chain has edges that its graph has not.
struct Candidate {
  std::string name;
  graph::Graph graph;
  plan::Plan plan;
  double predicted = 0;
  size_t of = 1;  // plans that were run on the simulated clock to choose it
};

// The one that is fastest as it runs, on the simulated clock; what the judge has far behind the
// others is not run. Empty: there is none.
std::vector<Candidate> fastest(std::vector<Candidate> all, const plan::Devices& devices) {
  double least = HUGE_VAL, best = HUGE_VAL;
  for (const Candidate& c : all) least = std::min(least, c.predicted);
  std::vector<Candidate> out;
  size_t run = 0;
  for (Candidate& c : all) {
    if (c.predicted > kNear * least) continue;
    ++run;
    const double exact = exact_seconds(c.graph, devices, c.plan);
    if (exact >= best) continue;
    best = exact;
    out.clear();
    out.push_back(std::move(c));
  }
  if (!out.empty()) out[0].of = run;
  return out;
}

// A planner of chains, with its best plan of each size of micro-batches.
std::vector<Candidate> chains_of(const plan::Baseline& baseline, const graph::Graph& graph,
                                 const plan::Devices& devices, plan::PlannerOptions options,
                                 std::string* failure) {
  std::vector<Candidate> all;
  for (int64_t b = options.batch; b >= 1; --b) {
    if (options.batch % b != 0) continue;
    options.micro_batches = {b};
    plan::BaselineResult r = plan::run_baseline(baseline.name, graph, devices, options);
    if (!r.ok()) {
      *failure = r.failure;
      continue;
    }
    graph::Graph chain = plan::chained(graph, r.plan);
    const double predicted = r.plan.predicted_seconds;
    all.push_back({std::string(baseline.name), std::move(chain), std::move(r.plan), predicted});
  }
  return fastest(std::move(all), devices);
}

// Our planner for the model as each of its chains, also with half and twice the size of
// micro-batches that it chooses.
std::vector<Candidate> own_chains(const std::string& name, const graph::Graph& graph,
                                  const plan::Devices& devices,
                                  const plan::PlannerOptions& options) {
  std::vector<Candidate> all;
  for (const graph::Graph& chain : plan::as_chains(graph)) {
    const auto add = [&](plan::Planned planned) {
      if (planned.feasible)
        all.push_back({name, chain, std::move(planned.plan), planned.simulated_seconds});
    };
    plan::Planned planned = plan::make_plan(chain, devices, options);
    if (!planned.feasible) continue;
    const int64_t chosen = planned.plan.stages[0].micro_batch;
    add(std::move(planned));
    for (int64_t b : {chosen / 2, 2 * chosen}) {
      if (b < 1 || b > options.batch || options.batch % b != 0) continue;
      plan::PlannerOptions other = options;
      other.micro_batches = {b};
      add(plan::make_plan(chain, devices, other));
    }
  }
  return fastest(std::move(all), devices);
}

// The rows of a model on a machine, each beside the first one.
class Beside {
 public:
  Beside(const Row& row, double seconds) : row_(row), seconds_(seconds) {}

  void show(const Candidate& c, const plan::Devices& devices) {
    const emulate::Emulation e =
        emulate::carry_out(c.graph, devices, c.plan, c.predicted, {.seconds = seconds_});
    if (own_predicted_ == 0) own_predicted_ = c.predicted, own_emulated_ = e.seconds;
    const double exact = exact_seconds(c.graph, devices, c.plan);
    fmt::print("| {} {} | {} | {} | {} | {} | {:.3f} | {:+.2f} ", row_.model, row_.batch,
               row_.devices, c.name, c.of, c.plan.stages.size(), 1e3 * c.predicted,
               100 * (exact / c.predicted - 1));
    fmt::print("| {:.3f} | {:+.2f} | {:.3f} | {:.3f} | {:.2f} | {:.0f} |\n", 1e3 * e.seconds,
               100 * e.difference(c.predicted), c.predicted / own_predicted_, ratio(e.seconds),
               1e3 * e.lateness.mean, load());
    std::fflush(stdout);
    ++shown_;
    met_ += std::abs(e.difference(c.predicted)) <= kAllowed;
    if (shown_ > 1 && e.seconds < best_) best_ = e.seconds, best_name_ = c.name;
    last_ = e.seconds;
  }
  void show_none(std::string_view name, std::string_view failure) {
    fmt::print("| {} {} | {} | {} | | none: {} | | | | | | | | |\n", row_.model, row_.batch,
               row_.devices, name, failure);
  }

  double ratio(double seconds) const { return seconds / own_emulated_; }
  double last_ratio() const { return ratio(last_); }
  double best_ratio() const { return ratio(best_); }
  const std::string& best_name() const { return best_name_; }
  size_t shown() const { return shown_; }
  size_t met() const { return met_; }

 private:
  const Row& row_;
  const double seconds_;
  double own_predicted_ = 0, own_emulated_ = 0;
  double best_ = HUGE_VAL, last_ = HUGE_VAL;
  std::string best_name_ = "none";
  size_t shown_ = 0, met_ = 0;
};

void show_chain(Beside& rows, const std::vector<Candidate>& best, const plan::Devices& devices,
                std::string_view name, std::string_view failure) {
  if (best.empty()) {
    rows.show_none(name, failure);
  } else {
    rows.show(best[0], devices);
  }
}

// Ours and ours as a chain, with all planners of chains between them unless `runnable`. Returns the
// line of the summary.
std::string print_row(const Row& row, bool runnable, double seconds, size_t& shown, size_t& met) {
  const plan::Devices devices = devices_of(row);
  const graph::Graph graph = graph::build_graph(row.model, devices.groups().front().model);
  plan::PlannerOptions options = options_of(row);
  options.runnable = runnable;
  const std::string suffix = runnable ? ", runnable" : "";
  Beside rows(row, seconds);
  plan::Planned ours = plan::make_plan(graph, devices, options);
  rows.show({"ours" + suffix, graph, std::move(ours.plan), ours.simulated_seconds}, devices);
  for (const plan::Baseline& baseline : plan::baselines()) {
    if (!baseline.chain || runnable) continue;
    std::string failure;
    const auto best = chains_of(baseline, graph, devices, options, &failure);
    show_chain(rows, best, devices, baseline.name, failure);
  }
  const std::string others =
      runnable ? " | " : fmt::format("{} | {:.2f}", rows.best_name(), rows.best_ratio());
  const std::string name = "our planner, as a chain" + suffix;
  const auto best = own_chains(name, graph, devices, options);
  show_chain(rows, best, devices, name, "no plan fits memory");
  shown += rows.shown();
  met += rows.met();
  return fmt::format("| {} | {} | {} | {} | {} |\n", row.model, row.devices,
                     runnable ? "what `ductile train` runs" : "all", others,
                     best.empty() ? "none" : fmt::format("{:.2f}", rows.last_ratio()));
}

void print_branches(double seconds, const std::string& only) {
  print_head({"model, batch", "devices", "plan", "fastest of", "stages", "predicted ms", "exact %",
              "emulated ms", "difference %", "ours is faster by: predicted", "emulated",
              "sleeps late ms", "load"});
  std::string summary;
  size_t shown = 0, met = 0;
  for (const bool runnable : {false, true}) {
    for (const Row& row : kBranches) {
      if (is_wanted(row, only)) summary += print_row(row, runnable, seconds, shown, met);
    }
  }
  fmt::print("\n{} of {} plans within {:.0f} %.\n\n", met, shown, 100 * kAllowed);
  print_head({"model", "devices", "plans", "best chain of the others", "ratio as they run",
              "ratio to our planner, as a chain"});
  fmt::print("{}", summary);
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
