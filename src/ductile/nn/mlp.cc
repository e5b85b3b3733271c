#include <string>
#include <vector>

#include "ductile/nn/operator_model.h"
#include "ductile/nn/zoo_impl.h"

namespace ductile::nn {
namespace {

class Mlp : public OperatorModel {
 public:
  explicit Mlp(const ModelArgs& args) : OperatorModel(args) {
    int64_t in = args.info.channels * args.info.height * args.info.width;
    std::vector<int64_t> widths = args.options.hidden;
    widths.push_back(args.num_classes());
    Source h = input();
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string name = "fc" + std::to_string(i + 1);
      h = add_dense(name, add_linear(name, in, widths[i]), h, /*relu=*/i + 1 < widths.size());
      in = widths[i];
    }
    finish(h);
  }
};

}  // namespace

std::unique_ptr<Model> make_mlp(const ModelArgs& args) {
  require_images(args, 1);
  return std::make_unique<Mlp>(args);
}

}  // namespace ductile::nn
