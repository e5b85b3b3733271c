#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/machine.h"
#include "ductile/link/worker_processes.h"
#include "ductile/process/line_reader.h"
#include "ductile/process/spawn.h"
#include "ductile/process/worker.h"
#include "ductile/server/launcher.h"
#include "ductile/server/launcher_events_impl.h"

namespace ductile::server {
namespace {

using control::WorkerId;

// Where a process may run; empty: nobody knows.
std::vector<int> cores_of(pid_t pid) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(pid, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  return cores;
}

class LocalLauncher : public Launcher {
 public:
  LocalLauncher(net::Loop& loop, LocalLauncherOptions options, const fs::path& run)
      : options_(std::move(options)), run_(run.string()), events_(loop) {}

  ~LocalLauncher() override {
    if (!options_.kills_at_end) return;
    finish();
    for (auto& [id, worker] : workers_) {
      siginfo_t info{};
      if (worker.child) ::waitid(P_PIDFD, static_cast<id_t>(worker.pid_fd.get()), &info, WEXITED);
    }
  }

  void finish() override {
    if (!options_.kills_at_end) return;
    for (auto& [id, worker] : workers_)
      ::pidfd_send_signal(worker.pid_fd.get(), SIGKILL, nullptr, 0);
  }
  bool finished() const override { return workers_.empty() || !options_.kills_at_end; }

  void start(const WorkerStart& start) override {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe", errno);
    Worker worker;
    worker.progress = Descriptor(ends[0]);
    Descriptor write_end(ends[1]);
    fcntl(worker.progress.get(), F_SETFL, O_NONBLOCK);
    worker.place = free_place();
    const int64_t sharing = std::max<int64_t>(1, start.workers);
    const char* told = std::getenv("OMP_NUM_THREADS");
    if (options_.cores) worker.share = options_.cores->take();
    const int64_t cores =
        worker.share ? static_cast<int64_t>(worker.share->size()) : cpu_share().usable() / sharing;
    const int64_t threads = options_.threads > 0 ? options_.threads : threads_on(cores, told);
    process::SpawnOptions launch;
    launch.program = options_.program;
    launch.arguments = start.arguments;
    launch.environment = process::worker_environment(threads);
    launch.environment.insert(launch.environment.end(), start.environment.begin(),
                              start.environment.end());
    launch.log = options_.log;
    launch.progress_fd = write_end.get();
    launch.dies_with_parent = false;  // a controller that is started again finds it at work
    if (worker.share) {
      launch.cpus = *worker.share;
    } else if (!options_.cores) {
      // Where workers come and go later, they share these cores anew, as far as the user lets them.
      const std::vector<int> cores = usable_cores();
      launch.environment.emplace_back("DUCTILE_CORES", fmt::format("{}", fmt::join(cores, ",")));
      if (told != nullptr) launch.environment.emplace_back("DUCTILE_THREADS", told);
      launch.cpus = core_share(worker.place, sharing, cores);
    }
    sigset_t inherited;  // a worker of an agent ignores what its agent ignores: a pilot's notice
    if (!options_.kills_at_end && ::pthread_sigmask(SIG_SETMASK, nullptr, &inherited) == 0)
      launch.mask = &inherited;
    const pid_t pid = process::spawn(launch);
    worker.child = true;
    worker.pid = pid;
    try {
      worker.pid_fd = opened(::pidfd_open(pid, 0), "pidfd_open");
      worker.end_watch = events_.watch(worker.pid_fd.get());
      worker.line_watch = events_.watch(worker.progress.get());
    } catch (const Error&) {  // nobody would see its end
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      throw;
    }
    workers_.emplace(start.worker, std::move(worker));
  }

  void kill(WorkerId id) override {
    const auto found = workers_.find(id);
    if (found == workers_.end()) {
      events_.gone(id);
    } else {
      ::pidfd_send_signal(found->second.pid_fd.get(), SIGKILL, nullptr, 0);
    }
  }

