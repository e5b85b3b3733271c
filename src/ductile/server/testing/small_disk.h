#pragma once

#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::server::testing {

// A file system of a test's own over a folder, which the test can fill and empty again. It is in a
// mount namespace of the thread that makes it and of the processes that this one starts from then
// on, so that nothing is left, however they end.
class SmallDisk {
 public:
  SmallDisk() = default;
  // `size` as tmpfs takes it. Where it cannot be made (it takes root), the folder is what it was.
  SmallDisk(const fs::path& folder, const std::string& size) {
    const std::string options = "size=" + size + ",mode=0700";
    if (::unshare(CLONE_NEWNS) == 0 &&
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount("none", folder.c_str(), "tmpfs", 0, options.c_str()) == 0)
      folder_ = folder;
  }
  SmallDisk(SmallDisk&& other) noexcept : folder_(std::exchange(other.folder_, {})) {}
  SmallDisk& operator=(SmallDisk&& other) noexcept {
    std::swap(folder_, other.folder_);
    return *this;
  }
  ~SmallDisk() { give_back(); }

  bool made() const { return !folder_.empty(); }

  // Leaves no room; false where it was not made.
  bool fill() const {
    if (!made()) return false;
    const Descriptor fd(::open(filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const std::string block(4096, 'x');
    while (fd && ::write(fd.get(), block.data(), block.size()) > 0) continue;
    return static_cast<bool>(fd);
  }
  void empty() const {
    std::error_code ignored;
    if (made()) fs::remove(filler(), ignored);
  }
  // As where it is not mounted: its folder is empty until show(). What is open goes on. False where
  // it was not made.
  bool hide() const {
    return made() && ::mount("none", folder_.c_str(), "tmpfs", 0, "mode=0700") == 0;
  }
  // Whether nobody has made anything in its place meanwhile.
  bool show() const {
    std::error_code error;
    const bool untouched = fs::is_empty(folder_, error);
    return ::umount2(folder_.c_str(), MNT_DETACH) == 0 && untouched;
  }
  // Or not. False where it was not made, or a file is open for writing.
  bool let_be_written(bool may) const {
    const unsigned long flags = MS_REMOUNT | (may ? 0 : MS_RDONLY);
    return made() && ::mount("none", folder_.c_str(), nullptr, flags, nullptr) == 0;
  }
  // What lay in the folder before is there again.
  void give_back() {
    if (made()) ::umount2(folder_.c_str(), MNT_DETACH);
    folder_.clear();
  }

 private:
  fs::path filler() const { return folder_ / "filler"; }

  fs::path folder_;  // empty: it was not made
};

}  // namespace ductile::server::testing
