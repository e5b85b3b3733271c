#include "ductile/cli/worker_process.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/machine.h"

extern char** environ;

namespace ductile::cli {
namespace {

// A file descriptor with an owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// The signals this process reads from a descriptor while a worker runs; as before at the end.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGTSTP, SIGCONT}) sigaddset(&held_, s);
    if (sigprocmask(SIG_BLOCK, &held_, &before_) != 0) fail_errno("sigprocmask", errno);
    fd_ = Descriptor(signalfd(-1, &held_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (fd_.get() < 0) fail_errno("signalfd", errno);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() {
    fd_.close();
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t held_{}, before_{};
  Descriptor fd_;
};

std::vector<std::string> merged_environment(const WorkerLaunch& launch) {
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

std::vector<char*> c_strings(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// fork and exec; whether exec worked comes back through a pipe that exec closes.
pid_t spawn(const WorkerLaunch& launch, int progress, const sigset_t& mask) {
  std::vector<std::string> arguments = {launch.program.string()};
  arguments.insert(arguments.end(), launch.arguments.begin(), launch.arguments.end());
  arguments.insert(arguments.end(), {"--progress-fd", std::to_string(progress)});
  std::vector<std::string> environment = merged_environment(launch);
  const std::vector<char*> argv = c_strings(arguments);
  const std::vector<char*> envp = c_strings(environment);

  Descriptor log(open(launch.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.get() < 0) fail_errno(launch.log.string(), errno);
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
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);  // we died before the line above
    dup2(null.get(), STDIN_FILENO);
    dup2(log.get(), STDOUT_FILENO);
    dup2(log.get(), STDERR_FILENO);
    fcntl(progress, F_SETFD, 0);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
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

// Cuts what comes through the pipe into lines.
class LineReader {
 public:
  // False at the end of the stream.
  bool read(int fd, const std::function<void(std::string_view)>& on_line) {
    char block[4096];
    while (true) {
      const ssize_t n = ::read(fd, block, sizeof block);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return true;  // nothing now
      if (n == 0) return false;
      pending_.append(block, static_cast<size_t>(n));
      size_t begin = 0;
      for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
        on_line(std::string_view(pending_).substr(begin, end - begin));
      }
      pending_.erase(0, begin);
    }
  }

 private:
  std::string pending_;
};

// Kills and reaps the worker if an exception leaves run_worker.
class WorkerGuard {
 public:
  explicit WorkerGuard(pid_t pid) : pid_(pid) {}
  WorkerGuard(const WorkerGuard&) = delete;
  WorkerGuard& operator=(const WorkerGuard&) = delete;
  ~WorkerGuard() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void release() { pid_ = -1; }

 private:
  pid_t pid_;
};

void handle_signal(int signal_number, pid_t worker, WorkerEnd& end) {
  switch (signal_number) {
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
      kill(worker, end.interrupted ? SIGKILL : signal_number == SIGHUP ? SIGTERM : signal_number);
      end.interrupted = true;
      break;
    case SIGTSTP:
      kill(worker, SIGSTOP);
      raise(SIGSTOP);  // returns when we are continued
      kill(worker, SIGCONT);
      break;
    case SIGCONT:
      kill(worker, SIGCONT);
      break;
    default:
      break;
  }
}

}  // namespace

fs::path find_worker() {
  const char* named = std::getenv("DUCTILE_WORKER");
  if (named != nullptr && *named != '\0') {
    if (access(named, X_OK) == 0) return fs::absolute(named);
    fail(ErrorCode::not_found, "DUCTILE_WORKER = {} is not a program that can be run", named);
  }
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  std::vector<fs::path> places;
  if (!self.empty()) places.push_back(self.parent_path() / "ductile-worker");
  std::string_view path = std::getenv("PATH") ? std::getenv("PATH") : "";
  while (!path.empty()) {
    const size_t colon = path.find(':');
    if (colon != 0) places.push_back(fs::path(path.substr(0, colon)) / "ductile-worker");
    path = colon == std::string_view::npos ? "" : path.substr(colon + 1);
  }
  for (const fs::path& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place;
  }
  fail(ErrorCode::not_found,
       "ductile-worker is neither beside {} nor on PATH; build it (scripts/demo does) or set "
       "DUCTILE_WORKER",
       self.empty() ? "this program" : self.string());
}

std::vector<std::pair<std::string, std::string>> worker_environment(int64_t threads) {
  std::vector<std::pair<std::string, std::string>> environment;
  if (std::getenv("OMP_WAIT_POLICY") == nullptr)
    environment.emplace_back("OMP_WAIT_POLICY", "PASSIVE");
  if (threads > 0) {
    environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
  } else if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    environment.emplace_back("OMP_NUM_THREADS", std::to_string(cpu_share().usable()));
  }
  return environment;
}

WorkerEnd run_worker(const WorkerLaunch& launch,
                     const std::function<void(std::string_view)>& on_line) {
  HeldSignals signals;
  int progress_pipe[2];
  if (pipe2(progress_pipe, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  Descriptor progress(progress_pipe[0]), worker_side(progress_pipe[1]);
  fcntl(progress.get(), F_SETFL, O_NONBLOCK);

  const pid_t worker = spawn(launch, worker_side.get(), signals.before());
  WorkerGuard guard(worker);
  worker_side.close();

  WorkerEnd end;
  LineReader lines;
  bool open = true;
  while (true) {
    pollfd watched[2] = {{signals.fd(), POLLIN, 0}, {open ? progress.get() : -1, POLLIN, 0}};
    if (poll(watched, 2, 250) < 0 && errno != EINTR) fail_errno("poll", errno);
    if (open) open = lines.read(progress.get(), on_line);
    signalfd_siginfo info;
    while (read(signals.fd(), &info, sizeof info) == sizeof info) {
      handle_signal(static_cast<int>(info.ssi_signo), worker, end);
    }
    int status = 0;
    if (waitpid(worker, &status, WNOHANG) == worker) {
      guard.release();
      if (open) lines.read(progress.get(), on_line);  // what it wrote just before it ended
      if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
      return end;
    }
  }
}

std::string log_tail(const fs::path& log, int lines) {
  std::ifstream in(log, std::ios::binary);
  if (!in) return "";
  in.seekg(0, std::ios::end);
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - 8192));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int i = 0; i < lines && begin != std::string::npos && begin > 0; ++i) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

}  // namespace ductile::cli
