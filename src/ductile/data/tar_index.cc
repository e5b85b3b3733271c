#include "ductile/data/tar_index.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"

namespace ductile::data {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kMaxMeta = 1 << 20;  // of a long name or a pax header

// Field offsets and lengths of POSIX.1-1988 ustar.
struct Field {
  size_t at, size;
};
constexpr Field kName{0, 100}, kSize{124, 12}, kChecksum{148, 8}, kType{156, 1}, kLinked{157, 100},
    kMagic{257, 5}, kPrefix{345, 155};

std::string_view text(const char* block, Field f) {
  const char* begin = block + f.at;
  return {begin, static_cast<size_t>(std::find(begin, begin + f.size, '\0') - begin)};
}

// Octal digits, or GNU's big-endian binary when the top bit is set.
std::optional<uint64_t> number(const char* block, Field f) {
  const auto* p = reinterpret_cast<const uint8_t*>(block + f.at);
  uint64_t value = 0;
  if ((p[0] & 0x80) != 0) {
    for (size_t i = 0; i < f.size; ++i) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | (i == 0 ? p[0] & 0x7f : p[i]);
    }
    return value;
  }
  size_t i = 0;
  while (i < f.size && p[i] == ' ') ++i;
  const size_t first = i;
  for (; i < f.size && p[i] >= '0' && p[i] <= '7'; ++i) value = value * 8 + (p[i] - '0');
  if (i < f.size && p[i] != 0 && p[i] != ' ') return std::nullopt;
  if (i == first) return f.at == kSize.at ? std::optional<uint64_t>(0) : std::nullopt;
  return value;
}

uint64_t checksum(const char* block) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const bool own = i >= kChecksum.at && i < kChecksum.at + kChecksum.size;
    sum += own ? ' ' : static_cast<uint8_t>(block[i]);
  }
  return sum;
}

struct Pax {
  std::optional<std::string> path, linked;
  std::optional<uint64_t> size;
};

// Records "LENGTH KEY=VALUE\n"; false where one is malformed.
bool read_pax(std::string_view body, Pax& pax) {
  while (!body.empty() && body[0] != '\0') {
    size_t length = 0;
    const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), length);
    const size_t digits = static_cast<size_t>(end - body.data());
    if (error != std::errc() || length > body.size() || length < digits + 3 ||
        body[digits] != ' ' || body[length - 1] != '\n') {
      return false;
    }
    const std::string_view record = body.substr(digits + 1, length - digits - 2);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") pax.path = std::string(value);
    if (key == "linkpath") pax.linked = std::string(value);
    if (key == "size") {
      uint64_t size = 0;
      const auto r = std::from_chars(value.data(), value.data() + value.size(), size);
      if (r.ec != std::errc() || r.ptr != value.data() + value.size()) return false;
      pax.size = size;
    }
    body.remove_prefix(length);
  }
  return true;
}

std::string without_dots(std::string name) {
  while (name.starts_with("./")) name.erase(0, 2);
  return name;
}

// Where a block is all zeros, which ends an archive: the first byte after them that is none.
std::optional<const char*> bytes_after_zeros(const char* block, const char* end) {
  const auto zero = [](char c) { return c == 0; };
  if (!std::all_of(block, block + kBlock, zero)) return std::nullopt;
  return std::find_if_not(block + kBlock, end, zero);
}

}  // namespace

