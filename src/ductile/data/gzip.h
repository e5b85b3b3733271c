#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace ductile::data {

// The size of the whole, told from its first bytes; throws where they are no such file's.
using SizeOf = std::function<size_t(std::span<const std::byte> head)>;

// The contents of a file, unpacked if it is gzip (by its first bytes, not its name). `size_of` sees
// the first `head` bytes, or fewer where there are no more, before any others are unpacked; memory
// is taken for at most the size that it gives and a byte more, by which the caller sees that the
// file is longer. Throws data_loss naming file and offset for a truncated or altered stream.
std::vector<std::byte> read_maybe_gzip(const std::filesystem::path& path, size_t head,
                                       const SizeOf& size_of);

}  // namespace ductile::data
