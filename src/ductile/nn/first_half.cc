#include "ductile/nn/first_half.h"

#include <algorithm>
#include <utility>

namespace ductile::nn {
namespace {

thread_local const std::vector<at::Tensor>* first_gradients = nullptr;

}  // namespace

FirstHalf::FirstHalf(const std::vector<at::Tensor>& gradients)
    : before_(std::exchange(first_gradients, &gradients)) {}

FirstHalf::~FirstHalf() { first_gradients = before_; }

bool FirstHalf::begins_with(const at::Tensor& gradient) {
  return first_gradients != nullptr &&
         std::ranges::any_of(*first_gradients,
                             [&](const at::Tensor& g) { return g.is_same(gradient); });
}

}  // namespace ductile::nn
