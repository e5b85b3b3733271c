#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

namespace ductile::data {

// The contents of a file, unpacked if it is gzip (by its first bytes, not its name); at most
// `max_bytes`. Throws data_loss naming file and offset for a truncated or altered stream, or one
// that holds more than max_bytes.
std::vector<std::byte> read_maybe_gzip(const std::filesystem::path& path, size_t max_bytes);

}  // namespace ductile::data
