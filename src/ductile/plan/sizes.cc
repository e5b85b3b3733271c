#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/sizes_impl.h"

namespace ductile::plan {

std::string near_divisors(int64_t number, int64_t refused) {
  int64_t below = 0, above = 0;
  const auto note = [&](int64_t d) {
    if (d < refused) below = std::max(below, d);
    if (d > refused) above = above == 0 ? d : std::min(above, d);
  };
  for (int64_t d = 1; d <= number / d; ++d) {
    if (number % d == 0) note(d), note(number / d);
  }
  if (below == 0 || above == 0) return fmt::format("{} does", below + above);
  return fmt::format("{} and {} do", below, above);
}

std::vector<int64_t> sizes_to_try(const PlannerOptions& options) {
  if (options.batch < 1) {
    fail(ErrorCode::invalid_argument, "batch: {} samples; at least 1", options.batch);
  }
  if (options.replicas > 0 && options.batch % options.replicas != 0) {
    fail(ErrorCode::invalid_argument, "replicas: {} do not divide the batch of {}; {}",
         options.replicas, options.batch, near_divisors(options.batch, options.replicas));
  }
  std::vector<int64_t> sizes = options.micro_batches;
  for (int64_t b : sizes) {
    if (b < 1 || options.batch % b != 0) {
      fail(ErrorCode::invalid_argument, "micro_batches: {} does not divide the batch of {}; {}", b,
           options.batch, near_divisors(options.batch, b));
    }
    if (options.replicas > 0 && b % options.replicas != 0) {
      fail(ErrorCode::invalid_argument,
           "replicas: {} do not divide a micro-batch of {} samples, of which each has an equal "
           "part; "
           "{}",
           options.replicas, b, near_divisors(b, options.replicas));
    }
  }
  if (sizes.empty()) {
    for (int64_t b = 1; b * b <= options.batch; ++b) {
      if (options.batch % b != 0) continue;
      sizes.push_back(b);
      if (b * b != options.batch) sizes.push_back(options.batch / b);
    }
  }
  if (options.replicas > 0)
    std::erase_if(sizes, [&](int64_t b) { return b % options.replicas != 0; });
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::vector<int64_t> sizes_in_time(const std::vector<int64_t>& sizes, int64_t batch,
                                   int64_t most_tasks) {
  std::vector<int64_t> few;
  for (int64_t b : sizes) {
    if (2 * (batch / b) <= most_tasks / 8) few.push_back(b);
  }
  return few.empty() ? std::vector<int64_t>{sizes.back()} : few;
}

double least_work(const SearchSpace& space, std::span<const int64_t> sizes, int64_t batch) {
  double least = kInfinity;
  for (int64_t b : sizes) {
    const double samples = static_cast<double>(b);
    double work = 0;
    for (OpId v = 0; v < static_cast<OpId>(space.graph().ops.size()); ++v) {
      double own = kInfinity;
      for (int k = 0; k < static_cast<int>(space.variants().size()); ++k) {
        const graph::OpCost& c = space.op_cost(v, k);
        own = std::min(own, space.variants()[k].tensor *
                                (c.forward.at(samples) + c.backward_input.at(samples) +
                                 c.backward_weight.at(samples)));
      }
      work += own;
    }
    least = std::min(least, work * static_cast<double>(batch / b));
  }
  return least * (1 - 1e-6);
}

std::vector<int> equal_replicas(int devices, const PlannerOptions& options) {
  std::vector<int> out;
  const std::vector<int64_t> sizes = sizes_to_try(options);
  for (int r = 1; r <= devices; ++r) {
    if (std::ranges::any_of(sizes, [r](int64_t b) { return b % r == 0; })) out.push_back(r);
  }
  return out;
}

}  // namespace ductile::plan
