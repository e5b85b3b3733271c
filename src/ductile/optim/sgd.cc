#include "ductile/base/error.h"
#include "ductile/optim/flat_optimizer_impl.h"

namespace ductile::optim {
namespace {

// As torch.optim.SGD with dampening 0: d = g + weight_decay * w; u = momentum * u + d;
// w -= lr * (nesterov ? d + momentum * u : u). A factor on lr divides the weight decay.
class Sgd final : public FlatOptimizer {
 public:
  Sgd(const spec::OptimizerOptions& options, const ParamLayout& layout)
      : FlatOptimizer(layout, 0, state_names_of(options)), nesterov_(options.sgd.nesterov) {
    if (nesterov_ && state_names().empty()) {
      fail(ErrorCode::invalid_argument,
           "optimizer.sgd.nesterov needs optimizer.momentum above 0, for example 0.9");
    }
  }

  void apply(const StepInput& in, BlockRange blocks) override {
    const bool stateful = !state_names().empty();
    const auto momentum = static_cast<float>(in.hyper.momentum);
    if (momentum != 0 && !stateful) {
      fail(ErrorCode::invalid_argument,
           "a momentum of {} was asked for in a run that began without; set optimizer.momentum "
           "above 0",
           in.hyper.momentum);
    }
    update_pieces(in, blocks, [&](const Piece& piece) {
      const double factor = lr_factor(piece);
      const kernels::MomentumScalars scalars{
          .gradient_scale = in.gradient_scale,
          .decay = decays(piece) ? static_cast<float>(in.hyper.weight_decay / factor) : 0.0F,
          .momentum = momentum,
          .inner = 1,
          .outer = static_cast<float>(in.hyper.lr * factor)};
      float* const velocity = stateful ? state_at(0, piece.begin) : nullptr;
      update_strips(in, piece, [&](int64_t i, int64_t n) {
        float* w = in.weights.data() + i;
        const float* g = in.gradient.data() + i;
        if (!stateful) {
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

  bool nesterov_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const spec::OptimizerOptions& options,
                                    const ParamLayout& layout) {
  return std::make_unique<Sgd>(options, layout);
}

}  // namespace ductile::optim
