#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"

// Functions for paths that people name, where anything may lie. Every error names the path.
namespace ductile {

// What lies at a path, after links are followed. `other` is a FIFO, a socket or a device; reading
// it may never end.
enum class FileKind { none, file, folder, other };
// Throws if that cannot be determined: links that lead to each other, no permission.
FileKind kind_of(const fs::path& path);
// The same, but these throw invalid_argument for `other`.
bool is_file(const fs::path& path);
bool is_folder(const fs::path& path);
// "a FIFO", "a socket", "a device", "a link that leads nowhere" ..., for messages.
std::string kind_text(const fs::path& path);

// What a folder holds, in the order of names.
std::vector<fs::path> list_folder(const fs::path& folder);

// Reads a regular file of at most `max_bytes` into `out`. Throws data_loss for a larger file and
// invalid_argument for anything else, without waiting for the writer of a FIFO.
void read_regular_file(const fs::path& path, size_t max_bytes, std::vector<std::byte>& out);

// The error of the standard library as an Error of Ductile.
Error error_of(const fs::filesystem_error& error);

}  // namespace ductile
