#include "ductile/cli/exit_code.h"

namespace ductile::cli {

ExitCode exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return kUsage;
    case ErrorCode::not_found:
    case ErrorCode::conflict:
      return kNotFound;
    case ErrorCode::peer_lost:
      return kJobFailed;
    case ErrorCode::unavailable:
    case ErrorCode::deadline:
    case ErrorCode::data_loss:
    case ErrorCode::internal:
      return kFailed;
  }
  return kFailed;
}

}  // namespace ductile::cli
