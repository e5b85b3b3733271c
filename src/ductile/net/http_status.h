#pragma once

#include "ductile/base/error.h"

namespace ductile::net {

// The status by which HTTP tells an error of this kind.
constexpr int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return 400;
    case ErrorCode::not_found:
      return 404;
    case ErrorCode::conflict:
      return 409;
    case ErrorCode::unavailable:
      return 503;
    case ErrorCode::deadline:
      return 504;
    case ErrorCode::data_loss:
    case ErrorCode::peer_lost:
    case ErrorCode::internal:
      return 500;
  }
  return 500;
}

}  // namespace ductile::net
