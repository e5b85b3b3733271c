#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace ductile::nn {

// While such an object lives, models that this thread makes do not keep the first values of their
// parameters: these are zeros that take no memory (NamedTensor::blank). Those of the parameters
// that are wanted are handed over, one after the other, as each is registered; others are not even
// drawn. So a worker that is to hold a part of a model needs memory for that part and one
// parameter.
//
// This changes no bit: first values depend on (seed, name, element) alone (init.h).
class FirstValues {
 public:
  using Wanted = std::function<bool(std::string_view name)>;
  // `value` has the type of the parameter. What it throws, the model's constructor throws.
  using Take = std::function<void(const std::string& name, const at::Tensor& value)>;

  // Without arguments nothing is wanted. Such objects may be nested; the innermost counts.
  explicit FirstValues(Wanted wanted = {}, Take take = {});
  FirstValues(const FirstValues&) = delete;
  FirstValues& operator=(const FirstValues&) = delete;
  ~FirstValues();

  // That of this thread; nullptr: none.
  static const FirstValues* present();

  bool wants(std::string_view name) const { return wanted_ && wanted_(name); }
  // Hands `value` over if it is wanted, and returns what the model keeps.
  at::Tensor withhold(const std::string& name, const at::Tensor& value) const;

 private:
  const Wanted wanted_;
  const Take take_;
  const FirstValues* const outer_;
};

}  // namespace ductile::nn
