#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/cluster/command_impl.h"
#include "ductile/cluster/keeper_log_impl.h"
#include "ductile/cluster/runs_folder_impl.h"
#include "ductile/link/boot_clock.h"
#include "ductile/link/worker_processes.h"
#include "ductile/net/secret.h"
#include "ductile/run/lock.h"
#include "ductile/run/runs_mark.h"
#include "ductile/server/gpus.h"

extern char** environ;

namespace ductile::cluster {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Kind = AttemptEnd::Kind;

constexpr milliseconds kAgain{5};
constexpr milliseconds kLookout{500};
constexpr std::string_view kFence = "DUCTILE_FENCE";

fs::path process_folder(pid_t pid) { return fs::path("/proc") / std::to_string(pid); }

// What /proc says of a process; empty where it is gone or belongs to another user.
std::string text_of(pid_t pid, const char* file) {
  try {
    return read_file(process_folder(pid) / file);
  } catch (const Error&) {
    return "";
  }
}

bool has_fence(pid_t pid, const std::string& fence) {
  std::string environment(1, '\0');
  environment += text_of(pid, "environ");
  std::string entry(1, '\0');
  entry.append(kFence).append("=").append(fence).append(1, '\0');
  return environment.find(entry) != std::string::npos;
}

// The number of its parent; 0: it is gone, or has ended and waits to be reaped.
pid_t parent_of(pid_t pid) {
  const auto state = link::state_of(pid);
  return state && state->letter != 'Z' && state->letter != 'X' ? state->parent : 0;
}

// Sends SIGKILL if `is_it` still holds once the process is held by a descriptor: its number could
// have gone to another one. False: it may not be sent one.
template <class Check>
bool kill_if(pid_t pid, const Check& is_it) {
  const Descriptor fd(::pidfd_open(pid, 0));
  if (!fd || !is_it()) return true;
  return ::pidfd_send_signal(fd.get(), SIGKILL, nullptr, 0) == 0 || errno == ESRCH;
}

// All that came of this process, however it was detached: it is their subreaper.
std::set<pid_t> descendants() {
  std::map<pid_t, pid_t> parents;
  for (const pid_t pid : link::all_processes())
    if (const pid_t parent = parent_of(pid); parent > 0) parents[pid] = parent;
  std::set<pid_t> out = {::getpid()};
  for (bool more = true; more;) {
    more = false;
    for (const auto& [pid, parent] : parents)
      if (out.contains(parent)) more = out.insert(pid).second || more;
  }
  out.erase(::getpid());
  return out;
}

// Its own children, whose numbers stay theirs until they are reaped; whether there were any.
bool kill_children() {
  std::string list;
  try {
    list = read_file(fs::path("/proc/self/task") / std::to_string(::getpid()) / "children");
  } catch (const Error&) {  // a kernel without such lists: all processes are looked at
    return false;
  }
  const char* at = list.c_str();
  bool some = false;
  for (char* end = nullptr; const long pid = std::strtol(at, &end, 10); at = end)
    some = ::kill(static_cast<pid_t>(pid), SIGKILL) == 0 || some;
  return some;
}

// Until none is left but those that may not be killed. Whoever is born meanwhile is in the next
// look, since its parent's death makes it ours.
void end_descendants() {
  constexpr int kQuickLooks = 1000;
  while (true) {
    // One that begets another and ends at once becomes our child, and is gone before a look at all
    // processes is over. This look is quicker.
    int looks = 0;
    do {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
    } while (++looks < kQuickLooks && kill_children());
    const std::set<pid_t> left = descendants();
    bool some = false;
    for (const pid_t pid : left)
      some = kill_if(pid,
                     [&] {
                       const pid_t parent = parent_of(pid);
                       return parent == ::getpid() || left.contains(parent);
                     }) ||
             some;
    // A look at all may miss whoever is born meanwhile. The kernel does not: what there is has an
    // ancestor that is our child.
    const bool none = ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
    if (!some && (none || !left.empty())) return;
    std::this_thread::sleep_for(kAgain);
  }
}

std::vector<std::string> environment_for(const CommandSpec& command, const std::string& fence) {
  std::vector<std::pair<std::string, std::string>> added = command.environment;
  added.emplace_back(kFence, fence);
  // Which GPUs are its own, its node says, and not who submitted it.
  if (std::getenv(server::kGivenGpus) != nullptr)
    std::erase_if(added, [](const auto& pair) { return server::is_gpu_variable(pair.first); });
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::ranges::none_of(added, [&](const auto& pair) { return pair.first == name; }))
      out.emplace_back(text);
  }
  for (const auto& [name, value] : added) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// What could not be done before the command began, with the errno of it.
struct StartFailure {
  int error = 0;
  bool directory = false;
};

