#include "ductile/process/spawn.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/process/file_limit.h"

extern char** environ;

namespace ductile::process {
namespace {

// As the limit itself, it belongs to the process.
std::optional<rlimit> given_file_limit;

std::vector<char*> c_strings(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::vector<std::string> environment_of(const SpawnOptions& launch) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(launch.environment.begin(), launch.environment.end(),
                                      [&](const auto& pair) { return pair.first == name; });
    if (!replaced) merged.emplace_back(text);
  }
  for (const auto& [name, value] : launch.environment) merged.push_back(name + "=" + value);
  return merged;
}

Descriptor open_log(const SpawnOptions& launch) {
  const fs::path file = launch.log.empty() ? fs::path("/dev/null") : launch.log;
  Descriptor log(open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.get() < 0) fail_errno(file.string(), errno);
  return log;
}

// Whether exec worked comes back through a pipe that exec closes.
pid_t spawn(const SpawnOptions& launch) {
  std::vector<std::string> arguments = {launch.program.string()};
  arguments.insert(arguments.end(), launch.arguments.begin(), launch.arguments.end());
  if (launch.progress_fd >= 0)
    arguments.insert(arguments.end(), {"--progress-fd", std::to_string(launch.progress_fd)});
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : launch.cpus) CPU_SET(static_cast<size_t>(cpu), &cpus);
  std::vector<std::string> environment = environment_of(launch);
  const std::vector<char*> argv = c_strings(arguments);
  const std::vector<char*> envp = c_strings(environment);

  const Descriptor log = open_log(launch);
  Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  int status_pipe[2];
  if (pipe2(status_pipe, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  Descriptor status_read(status_pipe[0]), status_write(status_pipe[1]);

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail_errno("fork", errno);
  if (child == 0) {
    // Only async-signal-safe calls from here to exec.
    setpgid(0, 0);  // a terminal's Ctrl-C reaches the worker through us, once
    if (launch.dies_with_parent || launch.begins_with_parent) {
      prctl(PR_SET_PDEATHSIG, launch.begins_with_parent ? SIGKILL : SIGTERM);
      if (getppid() != parent) _exit(127);  // we died before the line above
    }
    if (!launch.cpus.empty()) sched_setaffinity(0, sizeof cpus, &cpus);
    dup2(launch.input_fd >= 0 ? launch.input_fd : null.get(), STDIN_FILENO);
    dup2(launch.output_fd >= 0 ? launch.output_fd : log.get(), STDOUT_FILENO);
    dup2(launch.error_fd >= 0 ? launch.error_fd : log.get(), STDERR_FILENO);
    if (launch.progress_fd >= 0) fcntl(launch.progress_fd, F_SETFD, 0);
    if (given_file_limit) setrlimit(RLIMIT_NOFILE, &*given_file_limit);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, launch.mask != nullptr ? launch.mask : &none, nullptr);
    execve(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = write(status_write.get(), &error, sizeof error);
    _exit(127);
  }
  status_write.close();
  int error = 0;
  ssize_t n;
  do {
    n = read(status_read.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof error) {
    waitpid(child, nullptr, 0);
    fail_errno(launch.program.string(), error);
  }
  return child;
}

void forget_parent() { prctl(PR_SET_PDEATHSIG, 0); }

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const rlimit before = limit;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && !given_file_limit) given_file_limit = before;
}

}  // namespace ductile::process
