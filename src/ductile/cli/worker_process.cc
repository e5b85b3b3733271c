#include "ductile/cli/worker_process.h"

#include <cerrno>
#include <chrono>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/cli/held_signals.h"
#include "ductile/page/terminal.h"
#include "ductile/process/line_reader.h"
#include "ductile/process/spawn.h"
#include "ductile/process/worker.h"
#include "ductile/run/progress.h"

namespace ductile::cli {
namespace {

using process::LineReader;

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

void handle_signal(int signal_number, pid_t worker, EndRequests& requests, WorkerEnd& end) {
  switch (signal_number) {
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
      if (!requests.any()) kill(worker, signal_number == SIGHUP ? SIGTERM : signal_number);
      if (requests.repeats()) kill(worker, SIGKILL);
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

constexpr std::chrono::seconds kLoading{90};  // for a zygote to load its program

// The worker, as the zygote forks it. Nothing where it is to be started: no zygote has it, or a
// signal came (`interrupted`) before there was any.
std::optional<pid_t> fork_worker(process::Zygote& zygote, process::SpawnOptions options,
                                 const HeldSignals& signals, bool& interrupted) {
  options.dies_with_parent = false;  // it sees to that by itself
  const Descriptor asked = zygote.ask(options);
  const auto deadline = std::chrono::steady_clock::now() + kLoading;
  while (asked && !interrupted && std::chrono::steady_clock::now() < deadline) {
    pollfd watched[2] = {{signals.fd(), POLLIN, 0}, {asked.get(), POLLIN, 0}};
    if (poll(watched, 2, 250) < 0 && errno != EINTR) fail_errno("poll", errno);
    signalfd_siginfo info;
    while (read(signals.fd(), &info, sizeof info) == sizeof info) {
      const auto number = static_cast<int>(info.ssi_signo);
      interrupted |= number == SIGINT || number == SIGTERM || number == SIGHUP;
      if (number == SIGTSTP) raise(SIGSTOP);  // as in handle_signal()
    }
    const process::ZygoteAnswer answer = process::answer_of_zygote(asked.get());
    if (answer.none || interrupted) break;  // one that waits to be let go ends with the socket
    if (!answer.worker) continue;
    process::let_go(asked.get());
    return answer.worker;
  }
  return std::nullopt;
}

}  // namespace

WorkerEnd run_worker(const WorkerLaunch& launch,
                     const std::function<void(std::string_view)>& on_line) {
  HeldSignals signals;
  int progress_pipe[2];
  if (pipe2(progress_pipe, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  Descriptor progress(progress_pipe[0]), worker_side(progress_pipe[1]);
  fcntl(progress.get(), F_SETFL, O_NONBLOCK);

  const sigset_t mask = signals.before();
  process::SpawnOptions options;
  options.program = launch.program;
  options.arguments = launch.arguments;
  options.environment = launch.environment;
  options.log = launch.log;
  options.progress_fd = worker_side.get();
  options.mask = &mask;
  WorkerEnd end;
  std::optional<pid_t> forked;
  if (launch.zygote) forked = fork_worker(*launch.zygote, options, signals, end.interrupted);
  if (!forked && end.interrupted) return end;
  const pid_t worker = forked ? *forked : process::spawn(options);
  WorkerGuard guard(worker);
  worker_side.close();

  LineReader lines;
  EndRequests requests;
  bool open = true;
  while (true) {
    pollfd watched[2] = {{signals.fd(), POLLIN, 0}, {open ? progress.get() : -1, POLLIN, 0}};
    if (poll(watched, 2, 250) < 0 && errno != EINTR) fail_errno("poll", errno);
    if (open) open = lines.read(progress.get(), on_line);
    signalfd_siginfo info;
    while (read(signals.fd(), &info, sizeof info) == sizeof info) {
      handle_signal(static_cast<int>(info.ssi_signo), worker, requests, end);
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

namespace {

constexpr int kToldLines = 10;

// The last lines that a worker printed, begun by a line end; empty: there are none.
std::string last_words(const fs::path& printed) {
  const std::string tail = process::log_tail(printed, kToldLines);
  return tail.empty() ? "" : ":\n" + page::without_controls(tail);
}

std::string command_of(const WorkerLaunch& launch) {
  std::string out = page::shell_word(launch.program.string());
  for (const std::string& argument : launch.arguments) out += " " + page::shell_word(argument);
  return out;
}

}  // namespace

std::optional<nlohmann::json> ask_worker(const WorkerQuestion& question) {
  const UnnamedFile printed;  // of interest only where the worker fails
  WorkerLaunch launch;
  launch.program = question.program.empty() ? process::find_worker() : question.program;
  launch.arguments = question.arguments;
  launch.environment = process::worker_environment(question.threads);
  launch.log = printed.path();
  launch.zygote = question.zygote;
  std::optional<nlohmann::json> answer;
  std::optional<run::Failed> failed;
  const WorkerEnd end = run_worker(launch, [&](std::string_view line) {
    const auto known = run::decode(line);
    if (!known) return;
    if (const auto* row = std::get_if<run::Row>(&*known); row != nullptr && question.on_row)
      question.on_row(row->values);
    if (const auto* done = std::get_if<run::Done>(&*known)) answer = done->figures;
    if (const auto* f = std::get_if<run::Failed>(&*known)) failed = *f;
  });
  if (end.interrupted) return std::nullopt;
  if (failed) throw Error(failed->code, failed->text);
  if (!answer) {
    const std::string how = end.signal != 0 ? fmt::format("was ended by signal {} ({})", end.signal,
                                                          strsignal(end.signal))
                                            : fmt::format("ended with exit code {}", end.exit_code);
    const std::string told = last_words(printed.path());
    fail(ErrorCode::unavailable, "{} {} and gave no answer{}", command_of(launch), how,
         told.empty() ? ", nor any word of why" : told);
  }
  return answer;
}

}  // namespace ductile::cli
