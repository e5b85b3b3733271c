// Graphs whose costs, and for `random` edges, are drawn from a seed.
#include <set>

#include "ductile/base/rng.h"
#include "ductile/graph/builders_impl.h"

namespace ductile::graph::build {
namespace {

// Between 0.1 and 10 of a typical operator, evenly on a logarithmic scale; an output of up to
// 4 MiB; sometimes no weights.
OpId add_random(Maker& maker, Rng& rng, std::string name, const std::vector<OpId>& inputs) {
  const double scale = std::pow(10.0, rng.uniform(-1.0, 1.0));
  const int64_t width = 1024 + rng.below(1023 * 1024);
  Work w;
  w.flops = 1e9 * scale;
  w.bytes = 2 * kFloat * double(width);
  w.parameter_bytes = rng.below(4) == 0 ? 0 : std::floor(1e7 * rng.uniform(0.1, 2.0) * scale);
  w.activation_bytes = std::floor(kFloat * double(width) * rng.uniform(1.0, 4.0));
  return maker.add({std::move(name), "synthetic", {width}, w, 8}, inputs);
}

}  // namespace

Graph chain(std::span<const int64_t> v, const DeviceModel& device) {
  Maker maker("chain", device);
  Rng rng(static_cast<uint64_t>(v[1]), 1);
  std::vector<OpId> at;
  for (int64_t i = 0; i < v[0]; ++i) at = {add_random(maker, rng, fmt::format("op{}", i), at)};
  return maker.finish();
}

Graph branches(std::span<const int64_t> v, const DeviceModel& device) {
  Maker maker("branches", device);
  Rng rng(static_cast<uint64_t>(v[3]), 2);
  std::vector<OpId> ends;
  for (int64_t b = 0; b < v[0]; ++b) {
    std::vector<OpId> at;
    for (int64_t i = 0; i < v[1]; ++i) {
      at = {add_random(maker, rng, fmt::format("branch{}.op{}", b, i), at)};
    }
    ends.push_back(at.front());
  }
  std::vector<OpId> at = ends;
  for (int64_t i = 0; i < v[2]; ++i) at = {add_random(maker, rng, fmt::format("tail{}", i), at)};
  return maker.finish();
}

Graph random(std::span<const int64_t> v, const DeviceModel& device) {
  Maker maker("random", device);
  Rng rng(static_cast<uint64_t>(v[1]), 3);
  for (int64_t i = 0; i < v[0]; ++i) {
    // Some operators are sources; inputs are near rather than far, as in real models.
    std::set<OpId> inputs;
    const uint32_t wanted = rng.below(static_cast<uint32_t>(v[2]) + 1);
    for (uint32_t k = 0; k < wanted && i > 0; ++k) {
      const uint32_t reach = static_cast<uint32_t>(std::min<int64_t>(i, 1 + rng.below(8)));
      inputs.insert(static_cast<OpId>(i - 1 - rng.below(reach)));
    }
    add_random(maker, rng, fmt::format("op{}", i), {inputs.begin(), inputs.end()});
  }
  return maker.finish();
}

}  // namespace ductile::graph::build
