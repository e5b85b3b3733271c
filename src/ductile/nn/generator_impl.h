#pragma once

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include "ductile/nn/generator.h"

namespace ductile::nn {

// libtorch's CPU generator and that of this thread are afterwards as they were before, whatever was
// drawn from them meanwhile.
class KeepGenerators {
 public:
  KeepGenerators() : shared_(at::detail::getDefaultCPUGenerator()), own_(own_generator()) {}

 private:
  class Kept {
   public:
    explicit Kept(const at::Generator& generator) : generator_(generator) {
      const std::lock_guard lock(generator_.mutex());
      state_ = generator_.get_state();
    }
    ~Kept() {
      const std::lock_guard lock(generator_.mutex());
      generator_.set_state(state_);
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

   private:
    at::Generator generator_;
    at::Tensor state_;
  };

  Kept shared_, own_;
};

}  // namespace ductile::nn
