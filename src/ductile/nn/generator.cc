#include "ductile/nn/generator.h"

namespace ductile::nn {

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace ductile::nn
