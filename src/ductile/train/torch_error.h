#pragma once

#include "ductile/base/error.h"

namespace c10 {
class Error;
}

namespace ductile::train {

// An error of libtorch in our terms, without its stack of C++ frames: unavailable where there was
// no memory, which says nothing of the job; internal for anything else.
Error error_of(const c10::Error& error);

}  // namespace ductile::train
