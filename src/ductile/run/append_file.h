#pragma once

#include <cstdint>
#include <string_view>

#include <sys/types.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::run {

// A file that only grows, by whole pieces: each append is one write(2).
class AppendFile {
 public:
  AppendFile() = default;
  // `flags` besides O_APPEND and O_CLOEXEC; throws with the path and errno's meaning.
  AppendFile(const fs::path& path, int flags);

  // One that fails leaves the file as it was. For a file of one writer.
  void append(std::string_view bytes);
  // One that fails may leave a part of the piece. For a file to which others append: nothing is
  // ever cut off, since by then it could be theirs.
  void append_shared(std::string_view bytes);
  void sync();
  int fd() const { return fd_.get(); }

 private:
  ssize_t write(std::string_view bytes);

  fs::path path_;
  Descriptor fd_;
};

}  // namespace ductile::run
