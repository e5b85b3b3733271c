#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "ductile/base/pages.h"
#include "ductile/nn/evaluates_whole.h"
#include "ductile/nn/first_values.h"
#include "ductile/nn/kernels/product.h"
#include "ductile/nn/operators.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/replica.h"
#include "ductile/train/stage_forward.h"

// A replica whose state lies in parts on several workers: how they come together for who reads all
// of it, and what of the memory goes back to the system.
namespace ductile::train {

namespace {

// All members together: whether columns of divided layers have the bits of the whole, as they have
// by our own products alone, and processors may differ.
bool columns_are_alike(const spec::JobOptions& job, parallel::Exchange& exchange) {
  if (!spec::divides_tensors(job)) return true;
  const bool here = job.train.precision == "fp32" && nn::kernels::product_supported();
  return exchange.largest(here ? 0 : 1) == 0;
}

}  // namespace

void Replica::transfer(parallel::Exchange& exchange, std::span<const Blocks> have,
                       std::span<const Blocks> want) {
  tidy_for_.reset();
  shards_.transfer(exchange, have, want);
  for (const parallel::BlockRange& held : shards_.held())
    state_.flat.refresh_half_weights(shards_.floats(held));
}

// Made by another model, of which nothing stays.
void Replica::make_blanks() {
  const std::vector<FlatModel::Entry>& parameters = state_.flat.parameters();
  std::set<std::string, std::less<>> names;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const FlatModel::Entry& p = parameters[i];
    const bool is_held = std::ranges::any_of(shards_.held(), [&](const parallel::BlockRange& b) {
      const parallel::FloatRange held = shards_.floats(b);
      return held.begin < p.offset + p.size && p.offset < held.end;
    });
    if (is_held && state_.flat.is_blank(i)) names.insert(p.name);
  }
  if (names.empty()) return;
  const nn::FirstValues wanted(
      [&](std::string_view name) { return names.contains(name); },
      [&](const std::string& name, const at::Tensor& value) { state_.set_blank(name, value); });
  ingredients_.make_model();
}

std::vector<std::vector<parallel::FloatRange>> Replica::contributions() const {
  if (!shards_.kept_where_read()) return {};
  return runner_.contributions();
}

void Replica::gather_weights(parallel::Exchange& exchange) {
  if (shards_.kept_where_read()) return tidy();
  if (shards_.gather(exchange, state_.flat.weights())) state_.flat.refresh_half_weights();
}

// Statistics for the rule's weights are a pass in training, which is not run by stages.
bool Replica::needs_statistics(const JobState::EvaluationWeights& evaluated) const {
  return evaluated.of_the_rule && job_.train.statistics_batches > 0 &&
         !state_.flat.buffers().empty();
}

bool Replica::deploys_in_parts() {
  return !ingredients_.task && !needs_statistics(state_.evaluation_weights());
}

void Replica::gather(parallel::Exchange& exchange) {
  constexpr int kLeader = 0;
  tidy_for_.reset();
  by_stages_ = nullptr;  // of an evaluation that was given up
  gathered_.reset();
  JobState::EvaluationWeights evaluated = state_.evaluation_weights();
  if (shards_.kept_where_read() && !shards_.layout().whole && !needs_statistics(evaluated) &&
      nn::operators_evaluate(*ingredients_.model) && columns_are_alike(job_, exchange)) {
    std::vector<int> hosts;  // of the first pipeline
    const std::vector<int64_t>& cut = exchange.layout().cut;
    for (const int rank : runner_.ranks_of_operators()) {
      const auto behind = std::ranges::upper_bound(cut, rank);
      hosts.push_back(static_cast<int>(behind - cut.begin()) - 1);
    }
    by_stages_ =
        std::make_unique<StageForward>(runner_.forward_operators(), std::move(hosts), exchange);
    gathered_ = std::move(evaluated);
    return;
  }
  if (shards_.gather_at(exchange, kLeader, state_.flat.weights())) {
    state_.flat.refresh_half_weights();
  }
  if (!evaluated.weights.empty()) shards_.gather_at(exchange, kLeader, evaluated.weights);
  if (exchange.rank() == kLeader) gathered_ = std::move(evaluated);
}

// Of the weights to evaluate, those that this worker has.
std::optional<std::vector<parallel::FloatRange>> Replica::evaluated_ranges() const {
  if (!by_stages_) return std::nullopt;
  std::vector<parallel::FloatRange> out;
  for (const parallel::BlockRange& held : shards_.held()) out.push_back(shards_.floats(held));
  return out;
}

void Replica::follow_evaluation() {
  if (!by_stages_) return;
  JobState::EvaluationWeights other = take_gathered();
  const WeightsSwap swap(state_.flat, other.weights, other.buffers, evaluated_ranges());
  const EvaluationMode mode(*ingredients_.model);
  by_stages_->follow();
  by_stages_ = nullptr;
}

void Replica::end_evaluation() {
  if (by_stages_) by_stages_->end();
  by_stages_ = nullptr;
}

void Replica::tidy() {
  if (!shards_.kept_where_read() || tidy_for_ == shards_.held()) return;
  int64_t begin = 0;
  for (const parallel::BlockRange& held : shards_.held()) {
    give_back_blocks({begin, held.begin});
    begin = held.end;
  }
  give_back_blocks({begin, shards_.num_blocks()});
  give_back_freed();
  tidy_for_ = shards_.held();
}

void Replica::give_back_blocks(parallel::BlockRange blocks) {
  if (blocks.begin >= blocks.end) return;
  const parallel::FloatRange range = shards_.floats(blocks);
  const auto give = [&](auto values) {
    if (values.empty()) return;
    give_back(std::as_writable_bytes(values.subspan(static_cast<size_t>(range.begin),
                                                    static_cast<size_t>(range.end - range.begin))));
  };
  give(state_.flat.weights());
  give(state_.flat.half_weights());
  give(state_.average.span());
}

}  // namespace ductile::train
