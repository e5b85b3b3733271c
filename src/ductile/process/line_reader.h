#pragma once

#include <cerrno>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace ductile::process {

// Cuts what comes through a non-blocking descriptor into lines.
class LineReader {
 public:
  // False at the end of the stream. Of a stranger, `most_blocks` of 4 KiB are read at once, and a
  // longer line comes in pieces: so who prints without end keeps nobody waiting and fills no
  // memory.
  bool read(int fd, const std::function<void(std::string_view)>& on_line,
            int most_blocks = std::numeric_limits<int>::max()) {
    char block[4096];
    for (int blocks = 0; blocks < most_blocks;) {
      const ssize_t n = ::read(fd, block, sizeof block);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return true;  // nothing now
      if (n == 0) return false;
      ++blocks;
      pending_.append(block, static_cast<size_t>(n));
      size_t begin = 0;
      for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
        on_line(std::string_view(pending_).substr(begin, end - begin));
      }
      pending_.erase(0, begin);
    }
    if (!pending_.empty()) on_line(std::exchange(pending_, {}));
    return true;
  }

 private:
  std::string pending_;
};

}  // namespace ductile::process
