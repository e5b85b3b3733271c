#include "ductile/nn/threads.h"

#include <omp.h>

#include <ATen/Parallel.h>

namespace ductile::nn {

OneThread::OneThread() {
  at::get_num_threads();  // a thread's first call sets its number; a later one would undo ours
  before_ = omp_get_max_threads();
  omp_set_num_threads(1);
}

OneThread::~OneThread() { omp_set_num_threads(before_); }

}  // namespace ductile::nn
