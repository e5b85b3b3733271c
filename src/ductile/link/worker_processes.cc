#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/link/worker_processes.h"

namespace ductile::link {
namespace {

constexpr int kAskedOfKeeper = 0x6b656570;

fs::path folder_of(pid_t pid) { return fs::path("/proc") / std::to_string(pid); }

// A process that is gone says ENOENT or ESRCH. Anything else, such as no free descriptor, says
// nothing of it: to take that for its end would be to replace a worker that is at work.
void check_gone(pid_t pid, int error) {
  if (error != ENOENT && error != ESRCH)
    fail_errno(fmt::format("process {} cannot be looked at", pid), error);
}

bool is_ours(pid_t pid) {
  struct stat info {};
  if (::stat(folder_of(pid).c_str(), &info) == 0) return info.st_uid == ::geteuid();
  check_gone(pid, errno);
  return false;
}

// Its arguments, each with a zero byte before and after it; empty where the process is gone.
std::string arguments_of(pid_t pid) {
  try {
    return read_file(folder_of(pid) / "cmdline");
  } catch (const Error&) {
    struct stat info {};
    if (::stat(folder_of(pid).c_str(), &info) == 0) throw;
    check_gone(pid, errno);
    return "";
  }
}

bool has(std::string_view arguments, std::string_view key, std::string_view value) {
  std::string part(1, '\0');
  part.append(key).append(1, '\0').append(value).append(1, '\0');
  return arguments.find(part) != std::string_view::npos;
}

bool is_script(const fs::path& program) {
  char first[2] = {};
  std::ifstream(program, std::ios::binary).read(first, sizeof first);
  return first[0] == '#' && first[1] == '!';
}

// By name: the program may have been replaced, or moved, since the process began.
bool runs(pid_t pid, const fs::path& program) {
  constexpr std::string_view kDeleted = " (deleted)";
  std::error_code error;
  std::string name = fs::read_symlink(folder_of(pid) / "exe", error).filename().string();
  if (error) {
    check_gone(pid, error.value());
    return false;
  }
  if (name.ends_with(kDeleted)) name.resize(name.size() - kDeleted.size());
  const fs::path real = fs::canonical(program, error);
  return name == (error ? program : real).filename().string() || is_script(program);
}

}  // namespace

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  std::error_code error;
  for (auto it = fs::directory_iterator("/proc", error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    pid_t pid = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (failed == std::errc() && end == name.data() + name.size()) pids.push_back(pid);
  }
  if (error) fail_errno("/proc", error.value());
  return pids;
}

std::optional<ProcessState> state_of(pid_t pid) {
  try {
    const std::string stat = read_file(folder_of(pid) / "stat");
    const size_t end = stat.rfind(") ");  // of its name, which may hold anything
    if (end == std::string::npos || stat.size() < end + 5) return std::nullopt;
    return ProcessState{static_cast<pid_t>(std::strtol(stat.c_str() + end + 4, nullptr, 10)),
                        stat[end + 2]};
  } catch (const Error&) {
    return std::nullopt;
  }
}

namespace {

bool has_arguments_of(pid_t pid, const std::string& run, control::WorkerId worker,
                      const std::string& host) {
  if (!is_ours(pid)) return false;
  const std::string arguments = arguments_of(pid);
  return has(arguments, "--run", run) && has(arguments, "--worker", std::to_string(worker)) &&
         (host.empty() || has(arguments, "--host", host));
}

}  // namespace

bool is_worker(pid_t pid, const fs::path& program, const std::string& run, control::WorkerId worker,
               const std::string& host) {
  return has_arguments_of(pid, run, worker, host) && runs(pid, program);
}

bool runs_worker(const fs::path& program, const std::string& run, control::WorkerId worker) {
  return std::ranges::any_of(
      all_processes(), [&](const pid_t pid) { return is_worker(pid, program, run, worker, ""); });
}

bool end_worker(const fs::path& program, const std::string& run, control::WorkerId worker,
                int signal) {
  constexpr int kPatience = 5000;  // ms, for the kernel to end a process
  bool gone = true;
  for (const pid_t pid : all_processes()) {
    if (!has_arguments_of(pid, run, worker, "")) continue;
    const Descriptor fd(::pidfd_open(pid, 0));
    if (!fd && errno == ESRCH) continue;
    // Looked at once more: the number could have gone to another process in between.
    if (!fd || program.empty() || !is_worker(pid, program, run, worker, "")) {
      gone = gone && !has_arguments_of(pid, run, worker, "");
      continue;
    }
    ::pidfd_send_signal(fd.get(), signal, nullptr, 0);
    ::pidfd_send_signal(fd.get(), SIGCONT, nullptr, 0);
    pollfd end{fd.get(), POLLIN, 0};
    gone = ::poll(&end, 1, signal == SIGKILL ? kPatience : 0) > 0 && gone;
  }
  return gone;
}

namespace {

// Behind `key` in a file of /proc whose lines are "KEY:\tNUMBER"; 0: there is none.
uint64_t number_in(const fs::path& file, const std::string& key, int base) {
  try {
    const std::string text = "\n" + read_file(file), line = "\n" + key + ":";
    const size_t at = text.find(line);
    if (at == std::string::npos) return 0;
    return std::strtoull(text.c_str() + at + line.size(), nullptr, base);
  } catch (const Error&) {
    return 0;
  }
}

// Of a process held by a descriptor. A wrong answer, as of another process that has its number by
// now, harms nobody: the signal goes by the descriptor, and is sent again.
bool blocks(int process, int signal) {
  const uint64_t pid =
      number_in(fs::path("/proc/self/fdinfo") / std::to_string(process), "Pid", 10);
  const uint64_t blocked =
      number_in(fs::path("/proc") / std::to_string(pid) / "status", "SigBlk", 16);
  return (blocked >> (signal - 1) & 1) != 0;
}

}  // namespace

void ask_keeper_to_end(int process) {
  siginfo_t told{};
  // A keeper of an earlier version, which may outlive its service's, knows the word with SIGTERM
  // alone, and hears nothing of the other signal.
  told.si_signo = blocks(process, kAskKeeper) ? kAskKeeper : SIGTERM;
  told.si_code = SI_QUEUE;
  told.si_pid = ::getpid();
  told.si_uid = ::getuid();
  told.si_value.sival_int = kAskedOfKeeper;
  // A kernel that takes no words with it, as an emulated one may, sends it without.
  if (::pidfd_send_signal(process, told.si_signo, &told, 0) != 0 && errno != ESRCH)
    ::pidfd_send_signal(process, SIGTERM, nullptr, 0);
  ::pidfd_send_signal(process, SIGCONT, nullptr, 0);
}

bool is_asked_of_keeper(const signalfd_siginfo& signal) {
  const bool has_word = signal.ssi_code == SI_QUEUE && signal.ssi_int == kAskedOfKeeper;
  if (signal.ssi_signo == SIGTERM) return has_word;
  // Where too many signals wait already, the kernel leaves out the word and who sent it.
  const bool lost_word = signal.ssi_code == SI_USER && signal.ssi_pid == 0;
  return signal.ssi_signo == kAskKeeper && (has_word || lost_word);
}

std::vector<pid_t> workers_of(const fs::path& run) {
  std::vector<pid_t> found;
  for (const pid_t pid : all_processes()) {
    if (!is_ours(pid)) continue;
    const std::string arguments = arguments_of(pid);
    constexpr std::string_view kWorker("\0--worker\0", 10);
    if (has(arguments, "--run", run.string()) && arguments.find(kWorker) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

namespace {

// What follows `key` among the arguments; empty: it is not there.
std::string_view after(std::string_view arguments, std::string_view key) {
  std::string part(1, '\0');
  part.append(key).append(1, '\0');
  const size_t at = arguments.find(part);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = arguments.substr(at + part.size());
  return rest.substr(0, rest.find('\0'));
}

}  // namespace

std::vector<FoundWorker> workers_below(const fs::path& folder, const std::string& host) {
  std::vector<FoundWorker> found;
  const std::string inside = folder.string() + "/";
  for (const pid_t pid : all_processes()) {
    if (!is_ours(pid)) continue;
    const std::string arguments = arguments_of(pid);
    const std::string_view run = after(arguments, "--run"), id = after(arguments, "--worker");
    if (!has(arguments, "--host", host) || (run != folder.string() && !run.starts_with(inside)))
      continue;
    FoundWorker worker{std::string(run), 0};
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), worker.worker);
    if (error == std::errc() && !id.empty() && end == id.data() + id.size())
      found.push_back(std::move(worker));
  }
  return found;
}

}  // namespace ductile::link
