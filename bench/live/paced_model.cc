// A classifier of one layer which sleeps for $PACE_MS milliseconds a sample before it computes: so
// a step takes as long as on a device that is busy for so long, on machines that are emulated and
// share a few cores.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "ductile/nn/custom_model.h"
#include "ductile/nn/layers.h"

namespace {

using ductile::nn::Model;
using ductile::nn::ModelArgs;

class PacedModel : public ductile::nn::LayerModel {
 public:
  explicit PacedModel(const ModelArgs& args) : LayerModel(args) {
    if (const char* pace = std::getenv("PACE_MS"); pace != nullptr) pace_ = std::atof(pace);
    head_ = add_linear("head", args.info.channels * args.info.height * args.info.width,
                       args.num_classes());
  }

  at::Tensor forward(const at::Tensor& x) override {
    const std::chrono::duration<double, std::milli> busy(pace_ * static_cast<double>(x.size(0)));
    if (training()) std::this_thread::sleep_for(busy);
    return head_(cast(x).flatten(1));
  }

 private:
  double pace_ = 0;
  ductile::nn::Linear head_;
};

std::unique_ptr<Model> make(const ModelArgs& args) { return std::make_unique<PacedModel>(args); }

}  // namespace

DUCTILE_EXPORT_MODEL(make, ductile::nn::Threads::any)
