#include "ductile/base/log.h"

#include <cerrno>
#include <string>

#include <unistd.h>

namespace ductile {

void log_line(std::string_view text) {
  std::string line(text);
  line += '\n';
  while (::write(STDERR_FILENO, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

}  // namespace ductile
