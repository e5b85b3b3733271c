#pragma once

#include "ductile/spec/job.h"

// How the bits of a model depend on the number of threads that compute it. Several operators of
// libtorch and oneDNN divide a sum by the number of threads, so gradients (Conv2d, LayerNorm, PReLU
// ...) round differently with another number. The built-in models avoid these operators (`ops.h`),
// and threads_test.cc compares each model to the bit. For a user's own model this is not known,
// unless the model declares it.
namespace ductile::nn {

// The numbers of threads with which a model may be computed.
enum class Threads {
  fixed,  // always as many, for the life of a job
  any,    // every number gives the same bits
};

// Whether the model that these options name computes the same bits with any number of threads,
// according to the table of models or to what its library exports (custom_model.h). False for an
// unknown name. Throws as load_model does.
bool thread_invariant(const spec::ModelOptions& options);

// The instruction set of the kernels that Ductile's own operators run (kernels/isa.h); "none" where
// ATen does all the work.
const char* kernels_in_use();

// While this object lives, the calling thread computes without helper threads, in libtorch, oneDNN
// and our kernels. It is for small operators whose rounding would depend on the number of threads.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace ductile::nn