// In a session of its own, with `output` as its output. It dies with its keeper.
pid_t start_command(const CommandSpec& command, const std::string& fence, int output,
                    StartFailure& failure) {
  std::vector<std::string> arguments = command.command;
  std::vector<std::string> environment = environment_for(command, fence);
  const std::vector<char*> argv = pointers_to(arguments);
  std::vector<char*> envp = pointers_to(environment);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  const pid_t keeper = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail_errno("fork", errno);
  if (child == 0) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != keeper) ::_exit(127);
    // Also those that whoever started the service had ignored, as a shell does for `ductile up &`.
    for (int signal = 1; signal <= SIGRTMAX; ++signal) ::signal(signal, SIG_DFL);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    StartFailure what;
    if (::chdir(command.directory.c_str()) != 0) {
      what = {errno, true};
    } else {
      environ = envp.data();  // execvp() seeks in its PATH
      ::execvp(argv[0], argv.data());
      what = {errno, false};
    }
    [[maybe_unused]] const ssize_t n = ::write(write_end.get(), &what, sizeof what);
    ::_exit(127);
  }
  write_end.close();
  while (::read(read_end.get(), &failure, sizeof failure) < 0 && errno == EINTR) continue;
  return child;
}

// Looks each second whether the orders are still those of this keeper, on a thread of its own: a
// file system that does not answer holds up nobody else, and is told by the time that passes.
class Lookout {
 public:
  // They were last seen by a look that began at `seen`.
  Lookout(const fs::path& run, const KeeperOrders& orders, control::Time seen)
      : lease_(std::chrono::ceil<control::Time>(duration<double>(orders.lease))),
        seen_(std::make_shared<Seen>()) {
    seen_->last = seen.count();
    if (orders.lease <= 0) return;
    std::thread([run, keeper = orders.keeper, seen = seen_] {
      for (;; std::this_thread::sleep_for(kLookout)) {
        const control::Time before = link::boot_time();
        try {
          const auto now = read_orders(run);
          if (now && now->keeper != keeper) seen->replaced = true;
          if (now) seen->last = before.count();
        } catch (const std::exception&) {  // they cannot be seen now
        }
      }
    }).detach();
  }
  bool watches() const { return lease_.count() > 0; }
  // Why the command must not go on; empty: it may.
  std::string trouble() const {
    if (!watches()) return "";
    if (seen_->replaced) return "its orders were given to another keeper";
    if (link::boot_time() - control::Time(seen_->last) <= lease_) return "";
    return fmt::format("its orders could not be seen for {} s",
                       std::chrono::duration_cast<std::chrono::seconds>(lease_).count());
  }

 private:
  struct Seen {
    std::atomic<control::Time::rep> last{0};  // when the last look that saw them began
    std::atomic<bool> replaced{false};
  };
  const control::Time lease_;
  const std::shared_ptr<Seen> seen_;
};

