#pragma once

#include <algorithm>
#include <exception>
#include <fstream>
#include <functional>
#include <new>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"

// For tests, of any module.
namespace ductile::testing {

// The code of the Error that `body` throws, and its text; a failure of the test where it throws
// none.
inline ErrorCode code_of(const std::function<void()>& body, std::string* text = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::internal;
}

// The text of the Error that `body` throws, whose code must be `code`.
inline std::string text_of(const std::function<void()>& body,
                           ErrorCode code = ErrorCode::invalid_argument) {
  std::string text;
  EXPECT_EQ(code_of(body, &text), code) << text;
  return text;
}

// Runs `body` in a child process that may take at most `bytes` of memory beyond what this one has,
// whoever takes it. Gives "" where it returns, the text of the Error that it throws, "out of
// memory", or how it died.
inline std::string run_within([[maybe_unused]] size_t bytes, const std::function<void()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string text;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t limit = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
    const rlimit most{limit, limit};
    ::setrlimit(RLIMIT_AS, &most);
#endif
    try {
      body();
    } catch (const std::bad_alloc&) {
      text = "out of memory";
    } catch (const std::exception& e) {
      text = e.what();
    }
    text.resize(std::min<size_t>(text.size(), 4096));  // what a pipe takes at once
    [[maybe_unused]] const ssize_t n = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t n = ::read(ends[0], text.data(), text.size());
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) return "died of signal " + std::to_string(WTERMSIG(status));
  return text;
}

}  // namespace ductile::testing
