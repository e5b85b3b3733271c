#include "ductile/base/error.h"

#include <cerrno>
#include <cstring>

namespace ductile {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::conflict:
      return "conflict";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::deadline:
      return "deadline";
    case ErrorCode::data_loss:
      return "data_loss";
    case ErrorCode::peer_lost:
      return "peer_lost";
    case ErrorCode::internal:
      return "internal";
  }
  return "internal";
}

ErrorCode error_code_from(std::string_view name) {
  for (int i = 0; i < static_cast<int>(ErrorCode::internal); ++i) {
    if (to_string(static_cast<ErrorCode>(i)) == name) return static_cast<ErrorCode>(i);
  }
  return ErrorCode::internal;
}

Error::Error(ErrorCode code, std::string message)
    : code_(code), message_(std::move(message)), what_(message_) {}

Error& Error::with_context(std::string outer) {
  what_ = outer + ": " + what_;
  context_.push_back(std::move(outer));
  return *this;
}

void fail_errno(std::string what, int error_number) {
  ErrorCode code = ErrorCode::unavailable;
  if (error_number == ENOENT || error_number == ENOTDIR) code = ErrorCode::not_found;
  if (error_number == EEXIST || error_number == ENOTEMPTY) code = ErrorCode::conflict;
  if (error_number == EINVAL || error_number == ENAMETOOLONG) code = ErrorCode::invalid_argument;
  throw Error(code, what + ": " + std::strerror(error_number));
}

namespace detail {

void check_failed(const char* file, int line, const char* condition, std::string message) {
  std::string text = fmt::format("{}:{}: broken invariant ({})", file, line, condition);
  if (!message.empty()) text += ": " + message;
  throw Error(ErrorCode::internal, text);
}

}  // namespace detail
}  // namespace ductile
