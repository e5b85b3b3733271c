#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ductile {

// The kinds of failure a caller may want to tell apart. Everything else is in the message.
enum class ErrorCode {
  invalid_argument,  // the caller's input or configuration is wrong
  not_found,         // a named thing does not exist
  conflict,          // the thing exists already, or is in a state that forbids this
  unavailable,       // a resource is missing or refused now (disk full, busy, no permission)
  deadline,          // it took longer than allowed
  data_loss,         // stored bytes are truncated, altered or unreadable
  peer_lost,         // another process of the job is gone
  internal,          // an invariant broke: a bug in Ductile
};

std::string_view to_string(ErrorCode code);
// The code of that name; internal for an unknown one.
ErrorCode error_code_from(std::string_view name);

// The one exception type. message() says what was wrong, the value, and what would be right.
// with_context() adds outer facts (the file, the sample) as the error travels up.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::vector<std::string>& context() const { return context_; }
  // "outer context: inner context: message"
  const char* what() const noexcept override { return what_.c_str(); }

  Error& with_context(std::string outer);

 private:
  ErrorCode code_;
  std::string message_;
  std::vector<std::string> context_;  // innermost first
  std::string what_;
};

// Throws Error. `fail(ErrorCode::not_found, "{}: no such file", path)`.
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// As fail, with ": " and the text of errno (or `error_number`) appended. ENOENT becomes not_found;
// ENOSPC, EDQUOT, EACCES and the like unavailable.
[[noreturn]] void fail_errno(std::string what, int error_number);

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string message);
}

}  // namespace ductile

// An invariant, always on: throws ErrorCode::internal with file, line and the formatted message.
#define DUCTILE_CHECK(condition, ...)                                 \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::ductile::detail::check_failed(__FILE__, __LINE__, #condition, \
                                      ::fmt::format("" __VA_ARGS__)); \
  } while (false)
