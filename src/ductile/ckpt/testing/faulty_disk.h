#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/rng.h"
#include "ductile/ckpt/disk.h"
#include "ductile/ckpt/testing/training_state.h"

// Disks that fail, for tests.
namespace ductile::ckpt::testing {

// The real disk, until operation number `at`: `strike` then gives the result, and may not return.
class FaultyDisk : public Disk {
 public:
  int64_t at = INT64_MAX;
  int64_t times = 1;            // how many operations in a row are struck
  std::function<int()> strike;  // minus an errno
  int64_t operations = 0;

  int open_new(const fs::path& p) override { return struck() ? strike() : real_disk().open_new(p); }
  int write(int fd, std::span<const std::byte> bytes) override {
    if (!struck()) return real_disk().write(fd, bytes);
    real_disk().write(fd, bytes.first(bytes.size() / 2));
    return strike();
  }
  int sync(int fd) override { return struck() ? strike() : real_disk().sync(fd); }
  int rename(const fs::path& a, const fs::path& b) override {
    return struck() ? strike() : real_disk().rename(a, b);
  }
  int remove(const fs::path& p) override { return struck() ? strike() : real_disk().remove(p); }
  int make_folder(const fs::path& p) override {
    return struck() ? strike() : real_disk().make_folder(p);
  }
  int sync_folder(const fs::path& p) override {
    return struck() ? strike() : real_disk().sync_folder(p);
  }
  int64_t free_bytes(const fs::path& p) override { return real_disk().free_bytes(p); }

 private:
  bool struck() {
    const int64_t n = ++operations;
    return n >= at && n - at < times;
  }
};

// Runs f in a child process and waits. Returns its wait status.
inline int in_child(const std::function<void()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      f();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// A disk that forgets: what was not fsynced when power fails may be there, may be old, may be torn.
// It works on the real one and keeps what is needed to take back what was not made durable.
class ForgetfulDisk : public Disk {
 public:
  ForgetfulDisk(int64_t fails_at, uint64_t seed) : fails_at_(fails_at), rng_(seed) {}

  int open_new(const fs::path& p) override {
    if (dead()) return -EIO;
    const int fd = real_disk().open_new(p);
    names_[fd] = p;
    unsynced_.push_back(p);
    return fd;
  }
  int write(int fd, std::span<const std::byte> bytes) override {
    return dead() ? -EIO : real_disk().write(fd, bytes);
  }
  int sync(int fd) override {
    if (dead()) return -EIO;
    std::erase(unsynced_, names_[fd]);
    return real_disk().sync(fd);
  }
  int rename(const fs::path& from, const fs::path& to) override {
    if (dead()) return -EIO;
    const fs::path old = set_aside(to);
    pending_.push_back({to.parent_path(), [from, to, old] {
                          fs::rename(to, from);
                          if (!old.empty()) fs::copy_file(old, to);
                        }});
    for (fs::path& p : unsynced_) {
      if (p == from) p = to;
    }
    return real_disk().rename(from, to);
  }
  int remove(const fs::path& p) override {
    if (dead()) return -EIO;
    const fs::path old = set_aside(p);
    if (!old.empty()) pending_.push_back({p.parent_path(), [p, old] { fs::copy_file(old, p); }});
    return real_disk().remove(p);
  }
  int make_folder(const fs::path& p) override {
    if (dead()) return -EIO;
    if (!fs::exists(p)) pending_.push_back({p.parent_path(), [p] { fs::remove_all(p); }});
    return real_disk().make_folder(p);
  }
  int sync_folder(const fs::path& p) override {
    if (dead()) return -EIO;
    std::erase_if(pending_, [&](const Pending& op) { return op.folder == p; });
    return 0;
  }
  int64_t free_bytes(const fs::path& p) override { return real_disk().free_bytes(p); }

  bool died() const { return operations_ >= fails_at_; }

  // The machine is back: a random part of what was not durable is gone.
  void forget() {
    for (const fs::path& p : unsynced_) {
      std::error_code error;
      const auto size = static_cast<uint32_t>(fs::file_size(p, error));
      if (!error && rng_.below(3) > 0) fs::resize_file(p, rng_.below(size + 1));
    }
    for (auto op = pending_.rbegin(); op != pending_.rend(); ++op) {
      if (rng_.below(2) == 0) continue;
      try {
        op->take_back();
      } catch (
          const fs::filesystem_error&) {  // its folder was taken back, or a later name is there
      }
    }
  }

 private:
  struct Pending {
    fs::path folder;  // whose fsync makes it durable
    std::function<void()> take_back;
  };

  bool dead() { return ++operations_ >= fails_at_; }

  fs::path set_aside(const fs::path& p) {
    if (!fs::exists(p)) return {};
    const fs::path copy = aside_.path() / std::to_string(pending_.size() + 1000 * ++copies_);
    fs::copy_file(p, copy);
    return copy;
  }

  int64_t fails_at_;
  Rng rng_;
  FastFolder aside_;
  int64_t operations_ = 0;
  size_t copies_ = 0;
  std::map<int, fs::path> names_;
  std::vector<fs::path> unsynced_;
  std::vector<Pending> pending_;
};

}  // namespace ductile::ckpt::testing