// Watches one command from its start to its end.
class Keeping {
 public:
  Keeping(const fs::path& run, const KeeperOrders& orders, control::Time seen)
      : command_(orders.command), log_(run / "worker.log"), lookout_(run, orders, seen) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : link::kKeeperSignals) sigaddset(&signals, signal);
    signals_ = opened(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
  }

  AttemptEnd run(const std::string& fence) {
    if (why_ = lookout_.trouble(); !why_.empty()) return {Kind::lost, 0, 0, why_};
    StartFailure failure;
    CommandLog log(log_);  // until nobody is left who could say something
    child_ = start_command(command_, fence, log.input(), failure);
    log.close_input();
    if (failure.error != 0) {
      ::waitpid(child_, nullptr, 0);
      return {Kind::refused, 0, 0,
              failure.directory
                  ? fmt::format("it was to start in {}: {}", command_.directory.string(),
                                std::strerror(failure.error))
                  : fmt::format("{} could not be started: {}", command_.command.front(),
                                std::strerror(failure.error))};
    }
    if (command_.time_limit > 0) limit_ = steady_clock::now() + seconds(command_.time_limit);
    for (; !reap(); wait()) {
      const auto now = steady_clock::now();
      if (!end_.has_value() && now >= limit_) ask_to_end(Kind::late);
      if (end_ != Kind::lost && !(why_ = lookout_.trouble()).empty()) {
        ask_to_end(Kind::lost);
        end_ = Kind::lost;
        last_ = now;
      }
      if (now >= last_) {
        last_ = steady_clock::time_point::max();
        ::kill(child_, SIGKILL);  // the others follow when it has ended
      }
    }
    const auto ended = steady_clock::now();
    end_descendants();
    if (!end_ && ends_with_all_others(ended)) end_ = Kind::stopped;
    if (end_) return {*end_, 0, 0, why_};
    if (WIFSIGNALED(status_)) return {Kind::killed, 0, WTERMSIG(status_), ""};
    return {Kind::exited, WEXITSTATUS(status_), 0, ""};
  }

 private:
  static steady_clock::duration seconds(double count) {
    return std::chrono::duration_cast<steady_clock::duration>(duration<double>(count));
  }

  // Whether the command itself has ended.
  bool reap() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != child_) continue;  // one that was left behind
      status_ = status;
      return true;
    }
    return false;
  }

  void wait() {
    const auto until = std::min(limit_, last_);
    int patience = lookout_.watches() ? static_cast<int>(kLookout.count()) : -1;
    if (until != steady_clock::time_point::max())
      patience = static_cast<int>(
          std::clamp<int64_t>(std::chrono::ceil<milliseconds>(until - steady_clock::now()).count(),
                              0, lookout_.watches() ? kLookout.count() : 3'600'000));
    pollfd look{signals_.get(), POLLIN, 0};
    ::poll(&look, 1, patience);
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const bool asked = link::is_asked_of_keeper(info);
      if (asked || info.ssi_signo == SIGTERM) ask_to_end(Kind::stopped, !asked);
      if (info.ssi_signo == SIGQUIT) {
        ask_to_end(Kind::stopped);
        last_ = steady_clock::now();
      }
    }
  }

  // Whether it has ended, or is ending, without being asked: who is on the way out does not stop
  // any more. A signal tells nobody whether it came in time, and this process may be late, so the
  // command is held before it is asked: what it had done by then is done, and must not be done
  // again. What SIGTERM has killed had not done its work: others wanted its end at the same time.
  bool ends_by_itself() const {
    constexpr int kLooks = 1000;
    ::kill(child_, SIGSTOP);
    for (int look = 0; look < kLooks; ++look, std::this_thread::sleep_for(milliseconds(1))) {
      siginfo_t what{};
      if (::waitid(P_PID, static_cast<id_t>(child_), &what,
                   WEXITED | WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
          what.si_pid == child_)
        return what.si_code == CLD_EXITED || what.si_code == CLD_DUMPED ||
               (what.si_code == CLD_KILLED && what.si_status != SIGTERM);
    }
    return false;  // it waits for something that cannot be interrupted, as a disk
  }

  // Who shuts down a machine, a session or a unit signals all its processes, each in its turn, and
  // the command may have ended of that before its keeper has heard it. Then its end says nothing.
  bool ends_with_all_others(steady_clock::time_point ended) const {
    constexpr milliseconds kExited{50}, kKilled{1000};  // until the last one has been signalled
    const bool killed = WIFSIGNALED(status_) && WTERMSIG(status_) == SIGTERM;
    const auto until = ended + (killed ? kKilled : kExited);
    for (bool last = false;; last = steady_clock::now() >= until) {
      signalfd_siginfo info;
      while (::read(signals_.get(), &info, sizeof info) == sizeof info)
        if (link::is_asked_of_keeper(info) ? killed : info.ssi_signo == SIGTERM) return true;
      if (last) return false;
      const auto rest = std::chrono::ceil<milliseconds>(until - steady_clock::now()).count();
      pollfd look{signals_.get(), POLLIN, 0};
      ::poll(&look, 1, static_cast<int>(std::clamp<int64_t>(rest, 0, kKilled.count())));
    }
  }

  // `with_all`: neither its service nor its agent wants it, so that all here may have been told the
  // same, and the command, too.
  void ask_to_end(Kind why, bool with_all = false) {
    if (end_) return;
    // Else reap() finds it, and its own end counts.
    if (why != Kind::lost && !with_all && ends_by_itself()) return;
    end_ = why;
    limit_ = steady_clock::time_point::max();
    last_ = steady_clock::now() + seconds(command_.grace);
    ::kill(-child_, SIGTERM);  // it leads its group, and was not reaped
    ::kill(-child_, SIGCONT);
  }

  const CommandSpec& command_;
  const fs::path log_;
  const Lookout lookout_;
  std::string why_;  // of its loss
  Descriptor signals_;
  pid_t child_ = -1;
  int status_ = 0;
  std::optional<Kind> end_;                                           // asked for by its keeper
  steady_clock::time_point limit_ = steady_clock::time_point::max();  // of its time
  steady_clock::time_point last_ = steady_clock::time_point::max();   // of its grace
};

// Whether another keeper was given the orders; those that are withdrawn are nobody's.
bool is_replaced(const fs::path& run, uint64_t keeper) {
  const std::optional<KeeperOrders> orders = read_orders(run);
  return orders && orders->keeper != keeper && !orders->withdrawn;
}

// Whether it is the attempt that the file is of, whose end nobody knows yet.
bool is_present(const Attempt& attempt, const Attempt& written) {
  return written.number == attempt.number && written.fence == attempt.fence && !written.end;
}

