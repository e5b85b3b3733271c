#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/graph/cost_model.h"

namespace ductile::graph {

// Graphs of known models, priced by the analytic cost model, fp32.

// A whole-number parameter of a builder.
struct BuilderParameter {
  std::string_view name;
  int64_t value;  // default
  int64_t min, max;
  std::string_view help;
};

struct Builder {
  std::string_view name;
  std::string_view help;
  std::span<const BuilderParameter> parameters;
  Graph (*build)(std::span<const int64_t> values, const DeviceModel& device);
};

// mmt, dlrm, candle: the three models of GraphPipe's evaluation (arXiv 2406.17145, appendix A.2);
// gpt, bert, resnet, unet; chain, branches, random: synthetic, costs drawn from a seed.
std::span<const Builder> builders();

// "mmt", "candle:8" (values in the order of the parameters), "gpt:layers=24,hidden=2048" (by name).
// Throws invalid_argument naming the builder or parameter, the nearest name and the bounds; so too
// for a graph with more operators than kMaxOps.
Graph build_graph(std::string_view spec, const DeviceModel& device = {});
// True where `spec` begins with the name of a builder.
bool is_builder(std::string_view spec);

}  // namespace ductile::graph
