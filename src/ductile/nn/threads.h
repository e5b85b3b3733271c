#pragma once

#include "ductile/spec/job.h"

// The bits of a model and the number of threads that compute it. Several of libtorch's and oneDNN's
// operators cut a sum by the number of threads, so that gradients (Conv2d, LayerNorm, PReLU ...)
// round otherwise with another number. The built-in models avoid them (`ops.h`), and
// threads_test.cc holds each to the bit; of anybody's own model that is not known, unless it says
// so.
namespace ductile::nn {

// With how many threads a model may be computed from one step to the next.
enum class Threads {
  fixed,  // always as many, for the life of a job
  any,    // every number gives the same bits
};

// Whether the model that these options name computes the same bits with any number of threads: by
// the table of models, or by what its library exports (custom_model.h). False for a name that is
// not known. Throws as load_model does.
bool thread_invariant(const spec::ModelOptions& options);

// What the calling thread computes while this lives it computes alone, in libtorch, oneDNN and our
// kernels: for small operators that would round by the number of threads.
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
