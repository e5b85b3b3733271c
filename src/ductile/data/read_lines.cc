#include "ductile/data/read_lines.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/paths.h"
#include "ductile/data/limits.h"

namespace ductile::data {

std::vector<std::string> read_lines(const std::filesystem::path& file) {
  std::vector<std::string> lines;
  std::vector<std::byte> bytes;
  read_regular_file(file, kMaxNamesBytes, bytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!line.empty()) lines.emplace_back(line);
    if (static_cast<int64_t>(lines.size()) > kMaxClasses) {
      fail(ErrorCode::data_loss, "{}: more than {} classes", file.string(), kMaxClasses);
    }
    at = end + 1;
  }
  return lines;
}

}  // namespace ductile::data
