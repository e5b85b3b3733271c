#include "ductile/nn/batch_group.h"

#include <utility>

#include "ductile/nn/generator_impl.h"

namespace ductile::nn {
namespace {

thread_local BatchGroup* current = nullptr;

}  // namespace

void BatchGroup::sum(std::span<double> values) {
  ++num_sums_;
  const KeepGenerators generators;
  all_reduce(values);
}

BatchGroup* current_batch_group() { return current; }

BatchGroupScope::BatchGroupScope(BatchGroup* group) : before_(std::exchange(current, group)) {}

BatchGroupScope::~BatchGroupScope() { current = before_; }

}  // namespace ductile::nn
