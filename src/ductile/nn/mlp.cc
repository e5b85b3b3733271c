#include <string>
#include <vector>

#include "ductile/nn/layers.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

class Mlp : public LayerModel {
 public:
  explicit Mlp(const ModelArgs& args) : LayerModel(args) {
    int64_t in = args.info.channels * args.info.height * args.info.width;
    std::vector<int64_t> widths = args.options.hidden;
    widths.push_back(args.num_classes());
    for (const int64_t out : widths) {
      layers_.push_back(add_linear("fc" + std::to_string(layers_.size() + 1), in, out));
      in = out;
    }
  }

  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor h = cast(x).flatten(1);
    for (size_t i = 0; i < layers_.size(); ++i) {
      h = layers_[i](h);
      if (i + 1 < layers_.size()) h = relu(h);
    }
    return h;
  }

 private:
  std::vector<Linear> layers_;
};

}  // namespace

std::unique_ptr<Model> make_mlp(const ModelArgs& args) {
  require_images(args, 1);
  return std::make_unique<Mlp>(args);
}

}  // namespace ductile::nn
