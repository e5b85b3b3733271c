#pragma once

#include <cerrno>
#include <functional>
#include <string>
#include <string_view>

#include <unistd.h>

namespace ductile::process {

// Cuts what comes through a non-blocking descriptor into lines.
class LineReader {
 public:
  // False at the end of the stream.
  bool read(int fd, const std::function<void(std::string_view)>& on_line) {
    char block[4096];
    while (true) {
      const ssize_t n = ::read(fd, block, sizeof block);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return true;  // nothing now
      if (n == 0) return false;
      pending_.append(block, static_cast<size_t>(n));
      size_t begin = 0;
      for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
        on_line(std::string_view(pending_).substr(begin, end - begin));
      }
      pending_.erase(0, begin);
    }
  }

 private:
  std::string pending_;
};

}  // namespace ductile::process
