#include "ductile/train/look_model.h"

#include <span>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "ductile/base/error.h"

namespace ductile::train {
namespace {

void copy(std::span<float> values, const std::vector<FlatModel::Entry>& entries,
          std::vector<nn::NamedTensor>& tensors) {
  DUCTILE_CHECK(tensors.size() == entries.size(), "{} tensors for {}", tensors.size(),
                entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const FlatModel::Entry& entry = entries[i];
    DUCTILE_CHECK(tensors[i].name == entry.name, "{} for {}", tensors[i].name, entry.name);
    tensors[i].tensor.copy_(at::from_blob(values.data() + entry.offset, entry.shape, at::kFloat));
  }
}

}  // namespace

LookModel::LookModel(nn::Model& model)
    : model_(model), parameters_(model.parameters()), buffers_(model.buffers()) {}

void LookModel::take_over(FlatModel& trained) {
  const at::NoGradGuard no_grad;
  copy(trained.weights(), trained.parameters(), parameters_);
  copy(trained.buffer_values(), trained.buffers(), buffers_);
}

}  // namespace ductile::train
