#pragma once

#include <utility>

#include "ductile/base/error.h"

namespace ductile::sched {

// Reads what Ductile itself has saved: what `read` refuses as invalid_argument is damage here.
template <class Read>
auto as_data_loss(Read&& read) {
  try {
    return std::forward<Read>(read)();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) throw;
    fail(ErrorCode::data_loss, "{}", e.message());
  }
}

}  // namespace ductile::sched
