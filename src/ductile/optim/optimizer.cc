#include "ductile/optim/optimizer.h"

#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

constexpr OptimizerEntry kOptimizers[] = {DUCTILE_OPTIMIZERS(DUCTILE_TABLE_ROW)};

void check_length(std::string_view what, size_t size, int64_t expected, bool optional) {
  if (optional && size == 0) return;
  if (static_cast<int64_t>(size) != expected) {
    fail(ErrorCode::invalid_argument, "the {} hold {} values; the layout has {}", what, size,
         expected);
  }
}

}  // namespace

void Optimizer::step(const StepInput& in) {
  const int64_t size = layout_.total_size();
  check_length("weights", in.weights.size(), size, false);
  check_length("gradients", in.gradient.size(), size, false);
  check_length("half weights", in.half_weights.size(), size, true);
  check_length("averaged weights", in.ema.size(), size, true);
  if (in.half != DType::bf16 && in.half != DType::f16) {
    fail(ErrorCode::invalid_argument, "half weights cannot be {}; use bf16 or f16",
         to_string(in.half));
  }
  const BlockRange all{0, num_blocks()};
  for (int round = 0; round < num_rounds(); ++round) prepare(in, all, round);
  apply(in, all);
  finish(in);
}

void Optimizer::finish(const StepInput& in) {
  end_step(in);
  ++num_steps_;
}

bool Optimizer::evaluates_other_weights(const EvaluationInput& in) const {
  const std::vector<Term> terms = evaluated();
  return !in.average.empty() || terms.size() != 1 || !terms[0].state.empty() ||
         terms[0].factor != 1;
}

void Optimizer::evaluation_weights(const EvaluationInput& in, BlockRange blocks,
                                   std::span<float> out) {
  const auto size = static_cast<int64_t>(in.weights.size());
  const int64_t begin = std::min(size, blocks.begin * kBlock);
  const int64_t count = std::min(size, blocks.end * kBlock) - begin;
  if (count <= 0) return;
  if (!in.average.empty()) {
    std::copy_n(in.average.data() + begin, count, out.data() + begin);
    return;
  }
  const std::vector<Term> terms = evaluated();
  const std::vector<StateBuffer> buffers = state(blocks);
  std::vector<const float*> states;
  for (const Term& term : terms) {
    const auto found = std::ranges::find(buffers, term.state, &StateBuffer::name);
    DUCTILE_CHECK(term.state.empty() || found != buffers.end(), "no state {}", term.state);
    states.push_back(term.state.empty() ? nullptr : found->values.data());
  }
  combine(terms, in.weights.data() + begin, states, count, out.data() + begin);
}

void Optimizer::combine(std::span<const Term> terms, const float* weights,
                        std::span<const float* const> states, int64_t n, float* out) {
  const auto& kernels = kernels::best();
  for (size_t t = 0; t < terms.size(); ++t) {
    const float* const from = terms[t].state.empty() ? weights : states[t];
    if (t == 0 && terms[t].factor == 1) {
      std::copy_n(from, n, out);
      continue;
    }
    if (t == 0) std::fill_n(out, n, 0.0F);
    kernels.add_scaled(out, from, n, static_cast<float>(terms[t].factor));
  }
}

std::vector<Optimizer::BlockRange> Optimizer::merged(std::vector<BlockRange> ranges) {
  std::erase_if(ranges, [](const BlockRange& r) { return r.begin >= r.end; });
  std::ranges::sort(ranges, {}, &BlockRange::begin);
  std::vector<BlockRange> out;
  for (const BlockRange& r : ranges) {
    if (out.empty() || out.back().end < r.begin) {
      out.push_back(r);
    } else {
      out.back().end = std::max(out.back().end, r.end);
    }
  }
  return out;
}

int64_t Optimizer::num_blocks() const { return (layout_.total_size() + kBlock - 1) / kBlock; }

bool Optimizer::holds_all() const {
  const std::vector<BlockRange>& ranges = held();
  return num_blocks() == 0 || (ranges.size() == 1 && ranges[0] == BlockRange{0, num_blocks()});
}

void Optimizer::set_num_steps(int64_t n) {
  if (n < 0) fail(ErrorCode::invalid_argument, "the number of steps is {}; it must be >= 0", n);
  num_steps_ = n;
}

Table<OptimizerEntry> optimizers() { return {"optimizer.name =", kOptimizers}; }

std::unique_ptr<Optimizer> make_optimizer(const spec::OptimizerOptions& options,
                                          const ParamLayout& layout) {
  return optimizers().at(options.name).make(options, layout);
}

}  // namespace ductile::optim
