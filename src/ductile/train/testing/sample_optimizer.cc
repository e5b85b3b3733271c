#include "ductile/train/testing/sample_optimizer.h"

#include <utility>

#include "ductile/base/error.h"

namespace ductile::train::testing {
namespace {

class Halving final : public optim::Optimizer {
 public:
  Halving(std::unique_ptr<optim::Optimizer> inner, const optim::ParamLayout& layout,
          std::function<void(int)> asked)
      : Optimizer(layout), inner_(std::move(inner)), asked_(std::move(asked)) {
    DUCTILE_CHECK(inner_->norm_sums().empty(), "the rule has sums of squares");
  }

  std::span<double> norm_sums_of(BlockRange) override { return {}; }
  void apply(const optim::StepInput& in, BlockRange blocks) override {
    inner_->set_num_steps(num_steps());
    inner_->apply(in, blocks);
  }
  void hold(std::vector<BlockRange> ranges) override { inner_->hold(std::move(ranges)); }
  const std::vector<BlockRange>& held() const override { return inner_->held(); }
  using Optimizer::state;
  std::vector<StateBuffer> state(BlockRange blocks) override {
    // The weights are computed from the terms and then the state.
    if (std::exchange(is_asked_, false)) {
      times_ = std::exchange(asked_at_, num_steps()) == num_steps() ? times_ + 1 : 1;
      if (asked_) asked_(times_);
    }
    return inner_->state(blocks);
  }
  std::vector<std::string> state_names() const override { return inner_->state_names(); }
  size_t state_bytes() const override { return inner_->state_bytes(); }

  std::vector<Term> evaluated() const override {
    is_asked_ = true;
    return {{"", 0.5}};
  }

 private:
  std::unique_ptr<optim::Optimizer> inner_;
  std::function<void(int)> asked_;
  mutable bool is_asked_ = false;
  int64_t asked_at_ = -1;  // updates
  int times_ = 0;          // since then
};

}  // namespace

std::unique_ptr<optim::Optimizer> make_halving_optimizer(const spec::JobOptions& job,
                                                         const optim::ParamLayout& layout,
                                                         std::function<void(int)> asked) {
  return std::make_unique<Halving>(optim::make_optimizer(job.optimizer, layout), layout,
                                   std::move(asked));
}

}  // namespace ductile::train::testing
