#include "ductile/base/error.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// As torch.optim.SGD with dampening 0: d = g + weight_decay * w; u = momentum * u + d;
// w -= lr * (nesterov ? d + momentum * u : u).
class Sgd final : public FlatOptimizer {
 public:
  Sgd(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 0, state_names_of(options)),
        momentum_(static_cast<float>(options.momentum)),
        nesterov_(options.sgd.nesterov),
        weight_decay_(static_cast<float>(options.weight_decay)) {
    if (nesterov_ && momentum_ == 0) {
      fail(ErrorCode::invalid_argument,
           "optimizer.sgd.nesterov needs optimizer.momentum above 0, for example 0.9");
    }
  }

  void prepare(const StepInput&, BlockRange) override {}

  void apply(const StepInput& in, BlockRange blocks) override {
    for_pieces(blocks, [&](const Piece& piece, size_t) {
      const kernels::MomentumScalars scalars{.gradient_scale = in.gradient_scale,
                                             .decay = decays(piece) ? weight_decay_ : 0.0F,
                                             .momentum = momentum_,
                                             .inner = 1,
                                             .outer = static_cast<float>(in.lr)};
      float* const velocity = momentum_ == 0 ? nullptr : state_at(0, piece.begin);
      update_strips(in, piece, [&](int64_t i, int64_t n) {
        float* w = in.weights.data() + i;
        const float* g = in.gradient.data() + i;
        if (momentum_ == 0) {
          kernels_.sgd(w, g, n, scalars);
        } else {
          (nesterov_ ? kernels_.nesterov : kernels_.momentum)(w, g, velocity + (i - piece.begin), n,
                                                              scalars);
        }
      });
    });
  }

 private:
  static std::vector<std::string> state_names_of(const spec::OptimizerOptions& options) {
    if (static_cast<float>(options.momentum) == 0) return {};
    return {"momentum_buffer"};
  }

  float momentum_;
  bool nesterov_;
  float weight_decay_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const spec::OptimizerOptions& options,
                                    const ParamLayout& layout) {
  return std::make_unique<Sgd>(options, layout);
}

}  // namespace ductile::optim
