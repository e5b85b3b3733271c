#include "ductile/train/exchange_layout.h"

#include <algorithm>
#include <cstdint>

#include "ductile/base/dtype.h"

namespace ductile::train {
namespace {

// Elements that travel together while the backward pass goes on: a message of at least 1 MiB, in
// which a slow link loses nothing, and not many of them.
int64_t piece_size(int64_t vector_size) {
  constexpr int64_t kLeast = 1 << 18, kMostPieces = 16;
  return std::max(kLeast, (vector_size + kMostPieces - 1) / kMostPieces);
}

}  // namespace

parallel::ExchangeLayout exchange_layout(const spec::JobOptions& job, Replica& replica,
                                         const control::GenerationPlan& plan) {
  parallel::ExchangeLayout layout;
  layout.cut = {0};
  for (const control::Member& m : plan.members) layout.cut.push_back(m.ranks.end);
  layout.vector_size = replica.vector_size();
  layout.exact_tail = replica.vector_size() - replica.figures_begin();
  layout.in_parts = !replica.shards().spread(layout.cut).whole;
  if (layout.in_parts) layout.contributions = replica.contributions();
  layout.message_bytes = replica.message_bytes(layout.cut);
  if (job.train.bn_group == 1) layout.piece_size = piece_size(layout.vector_size);
  if (job.train.reduction == "fast") layout.reduction = parallel::Reduction::fast;
  if (job.train.wire != "fp32") layout.wire = job.train.wire == "bf16" ? DType::bf16 : DType::f16;
  return layout;
}

}  // namespace ductile::train
