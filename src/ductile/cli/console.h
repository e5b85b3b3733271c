#pragma once

#include <ostream>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace ductile::cli {

// Where a command speaks: data to `out`, talk to `err`. Passed down; nothing prints elsewhere. What
// is talked of may hold names of files that nobody chose: control characters are left out.
class Console {
 public:
  Console(std::ostream& out, std::ostream& err) : out_(out), err_(err) {}

  int verbosity = 0;          // -1: -q, 1: -v
  bool out_terminal = false;  // stdout is a terminal
  bool err_terminal = false;  // stderr is one: a progress bar may be drawn
  bool color = false;         // stderr may be coloured: a terminal, and NO_COLOR is not set

  std::ostream& out() { return out_; }
  std::ostream& err() { return err_; }

  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    out_ << fmt::format(format, std::forward<Args>(args)...);
  }
  // A line of talk; silent under -q.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    if (verbosity >= 0) line(fmt::format(format, std::forward<Args>(args)...));
  }
  // A line under -v only.
  template <class... Args>
  void explain(fmt::format_string<Args...> format, Args&&... args) {
    if (verbosity > 0) line(fmt::format(format, std::forward<Args>(args)...));
  }
  // An error; -q does not silence it.
  void error(std::string_view text);
  // A line that is always said.
  void line(std::string_view text);

 private:
  std::ostream& out_;
  std::ostream& err_;
};

}  // namespace ductile::cli
