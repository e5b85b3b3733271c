// Plans of models whose layers differ (vision with language, large vocabularies, layers of several
// kinds) beside the pipelines that users know: interleaved 1F1B, ZB-H1 and ZB-V, each at its best
// degrees and micro-batch size, one judge. Prints Markdown tables: plan_mixed_bench [DEVICES], 0
// for 8, 16 and 32. `plan_mixed_bench DEVICES deep`: all devices are one pipeline on every side,
// without replicas or splits, as where the depth is given, the batch being small or the model
// large.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/graph/builders_impl.h"
#include "ductile/plan/baselines/baselines.h"
#include "ductile/plan/baselines/uniform_plans_impl.h"

namespace {

using namespace ductile;
using namespace ductile::plan;
using graph::build::kFloat;
using graph::build::Maker;

const graph::DeviceModel kA100{120e12, 1.5e12, 10e-6};

OpId layers(Maker& maker, const std::string& name, int num, int64_t sequence, int64_t hidden,
            std::vector<OpId> at) {
  for (int i = 0; i < num; ++i) {
    at = {graph::build::transformer_layer(maker, fmt::format("{}{}", name, i), sequence, hidden, 16,
                                          4 * hidden, true, at)};
  }
  return at.front();
}

// A layer of any kind, by its arithmetic and its weights for each token.
OpId layer(Maker& maker, const std::string& name, int64_t sequence, int64_t hidden,
           double flops_a_token, double parameters, OpId input) {
  const double s = double(sequence), h = double(hidden);
  graph::Work w;
  w.flops = s * flops_a_token;
  w.bytes = kFloat * s * h * 8;
  w.parameter_bytes = kFloat * parameters;
  w.activation_bytes = kFloat * s * h * 8;
  return maker.add({name, "layer", {sequence, hidden}, w, 16}, {input});
}

OpId embedding(Maker& maker, const std::string& name, int64_t sequence, int64_t hidden,
               int64_t vocabulary) {
  graph::Work w;
  w.flops = double(sequence) * double(hidden);
  w.bytes = 2 * kFloat * double(sequence) * double(hidden);
  w.parameter_bytes = kFloat * double(vocabulary) * double(hidden);
  w.weight_traffic = 0;
  w.activation_bytes = 8 * double(sequence);
  return maker.add({name, "embedding", {sequence, hidden}, w}, {});
}

void head(Maker& maker, int64_t sequence, int64_t hidden, int64_t vocabulary, OpId input) {
  const double s = double(sequence), h = double(hidden), v = double(vocabulary);
  graph::Work w;
  w.flops = 2 * s * h * v;
  w.bytes = kFloat * s * (h + v);
  w.parameter_bytes = kFloat * h * v;
  w.activation_bytes = kFloat * s * (h + v);
  maker.add({"head", "linear", {1}, w, 16}, {input});
}

OpId join(Maker& maker, int64_t sequence, int64_t hidden, const std::vector<OpId>& inputs) {
  graph::Work w;
  w.bytes = 2 * kFloat * double(sequence) * double(hidden);
  return maker.add({"join", "concat", {sequence, hidden}, w}, inputs);
}

graph::Graph vision_language() {
  Maker maker("vision + language", kA100);
  const OpId vision = layers(maker, "vision", 24, 576, 1024, {});
  const OpId projected = maker.linear("projector", 1024, 2048, {vision}, 576);
  const OpId text = embedding(maker, "embedding", 448, 2048, 32'000);
  const OpId both = join(maker, 1024, 2048, {projected, text});
  head(maker, 1024, 2048, 32'000, layers(maker, "layer", 24, 1024, 2048, {both}));
  return maker.finish();
}

graph::Graph two_towers() {
  Maker maker("two towers", kA100);
  const OpId vision = layers(maker, "vision", 24, 257, 1024, {});
  const OpId text = embedding(maker, "embedding", 77, 768, 49'408);
  const OpId read = layers(maker, "text", 12, 77, 768, {text});
  head(maker, 1, 1024, 1024, join(maker, 2, 1024, {vision, read}));
  return maker.finish();
}

graph::Graph large_vocabulary() {
  Maker maker("large vocabulary", kA100);
  const OpId text = embedding(maker, "embedding", 1024, 2048, 256'000);
  head(maker, 1024, 2048, 256'000, layers(maker, "layer", 18, 1024, 2048, {text}));
  return maker.finish();
}

// State-space layers, feed-forward layers and a few of attention.
graph::Graph hybrid() {
  Maker maker("hybrid", kA100);
  OpId at = embedding(maker, "embedding", 2048, 2048, 131'072);
  for (int i = 0; i < 42; ++i) {
    const double h = 2048;
    const bool attends = i % 14 == 9;
    const bool mixes = i % 2 == 0;
    const double weights = attends ? 4 * h * h : mixes ? 6 * h * h : 12 * h * h;
    const double flops = 2 * weights + (attends ? 4 * 2048 * h : mixes ? 600 * h : 0);
    at = layer(maker, fmt::format("layer{}", i), 2048, 2048, flops, weights, at);
  }
  head(maker, 2048, 2048, 131'072, at);
  return maker.finish();
}

// Three dense layers, then experts: many weights, of which a token uses few.
graph::Graph experts() {
  Maker maker("experts", kA100);
  OpId at = embedding(maker, "embedding", 1024, 2048, 102'400);
  for (int i = 0; i < 27; ++i) {
    const double h = 2048, attention = 3 * h * h;
    const double used = i < 3 ? 3 * h * 10'944 : 8 * 3 * h * 1'408;
    const double held = i < 3 ? used : 16 * 3 * h * 1'408;  // the others on other devices
    at = layer(maker, fmt::format("layer{}", i), 1024, 2048, 2 * (attention + used) + 4 * 1024 * h,
               attention + held, at);
  }
  head(maker, 1024, 2048, 102'400, at);
  return maker.finish();
}

graph::Graph three_senses() {
  Maker maker("three senses", kA100);
  const OpId vision = layers(maker, "vision", 32, 256, 1280, {});
  const OpId audio = layers(maker, "audio", 24, 512, 1024, {});
  const OpId text = embedding(maker, "embedding", 512, 2048, 64'000);
  const OpId seen = maker.linear("projector0", 1280, 2048, {vision}, 256);
  const OpId heard = maker.linear("projector1", 1024, 2048, {audio}, 512);
  const OpId all = join(maker, 1280, 2048, {seen, heard, text});
  head(maker, 1280, 2048, 64'000, layers(maker, "layer", 16, 1280, 2048, {all}));
  return maker.finish();
}

enum class Cut { equal_layers, equal_work };

// The best plan of the kind, at any degrees or with all devices as one pipeline. Equal layers: as
// many operators in every part, as its users run it.
double best_uniform(std::string_view kind, Cut cut, bool deep, const graph::Graph& g,
                    const Devices& devices, const PlannerOptions& options) {
  const std::vector<OpId> order = depth_first_order(g);
  double best = std::numeric_limits<double>::infinity();
  for_uniform_shapes(kind, g, island_of(devices), options, [&](const UniformShape& s) {
    const auto n = static_cast<size_t>(s.ranks * s.parts);
    if (n > order.size() || (deep && s.ranks != devices.size())) return;
    std::vector<size_t> ends;
    for (size_t i = 1; i <= n; ++i) ends.push_back(i * order.size() / n);
    for (int64_t b = 1; b <= options.batch; b *= 2) {
      const Plan plan = cut == Cut::equal_layers ? uniform_plan(kind, g, s, options, b, order, ends)
                                                 : uniform_plan(kind, g, s, options, b);
      if (plan.stages.empty()) continue;
      const graph::Graph row = chained(g, plan);
      const Timeline line = evaluate(row, devices, plan);
      if (line.fits()) best = std::min(best, line.seconds);
    }
  });
  return best;
}

struct Means {
  std::vector<double> over_layers, over_work;
};

void note(double ratio, std::vector<double>* means) {
  if (!std::isfinite(ratio)) {
    std::printf(" none |");
    return;
  }
  std::printf(" %.2f |", ratio);
  if (means != nullptr) means->push_back(ratio);
}

void compare(int num_devices, bool deep, Means& means) {
  for (const auto& make :
       {vision_language, two_towers, large_vocabulary, hybrid, experts, three_senses}) {
    graph::Graph g = make();
    g.optimizer_factor = 2;
    DeviceGroup group;
    group.memory = 80e9;
    group.model = kA100;
    group.intra = {300e9, 5e-6};
    group.inter = {25e9, 10e-6};
    const Devices devices = uniform_devices(num_devices, 8, group);
    PlannerOptions options;
    options.batch = 64;
    if (deep) options.replicas = 1, options.split = false;
    const Planned p = make_plan(g, devices, options);
    if (!p.feasible) continue;
    std::printf("| %s | %zu | %d | %.4f | %.1f | %.2f |", g.name.c_str(), g.ops.size(), num_devices,
                p.simulated_seconds, 100 * p.schedule_gap, p.cpu_seconds);
    const auto uniform = [&](std::string_view kind, Cut cut) {
      return best_uniform(kind, cut, deep, g, devices, options) / p.simulated_seconds;
    };
    note(uniform("interleaved", Cut::equal_layers), &means.over_layers);
    note(uniform("interleaved", Cut::equal_work), &means.over_work);
    note(uniform("zb-h1", Cut::equal_work), nullptr);
    note(uniform("zb-v", Cut::equal_work), nullptr);
    if (!deep) {
      options.time_limit = 600;  // a busy machine does not cut it short
      const BaselineResult r = run_baseline("pipedream", g, devices, options);
      if (r.timed_out) std::printf(" (time over)");
      note(r.ok() ? r.plan.predicted_seconds / p.simulated_seconds
                  : std::numeric_limits<double>::infinity(),
           nullptr);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

double mean(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum / static_cast<double>(v.size());
}

}  // namespace

int main(int argc, char** argv) {
  const int only = argc > 1 ? std::atoi(argv[1]) : 0;
  const bool deep = argc > 2 && std::string_view(argv[2]) == "deep";
  std::printf(
      "| model | operators | devices | ours s | gap to any schedule %% | CPU s | interleaved, "
      "equal layers | interleaved, equal work | ZB-H1 | ZB-V |%s\n|---|---|---|---|---|---|---|---|"
      "---|---|%s\n",
      deep ? "" : " PipeDream |", deep ? "" : "---|");
  Means means;
  for (int devices : {8, 16, 32}) {
    if (only == 0 || only == devices) compare(devices, deep, means);
  }
  if (means.over_layers.empty() || means.over_work.empty()) return 0;
  std::printf("\nMean over interleaved 1F1B: %.2f x with equal layers, %.2f x with equal work.\n",
              mean(means.over_layers), mean(means.over_work));
}
