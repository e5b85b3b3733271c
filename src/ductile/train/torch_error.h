#pragma once

#include "ductile/base/error.h"

namespace c10 {
class Error;
}

namespace ductile::train {

// An error of libtorch as an Error of Ductile, without its stack of C++ frames: unavailable if
// memory ran out, which does not mean that the job is wrong; internal for anything else.
Error error_of(const c10::Error& error);

}  // namespace ductile::train
