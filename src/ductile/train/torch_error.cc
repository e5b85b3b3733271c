#include "ductile/train/torch_error.h"

#include <string>

#include <c10/util/Exception.h>

namespace ductile::train {

Error error_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  // c10/core/impl/alloc_cpu.cpp; a GPU's allocator says "out of memory".
  const bool no_memory = text.find("can't allocate memory") != std::string::npos ||
                         text.find("not enough memory") != std::string::npos ||
                         text.find("out of memory") != std::string::npos;
  return {no_memory ? ErrorCode::unavailable : ErrorCode::internal, text};
}

}  // namespace ductile::train