  void adopt(std::span<const WorkerId> ids) override {
    const std::vector<pid_t> pids = link::all_processes();
    for (const WorkerId id : ids) {
      if (workers_.contains(id)) continue;
      Worker worker;
      for (const pid_t pid : pids) {
        const auto is_it = [&] {
          return link::is_worker(pid, options_.program, run_, id, options_.host);
        };
        if (!is_it()) continue;
        Descriptor fd(::pidfd_open(pid, 0));
        if (fd.get() < 0 && errno != ESRCH) fail_errno("pidfd_open", errno);
        // Once more: the number could have gone to another process in between.
        if (fd.get() < 0 || !is_it()) continue;
        worker.pid_fd = std::move(fd);
        worker.pid = pid;
      }
      if (worker.pid_fd.get() < 0) {
        events_.gone(id);
        continue;
      }
      worker.place = free_place();
      if (options_.cores) worker.share = options_.cores->take_again(cores_of(worker.pid));
      worker.end_watch = events_.watch(worker.pid_fd.get());
      workers_.emplace(id, std::move(worker));
    }
  }

  void call_when_ready(std::function<void()> on_ready) override {
    events_.call_when_ready(std::move(on_ready));
  }
  size_t running() const override { return workers_.size(); }
  std::map<std::string, int64_t> by_host() const override {
    return {{"", static_cast<int64_t>(workers_.size())}};
  }
  WorkerPlace place_of(WorkerId id) const override {
    const auto found = workers_.find(id);
    return {"", found == workers_.end() ? 0 : found->second.pid};
  }

  std::vector<LauncherEvent> take() override {
    std::vector<LauncherEvent> events = events_.take();
    for (auto it = workers_.begin(); it != workers_.end();) {
      auto& [id, worker] = *it;
      pollfd end{worker.pid_fd.get(), POLLIN, 0};
      const bool ended = ::poll(&end, 1, 0) > 0;
      read_lines(id, worker, events);  // after looking: what it wrote before it ended is here
      if (!ended) {
        ++it;
        continue;
      }
      control::WorkerExited exited{id, 0, 0};
      siginfo_t info{};
      if (worker.child &&
          ::waitid(P_PIDFD, static_cast<id_t>(worker.pid_fd.get()), &info, WEXITED) == 0) {
        (info.si_code == CLD_EXITED ? exited.code : exited.signal) = info.si_status;
      } else {
        exited.code = -1;
      }
      events.emplace_back(exited);
      it = workers_.erase(it);
    }
    return events;
  }

 private:
  struct Worker {
    Descriptor pid_fd;
    Descriptor progress;  // none of an adopted one
    process::LineReader lines;
    pid_t pid = 0;
    int64_t place = 0;
    CorePool::Share share;
    bool child = false;
    net::Loop::Watch end_watch, line_watch;
  };

  void read_lines(WorkerId id, Worker& worker, std::vector<LauncherEvent>& events) {
    if (worker.progress.get() < 0) return;
    const bool open = worker.lines.read(worker.progress.get(), [&](std::string_view line) {
      events.emplace_back(WorkerLine{id, std::string(line)});
    });
    if (open) return;
    worker.line_watch.end();
    worker.progress.close();
  }

  int64_t free_place() const {
    std::set<int64_t> taken;
    for (const auto& [id, worker] : workers_) taken.insert(worker.place);
    int64_t place = 0;
    while (taken.contains(place)) ++place;
    return place;
  }

  const LocalLauncherOptions options_;
  const std::string run_;
  LauncherEvents events_;
  std::map<WorkerId, Worker> workers_;
};

}  // namespace

std::unique_ptr<Launcher> make_local_launcher(net::Loop& loop, LocalLauncherOptions options,
                                              const fs::path& run) {
  return std::make_unique<LocalLauncher>(loop, std::move(options), run);
}

}  // namespace ductile::server
