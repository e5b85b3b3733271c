#pragma once

#include <chrono>
#include <functional>

namespace ductile {

// Lets the caller of a long computation end it. While the object lives, ask_whether_wanted() calls
// `ask` in this thread, at most twenty times a second; what it throws ends the computation. Other
// threads, of which a computation may start some, are not asked. Of two objects the inner one
// counts.
class Interruption {
 public:
  explicit Interruption(std::function<void()> ask);
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  ~Interruption();

 private:
  friend void ask_whether_wanted();

  std::function<void()> ask_;
  std::chrono::steady_clock::time_point next_;
  Interruption* outer_;
};

// For loops that may take seconds: does nothing where no Interruption lives in this thread. What
// calls it must be safe to leave by any exception, which need not be an Error.
void ask_whether_wanted();

}  // namespace ductile
