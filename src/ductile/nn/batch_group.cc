#include "ductile/nn/batch_group.h"

#include <utility>

namespace ductile::nn {
namespace {

thread_local BatchGroup* current = nullptr;

}  // namespace

BatchGroup* current_batch_group() { return current; }

BatchGroupScope::BatchGroupScope(BatchGroup* group) : before_(std::exchange(current, group)) {}

BatchGroupScope::~BatchGroupScope() { current = before_; }

}  // namespace ductile::nn
