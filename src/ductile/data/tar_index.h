#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ductile::data {

// One file inside a tar archive.
struct TarEntry {
  std::string name;     // without a leading "./"
  uint64_t header = 0;  // offset of its header block, for messages
  uint64_t offset = 0;  // of its bytes
  uint64_t size = 0;
  bool link = false;  // symbolic, or to a member that is not in the archive: it has no bytes
};

// Lists the files of a tar archive: ustar, pax (path, linkpath and size records), GNU long names
// and binary sizes; folders are skipped. A hard link has the bytes of the member before it that it
// names. Nothing is extracted. Throws data_loss naming `file` and offset for a wrong checksum, a
// size that leaves the archive, a file cut short, bytes after the end (of two archives in one).
std::vector<TarEntry> index_tar(std::span<const std::byte> bytes, std::string_view file);

// The 512-byte ustar header of a regular file, the name split into prefix and name; for writing.
// Throws invalid_argument for a name that does not fit (256 characters).
std::string tar_header(std::string_view name, uint64_t size);

}  // namespace ductile::data
