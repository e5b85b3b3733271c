#include "ductile/train/own_update.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/nn/model.h"

namespace ductile::train {
namespace {

class OwnOptimizer final : public optim::Optimizer {
 public:
  OwnOptimizer(OwnUpdate& update, nn::Model& model, const optim::ParamLayout& layout)
      : Optimizer(layout),
        update_(update),
        gradient_(layout.total_size()),
        held_{{0, num_blocks()}} {
    for (const nn::NamedTensor& p : model.parameters()) {
      float* const at = gradient_.data() + layout_.segment(p.name).offset;
      gradients_.push_back(at::from_blob(at, p.tensor.sizes()));
    }
  }

  std::span<double> norm_sums_of(BlockRange) override { return {}; }

  void apply(const optim::StepInput& in, BlockRange blocks) override {
    DUCTILE_CHECK((blocks == BlockRange{0, num_blocks()}),
                  "an optimiser of Python updates all weights");
    for (const optim::Segment& s : layout_.segments()) {
      const float* const from = in.gradient.data() + s.offset;
      float* const to = gradient_.data() + s.offset;
      for (int64_t i = 0; i < s.size; ++i) to[i] = from[i] * in.gradient_scale;
    }
    update_.step(gradients_, num_steps());
    const float keep = in.ema_decay;
    for (size_t i = 0; i < in.ema.size(); ++i) {
      in.ema[i] = keep == 0 ? in.weights[i] : in.ema[i] + (1 - keep) * (in.weights[i] - in.ema[i]);
    }
  }

  void hold(std::vector<BlockRange> ranges) override { held_ = merged(std::move(ranges)); }
  const std::vector<BlockRange>& held() const override { return held_; }
  using Optimizer::state;
  std::vector<StateBuffer> state(BlockRange) override { return {}; }
  std::vector<std::string> state_names() const override { return {}; }
  size_t state_bytes() const override { return 0; }

 private:
  OwnUpdate& update_;
  AlignedArray<float> gradient_;
  std::vector<at::Tensor> gradients_;  // views into it
  std::vector<BlockRange> held_;
};

}  // namespace

std::unique_ptr<optim::Optimizer> make_own_optimizer(OwnUpdate& update, nn::Model& model,
                                                     const optim::ParamLayout& layout) {
  return std::make_unique<OwnOptimizer>(update, model, layout);
}

}  // namespace ductile::train
