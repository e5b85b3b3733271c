#include "ductile/data/gzip.h"

#include <algorithm>

#include <zlib.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"

namespace ductile::data {
namespace {

struct Inflater {
  z_stream stream{};
  Inflater() {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) {
      fail(ErrorCode::unavailable, "zlib cannot start: {}", stream.msg ? stream.msg : "no memory");
    }
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream); }
};

constexpr size_t kFirstStep = size_t{1} << 16;
constexpr size_t kMaxStep = size_t{1} << 26;  // zlib counts in 32 bits

}  // namespace

std::vector<std::byte> read_maybe_gzip(const std::filesystem::path& path, size_t head,
                                       const SizeOf& size_of) {
  const MappedFile file(path);
  const auto in = file.bytes();
  if (in.size() < 2 || in[0] != std::byte{0x1f} || in[1] != std::byte{0x8b}) {
    const size_t size = size_of(in.first(std::min(head, in.size())));
    return {in.begin(), in.begin() + static_cast<ptrdiff_t>(std::min(in.size(), size + 1))};
  }

  Inflater z;
  std::vector<std::byte> out(head);
  size_t most = head;  // the size of the whole and a byte more, once it is known
  bool told = false;
  size_t read = 0, written = 0;
  const auto tell = [&] {
    most = size_of(std::span(out).first(written)) + 1;
    told = true;
  };
  while (true) {
    if (written == most && !told) tell();
    if (written >= most) break;
    // Memory grows with what really comes out, never with what a header promises.
    if (written == out.size()) out.resize(std::min(most, std::max(out.size() * 2, kFirstStep)));
    const size_t give = std::min(in.size() - read, kMaxStep);
    const size_t room = std::min(out.size() - written, kMaxStep);
    z.stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data() + read));
    z.stream.avail_in = static_cast<uInt>(give);
    z.stream.next_out = reinterpret_cast<Bytef*>(out.data() + written);
    z.stream.avail_out = static_cast<uInt>(room);
    const int rc = inflate(&z.stream, Z_NO_FLUSH);
    read += give - z.stream.avail_in;
    written += room - z.stream.avail_out;
    if (rc == Z_STREAM_END) {
      // A file may hold several members, one after the other.
      if (in.size() - read >= 2 && in[read] == std::byte{0x1f} && in[read + 1] == std::byte{0x8b}) {
        inflateReset(&z.stream);
        continue;
      }
      break;
    }
    if (rc == Z_BUF_ERROR || (rc == Z_OK && read == in.size() && z.stream.avail_out > 0)) {
      if (read < in.size()) continue;
      fail(ErrorCode::data_loss, "{}, compressed offset {}: truncated after {} unpacked bytes",
           path.string(), read, written);
    }
    if (rc != Z_OK) {
      fail(ErrorCode::data_loss, "{}, compressed offset {}: {}", path.string(), read,
           z.stream.msg ? z.stream.msg : "broken gzip data");
    }
  }
  if (!told) tell();  // shorter than its head
  out.resize(written);
  return out;
}

}  // namespace ductile::data
