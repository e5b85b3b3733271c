#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"

// Paths that people name: anything may lie there. Every error names the path.
namespace ductile {

// What lies at a path, links followed. `other`: a FIFO, a socket, a device, which may never end.
enum class FileKind { none, file, folder, other };
// Throws where that cannot be seen: links that lead to each other, no permission.
FileKind kind_of(const fs::path& path);
// The same, where `other` is invalid_argument.
bool is_file(const fs::path& path);
bool is_folder(const fs::path& path);
// "a FIFO", "a socket", "a device", "a link that leads nowhere" ..., for messages.
std::string kind_text(const fs::path& path);

// What a folder holds, in the order of names.
std::vector<fs::path> list_folder(const fs::path& folder);

// A regular file of at most `max_bytes` into `out`; a FIFO's writer is not waited for. Throws
// invalid_argument for anything else, data_loss for a larger one.
void read_regular_file(const fs::path& path, size_t max_bytes, std::vector<std::byte>& out);

// What the standard library found, in our terms.
Error error_of(const fs::filesystem_error& error);

}  // namespace ductile