fs::path room_file(const fs::path& run) { return run / "attempt.room"; }

// For the end of the attempt, since the command may leave none. Where there is none now, the end
// waits for it as ever.
void keep_room(const fs::path& run) {
  constexpr off_t kBytes = 16 << 10;
  const Descriptor fd(::open(room_file(run).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (fd) ::posix_fallocate(fd.get(), 0, kBytes);
}

// The command and all that it has started are gone: it does not take what is given back here.
void give_room_back(const fs::path& run) {
  std::error_code none;
  fs::remove(room_file(run), none);
}

// Its disk is there, since the orders are.
RunsFolder runs_with(const fs::path& run) {
  RunsFolder out{run.parent_path(), ""};
  try {
    out.mark = run::runs_mark(out.path);
  } catch (const Error&) {  // then only its absence is seen
  }
  return out;
}

// The end of an attempt is lost to nobody because a disk is full now, or not mounted, nor because
// orders were given to another keeper meanwhile, which has done nothing yet. A keeper that could
// not write for so long that another one has begun in its place has nothing to say any more. Who
// asks it to end while the disk is away is not kept waiting: what became of the command is then not
// known.
void write_end(const RunsFolder& runs, const fs::path& run, uint64_t keeper,
               const Attempt& attempt) {
  constexpr std::chrono::hours kMount{1};  // then the folder of the runs counts as deleted
  constexpr timespec kSecond{1, 0};
  sigset_t asked_to_end;
  sigemptyset(&asked_to_end);
  for (const int signal : {SIGTERM, SIGQUIT, link::kAskKeeper}) sigaddset(&asked_to_end, signal);
  give_room_back(run);
  const auto begin = steady_clock::now();
  const auto is_away = [&] { return !absence_of_runs(runs, run).empty(); };
  const auto waits_for_it = [&] { return steady_clock::now() < begin + kMount && is_away(); };
  bool asked = false;
  for (bool said = false;; asked = sigtimedwait(&asked_to_end, nullptr, &kSecond) > 0) {
    try {
      if (asked && is_away()) return;
      if (waits_for_it()) require_folder_of_runs(runs, run);
      const Attempt written = read_attempt(run);
      if (is_present(attempt, written) ||
          (!is_replaced(run, keeper) && written.number <= attempt.number))
        write_attempt(run, attempt);
      return;
    } catch (const Error& error) {  // the disk may have gone since it was seen
      if (error.code() != ErrorCode::unavailable && !waits_for_it()) throw;
      if (!std::exchange(said, true)) log_line(fmt::format("{}; trying again", error.what()));
    }
  }
}

// Nothing where they are another keeper's, or nobody's.
std::optional<KeeperOrders> own_orders(const fs::path& run, uint64_t keeper) {
  std::optional<KeeperOrders> orders = read_orders(run);
  if (orders && (orders->keeper != keeper || orders->withdrawn)) orders.reset();
  return orders;
}

}  // namespace

void end_fenced(const std::string& fence) {
  if (fence.empty()) return;
  while (true) {
    bool some = false;
    for (const pid_t pid : link::all_processes()) {
      if (pid == ::getpid() || !has_fence(pid, fence)) continue;
      some = kill_if(pid, [&] { return has_fence(pid, fence); }) || some;
    }
    if (!some) return;
    std::this_thread::sleep_for(kAgain);
  }
}

void keep(const fs::path& run, uint64_t keeper) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const RunsFolder runs = runs_with(run);
  const run::RunLock lock(run, "command");
  const std::optional<KeeperOrders> found = own_orders(run, keeper);
  if (!found) return;
  const KeeperOrders& orders = *found;
  Attempt attempt = read_attempt(run);
  if (orders.attempt != 0 && attempt.number >= orders.attempt) return;  // ordered twice
  end_fenced(attempt.fence);
  if (orders.attempt == 0) {
    if (attempt.number > 0 && !attempt.end) {
      attempt.end.emplace();
      write_end(runs, run, keeper, attempt);
    }
    return;
  }
  attempt.number = orders.attempt;
  attempt.fence = net::to_hex(net::random_nonce());
  attempt.end.reset();
  // A file system that did not answer may have held it up until its place was another one's.
  const control::Time seen = link::boot_time();
  if (!own_orders(run, keeper)) return;
  write_attempt(run, attempt);
  keep_room(run);
  attempt.end = Keeping(run, orders, seen).run(attempt.fence);
  const AttemptEnd& end = *attempt.end;
  if (end.kind == Kind::killed || (end.kind == Kind::exited && end.code != 0)) ++attempt.failures;
  write_end(runs, run, keeper, attempt);
}

}  // namespace ductile::cluster
