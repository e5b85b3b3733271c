#include "ductile/nn/threads.h"

#include <omp.h>

#include <ATen/Parallel.h>

#include "ductile/nn/kernels/isa.h"

namespace ductile::nn {

const char* kernels_in_use() {
  const kernels::Isa* const widest = kernels::isa_for(16);
  return widest == nullptr ? "none" : widest->name;
}

OneThread::OneThread() {
  at::get_num_threads();  // a thread's first call sets its number; a later one would undo ours
  before_ = omp_get_max_threads();
  omp_set_num_threads(1);
}

OneThread::~OneThread() { omp_set_num_threads(before_); }

}  // namespace ductile::nn
