#include "ductile/nn/model.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/argmax.h>

#include "ductile/base/error.h"
#include "ductile/nn/class_rows_impl.h"
#include "ductile/nn/first_values.h"
#include "ductile/nn/generator.h"
#include "ductile/nn/ops.h"
#include "ductile/nn/threads.h"

namespace ductile::nn {
namespace {

void add(std::vector<NamedTensor>& to, NamedTensor added) {
  for (const NamedTensor& t : to) {
    if (t.name == added.name) {
      fail(ErrorCode::conflict, "the model has two tensors named {}", added.name);
    }
  }
  to.push_back(std::move(added));
}

int64_t first_given(int64_t option, int64_t data, std::string_view key) {
  if (option > 0) return option;
  if (data > 0) return data;
  fail(ErrorCode::invalid_argument, "the data does not say how many outputs there are; set {}",
       key);
}

}  // namespace

int64_t ModelArgs::num_classes() const {
  return first_given(options.num_classes, info.num_classes, "model.num_classes");
}

int64_t ModelArgs::vocab_size() const {
  return first_given(options.vocab_size, info.num_classes, "model.vocab_size");
}

Model::~Model() = default;

std::vector<NamedTensor> Model::parameters() { return parameters_; }
std::vector<NamedTensor> Model::buffers() { return buffers_; }
void Model::train(bool on) { training_ = on; }
bool Model::prefers_channels_last() { return false; }

LossOutput Model::loss(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
  const at::Tensor rows_NK = logits.reshape({-1, logits.size(-1)});
  const at::Tensor labels_N = labels.reshape({-1});
  LossOutput out;
  out.losses = ops::cross_entropy(rows_NK, labels_N, label_smoothing);
  if (logits.dim() > 2) {
    const OneThread alone;  // libtorch cuts the sum of a single row by the number of threads
    out.losses = out.losses.reshape({logits.size(0), -1}).mean(1);
  }
  out.predictions = labels_N.numel();
  const at::Tensor scores_NK = rows_NK.detach().to(at::kFloat);
  out.correct = plain_class_rows(scores_NK, labels_N)
                    ? num_labels_first(scores_NK, labels_N)
                    : at::argmax(scores_NK, 1).eq(labels_N).sum().item<int64_t>();
  return out;
}

at::Tensor Model::register_parameter(std::string name, const at::Tensor& value, bool is_norm,
                                     bool frozen) {
  at::Tensor leaf = value.detach();
  const FirstValues* const first = FirstValues::present();
  if (first != nullptr) leaf = first->withhold(name, leaf);
  leaf.set_requires_grad(!frozen);
  add(parameters_, {std::move(name), leaf, is_norm, frozen, /*blank=*/first != nullptr});
  return leaf;
}

at::Tensor Model::register_buffer(std::string name, const at::Tensor& value, bool is_norm) {
  add(buffers_, {std::move(name), value, is_norm});
  return value;
}

void seed_step(uint64_t value) {
  at::manual_seed(value);
  own_generator().set_current_seed(value);
}

}  // namespace ductile::nn