std::vector<TarEntry> index_tar(std::span<const std::byte> bytes, std::string_view file) {
  std::vector<TarEntry> entries;
  const char* const data = reinterpret_cast<const char*>(bytes.data());
  const uint64_t total = bytes.size();
  Pax pax;
  std::unordered_map<std::string, std::pair<uint64_t, uint64_t>> places;  // offset, size
  uint64_t at = 0;
  while (true) {
    const auto broken = [&](uint64_t where, std::string_view what) {
      fail(ErrorCode::data_loss, "{}, offset {}: {}", file, where, what);
    };
    // An archive ends with two zero blocks; some writers leave them out.
    if (at == total && !entries.empty()) break;
    if (total - at < kBlock) broken(total, "the tar archive is truncated within a header");
    const char* const block = data + at;
    if (const auto more = bytes_after_zeros(block, data + total)) {
      if (*more == data + total) break;
      broken(at, fmt::format("zeros in place of a header, and bytes again from offset {} on; was "
                             "one archive appended to another, or a part overwritten?",
                             *more - data));
    }
    const auto sum = number(block, kChecksum);
    if (!sum || *sum != checksum(block)) {
      broken(at, entries.empty() ? "not a tar archive, or its first header is altered"
                                 : "a tar header with a wrong checksum");
    }
    const char type = block[kType.at];
    auto size = number(block, kSize);
    const bool meta = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    if (!meta && pax.size) size = pax.size;
    const uint64_t body = at + kBlock;
    if (!size || *size > total - body) {
      broken(at, size ? fmt::format("a member of {} bytes, the archive has {} left", *size,
                                    total - body)
                      : "a size that is no number");
    }
    const uint64_t padded = (*size + kBlock - 1) / kBlock * kBlock;
    const std::string_view content(data + body, *size);
    if (meta) {
      if (*size > kMaxMeta) broken(at, "an extended header of over a mebibyte");
      if (type == 'L') pax.path = std::string(content.substr(0, content.find('\0')));
      if (type == 'K') pax.linked = std::string(content.substr(0, content.find('\0')));
      if (type == 'x' && !read_pax(content, pax)) broken(at, "a malformed pax header");
    } else {
      const bool hard = type == '1' && *size == 0, link = hard || type == '2';
      if (link || type == '0' || type == '1' || type == '\0' || type == '7') {
        std::string name;
        if (pax.path) {
          name = *pax.path;
        } else {
          name = text(block, kName);
          if (text(block, kMagic) == "ustar" && block[kPrefix.at] != 0 &&
              std::memcmp(block + kMagic.at, "ustar ", 6) != 0) {
            name = fmt::format("{}/{}", text(block, kPrefix), name);
          }
        }
        name = without_dots(std::move(name));
        TarEntry entry{name, at, body, *size, link};
        if (hard) {
          const std::string linked =
              without_dots(pax.linked ? *pax.linked : std::string(text(block, kLinked)));
          if (const auto found = places.find(linked); found != places.end()) {
            entry.offset = found->second.first;
            entry.size = found->second.second;
            entry.link = false;
          }
        }
        if (!entry.link) places[name] = {entry.offset, entry.size};
        if (!name.ends_with('/')) entries.push_back(std::move(entry));
      } else if (type == 'S') {
        broken(at, "a sparse member, which is not supported");
      }
      pax = {};
    }
    // The padding of the last member may be missing.
    at = std::min(body + padded, total);
  }
  return entries;
}

std::string tar_header(std::string_view name, uint64_t size) {
  std::string block(kBlock, '\0');
  size_t cut = 0;  // of the slash between prefix and name
  if (name.size() > kName.size) {
    cut = name.find('/', name.size() - kName.size - 1);
    if (cut == std::string_view::npos || cut > kPrefix.size || cut == 0) {
      fail(ErrorCode::invalid_argument, "{}: a name too long for a tar archive", name);
    }
    std::copy_n(name.data(), cut, block.data() + kPrefix.at);
    ++cut;
  }
  if (size >> 33 != 0) {
    fail(ErrorCode::invalid_argument, "{}: {} bytes are too many for a tar member", name, size);
  }
  const std::string_view rest = name.substr(cut);
  std::copy_n(rest.data(), rest.size(), block.data() + kName.at);
  const auto put = [&](size_t at, const std::string& value) {
    std::copy_n(value.data(), value.size(), block.data() + at);
  };
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(kSize.at, fmt::format("{:011o}", size));
  put(136, "00000000000");
  put(kType.at, "0");
  put(kMagic.at, "ustar");
  put(263, "00");
  put(kChecksum.at, fmt::format("{:06o}", checksum(block.data())) + std::string("\0 ", 2));
  return block;
}

}  // namespace ductile::data
