#include "ductile/plan/near_batch.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <vector>

namespace ductile::plan {
namespace {

constexpr int64_t kGap = 8;         // of two divisors between which a good size may lie
constexpr int64_t kManyMicro = 64;  // micro-batches, of which fewer would do as well
constexpr int64_t kUnit = 64;       // of the batches that are tried
constexpr int kTried = 3;
constexpr double kSeconds = 3;  // of search for each
constexpr double kLeast = 0.1;  // with less nothing good would be found
constexpr double kSaves = 0.9;  // of the time of a sample, at most

std::vector<int64_t> divisors_of(int64_t batch) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d * d <= batch; ++d) {
    if (batch % d != 0) continue;
    out.push_back(d);
    if (d * d != batch) out.push_back(batch / d);
  }
  std::ranges::sort(out);
  return out;
}

int64_t next_divisor(int64_t batch, int64_t above) {
  const std::vector<int64_t> all = divisors_of(batch);
  const auto found = std::ranges::upper_bound(all, above);
  return found == all.end() ? 0 : *found;
}

// Whether no two neighbouring divisors are far apart.
bool divides_well(int64_t batch) {
  const std::vector<int64_t> all = divisors_of(batch);
  for (size_t i = 1; i < all.size(); ++i)
    if (all[i] >= kGap * all[i - 1]) return false;
  return true;
}

// Those nearby that divide well, the nearest first.
std::vector<int64_t> batches_near(const PlannerOptions& options) {
  const auto most = static_cast<uint64_t>(std::clamp<int64_t>(options.batch / 16, 1, kUnit));
  const int64_t unit =
      static_cast<int64_t>(std::bit_floor(most)) * std::max<int64_t>(1, options.replicas);
  std::vector<int64_t> out;
  for (int64_t k = -kUnit; k <= kUnit; ++k) {
    const int64_t batch = (options.batch / unit + k) * unit;
    if (batch > options.batch / 2 && batch != options.batch && divides_well(batch))
      out.push_back(batch);
  }
  std::ranges::stable_sort(out, {}, [&](int64_t b) { return std::abs(b - options.batch); });
  if (out.size() > kTried) out.resize(kTried);
  return out;
}

}  // namespace

std::optional<NearBatch> near_batch(const graph::Graph& graph, const Devices& devices,
                                    const PlannerOptions& options, const Planned& planned) {
  if (!planned.feasible || !options.micro_batches.empty() || planned.simulated_seconds <= 0)
    return std::nullopt;
  NearBatch out;
  for (const Stage& stage : planned.plan.stages)
    out.micro_batch = std::max(out.micro_batch, stage.micro_batch);
  out.next = next_divisor(options.batch, out.micro_batch);
  if (out.next < kGap * out.micro_batch || options.batch / out.micro_batch < kManyMicro)
    return std::nullopt;
  const double most = kSaves * planned.simulated_seconds / static_cast<double>(options.batch);
  const auto begin = std::chrono::steady_clock::now();
  for (const int64_t batch : batches_near(options)) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    const double left = options.time_limit - taken.count();
    if (left < kLeast) break;
    PlannerOptions other = options;
    other.batch = batch;
    other.time_limit = std::min(left, kSeconds);
    const Planned found = make_plan(graph, devices, other);
    const double seconds = found.simulated_seconds;
    if (!found.feasible || seconds <= 0 || seconds > most * static_cast<double>(batch)) continue;
    out.batch = batch;
    out.seconds = seconds;
    return out;
  }
  return std::nullopt;
}

}  // namespace ductile::plan
