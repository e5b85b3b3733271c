#include "ductile/nn/batch_group.h"

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

namespace ductile::nn {
namespace {

thread_local BatchGroup* current = nullptr;

}  // namespace

void BatchGroup::sum(std::span<double> values) {
  ++num_sums_;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor state;
  {
    const std::lock_guard lock(generator.mutex());
    state = generator.get_state();
  }
  all_reduce(values);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

BatchGroup* current_batch_group() { return current; }

BatchGroupScope::BatchGroupScope(BatchGroup* group) : before_(std::exchange(current, group)) {}

BatchGroupScope::~BatchGroupScope() { current = before_; }

}  // namespace ductile::nn
