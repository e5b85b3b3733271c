#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/server/worker_processes_impl.h"

namespace ductile::server {
namespace {

fs::path folder_of(pid_t pid) { return fs::path("/proc") / std::to_string(pid); }

bool is_ours(pid_t pid) {
  struct stat info {};
  return ::stat(folder_of(pid).c_str(), &info) == 0 && info.st_uid == ::geteuid();
}

// Its arguments, each with a zero byte before and after it; empty where the process is gone.
std::string arguments_of(pid_t pid) {
  try {
    return read_file(folder_of(pid) / "cmdline");
  } catch (const Error&) {
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
  if (error) return false;
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
  return pids;
}

bool is_worker(pid_t pid, const fs::path& program, const std::string& run, control::WorkerId worker,
               const std::string& host) {
  if (!is_ours(pid)) return false;
  const std::string arguments = arguments_of(pid);
  return has(arguments, "--run", run) && has(arguments, "--worker", std::to_string(worker)) &&
         (host.empty() || has(arguments, "--host", host)) && runs(pid, program);
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

}  // namespace ductile::server
