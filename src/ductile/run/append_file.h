#pragma once

#include <cstdint>
#include <string_view>

#include "ductile/base/files.h"

namespace ductile::run {

// A file that only grows, by whole pieces: each append is one write(2), and one that fails leaves
// the file as it was.
class AppendFile {
 public:
  AppendFile() = default;
  // `flags` besides O_APPEND and O_CLOEXEC; throws with the path and errno's meaning.
  AppendFile(const fs::path& path, int flags);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  void append(std::string_view bytes);
  void sync();
  int fd() const { return fd_; }

 private:
  fs::path path_;
  int fd_ = -1;
};

}  // namespace ductile::run
