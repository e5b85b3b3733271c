#include "ductile/nn/first_values.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "ductile/base/aligned_array.h"
#include "ductile/base/pages.h"

namespace ductile::nn {
namespace {

thread_local const FirstValues* present_here = nullptr;

}  // namespace

FirstValues::FirstValues(Wanted wanted, Take take)
    : wanted_(std::move(wanted)),
      take_(std::move(take)),
      outer_(std::exchange(present_here, this)) {}

FirstValues::~FirstValues() { present_here = outer_; }

const FirstValues* FirstValues::present() { return present_here; }

at::Tensor FirstValues::withhold(const std::string& name, const at::Tensor& value) const {
  if (take_ && wants(name)) take_(name, value);
  const auto zeros = std::make_shared<AlignedArray<std::byte>>(
      untouched_zeros<std::byte>(static_cast<int64_t>(value.nbytes())));
  return at::from_blob(
      zeros->data(), value.sizes(), [zeros](void*) {}, value.options());
}

}  // namespace ductile::nn
