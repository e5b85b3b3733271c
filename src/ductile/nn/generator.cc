#include "ductile/nn/generator.h"

#include <ATen/CPUGeneratorImpl.h>

namespace ductile::nn {

at::Generator& own_generator() {
  thread_local at::Generator generator = at::detail::createCPUGenerator();
  return generator;
}

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace ductile::nn
