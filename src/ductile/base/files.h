#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace ductile {

namespace fs = std::filesystem;

// The whole file. Throws not_found or unavailable, naming the path.
std::string read_file(const fs::path& path);

// The text of a file, pipe or device that a user names, which may have no end: throws
// invalid_argument if there are more than `most` bytes, and otherwise as read_file().
inline constexpr size_t kMostText = size_t{64} << 20;
std::string read_text(const fs::path& path, size_t most = kMostText);

// Writes to a temporary file beside `path`, fsyncs, renames over it and fsyncs the folder: after a
// crash the file is the old one or the new one, never a mixture. Throws unavailable (disk full ...)
// with the path; the old file is then untouched and the temporary is gone.
void write_file_atomic(const fs::path& path, std::span<const std::byte> bytes);
void write_file_atomic(const fs::path& path, std::string_view text);

void fsync_folder(const fs::path& folder);

// A read-only mapping of a whole file. Movable; unmapped at the end of life.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const fs::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A fresh folder under $TMPDIR (or /tmp), removed with its contents at the end of life.
class TempFolder {
 public:
  explicit TempFolder(std::string_view prefix = "ductile");
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder();

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A file in memory without a name in any folder: it is gone with this process, however that ends.
class UnnamedFile {
 public:
  explicit UnnamedFile(std::string_view text = "");  // throws unavailable
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  ~UnnamedFile();

  // By which this process, and others of its user while it lives, open the file.
  fs::path path() const;

 private:
  int fd_ = -1;
};

}  // namespace ductile
