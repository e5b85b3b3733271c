#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/cluster/keeper_log_impl.h"

namespace ductile::cluster {
namespace {

constexpr std::chrono::milliseconds kLookAtLog{1000};
constexpr size_t kBlockOfLog = size_t{64} << 10;
// After the end what a pipe can hold is read, and no more: a process that could not be killed (of
// another user) may go on for ever.
constexpr size_t kMostAfterEnd = size_t{1} << 20;

}  // namespace

CommandLog::CommandLog(fs::path file, int64_t most) : file_(std::move(file)), most_(most) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  output_ = Descriptor(ends[0]);
  input_ = Descriptor(ends[1]);
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  stop_ = opened(::eventfd(0, EFD_CLOEXEC), "eventfd");
  look();
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error&) {  // no more threads: then the command has the file itself
    input_ = opened(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0), "fcntl");
  }
}

CommandLog::~CommandLog() {
  input_.close();
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) continue;
  thread_.join();
}

void CommandLog::serve() {
  std::vector<char> block(kBlockOfLog);
  bool stopping = false, open = true;
  size_t left = kMostAfterEnd;
  while (true) {
    const ssize_t n = open ? ::read(output_.get(), block.data(), block.size()) : -1;
    if (n > 0) {
      append({block.data(), static_cast<size_t>(n)});
      if (!stopping) continue;
      left -= std::min(left, static_cast<size_t>(n));
      if (left > 0) continue;
    } else if (n < 0 && open && errno == EINTR) {
      continue;
    }
    if (n == 0) open = false;  // nobody can say anything any more
    if (stopping) break;
    pollfd looks[] = {{open ? output_.get() : -1, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(looks, 2, static_cast<int>(kLookAtLog.count())) == 0) look();
    stopping = (looks[1].revents & POLLIN) != 0;
  }
  tell_at_ = {};
  tell_loss();
}

void CommandLog::append(std::string_view text) {
  if (std::chrono::steady_clock::now() >= looked_ + kLookAtLog) look();
  if (size_ > 0 && size_ + static_cast<int64_t>(text.size()) > most_) begin_anew();
  tell_loss();
  put(text);
}

// Whether the file is still the one that is written.
void CommandLog::look() {
  looked_ = std::chrono::steady_clock::now();
  struct stat named {};
  struct stat held {};
  const bool seen = ::stat(file_.c_str(), &named) == 0;
  const bool unknown = !seen && errno != ENOENT && errno != ENOTDIR;  // it cannot be seen now
  if (open_ && unknown) return;
  const bool same = open_ && seen && ::fstat(STDOUT_FILENO, &held) == 0 &&
                    held.st_dev == named.st_dev && held.st_ino == named.st_ino;
  if (!same) return reopen();
  size_ = held.st_size;
}

void CommandLog::begin_anew() {
  const fs::path before = file_.string() + ".1";
  const int64_t had = size_;
  if (std::rename(file_.c_str(), before.c_str()) != 0) return;  // tried again with the next words
  reopen();
  put(
      fmt::format("ductile: this log had {} bytes, which are in {} now; what was said before those "
                  "is removed\n",
                  had, before.filename().string()));
}

// Nothing else than a file is waited for or written, and what was open is let go in any case.
void CommandLog::reopen() {
  Descriptor log(
      ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0644));
  struct stat is {};
  open_ = log && ::fstat(log.get(), &is) == 0 && S_ISREG(is.st_mode);
  size_ = open_ ? is.st_size : 0;
  if (!open_) log = Descriptor(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!log) return;
  ::dup2(log.get(), STDOUT_FILENO);
  ::dup2(log.get(), STDERR_FILENO);
}

void CommandLog::put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = open_ ? ::write(STDOUT_FILENO, text.data(), text.size()) : -1;
    if (n < 0 && open_ && errno == EINTR) continue;
    if (n <= 0) break;
    size_ += n;
    text.remove_prefix(static_cast<size_t>(n));
  }
  lost_ += static_cast<int64_t>(text.size());
}

// Where there is too little room even for that, it is tried again only after a while: the
// beginnings of it would fill the log.
void CommandLog::tell_loss() {
  const auto now = std::chrono::steady_clock::now();
  if (lost_ == 0 || !open_ || now < tell_at_) return;
  tell_at_ = now + kLookAtLog;
  const std::string note = fmt::format(
      "\nductile: {} bytes of what was said here are lost, since the log could not be written: its "
      "disk was full, or its folder was gone\n",
      lost_);
  const ssize_t n = ::write(STDOUT_FILENO, note.data(), note.size());
  if (n > 0) size_ += n;
  if (n == static_cast<ssize_t>(note.size())) lost_ = 0;
}

}  // namespace ductile::cluster
