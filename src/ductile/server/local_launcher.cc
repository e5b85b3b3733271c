#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <sstream>
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
#include "ductile/link/addresses.h"
#include "ductile/link/worker_processes.h"
#include "ductile/process/line_reader.h"
#include "ductile/process/spawn.h"
#include "ductile/process/worker.h"
#include "ductile/server/launcher.h"
#include "ductile/server/launcher_events_impl.h"
#include "ductile/server/memory_home_impl.h"
#include "ductile/server/zygotes.h"

namespace ductile::server {
namespace {

using control::WorkerId;

// The first workers wait, so that a machine imports torch once. Less than a worker may take to
// become ready: then one that is started instead is.
constexpr Zygotes::Patience kPatienceWithPython{.for_load = true, .load = std::chrono::seconds(90)};

constexpr std::chrono::seconds kFarewell{15};  // for processes that were just killed

// The GPUs that a process was given, as its environment says.
std::vector<std::string> gpus_of(pid_t pid) {
  std::vector<std::string> ids;
  try {
    const std::string text = '\0' + read_file(fs::path("/proc") / std::to_string(pid) / "environ");
    const std::string name = '\0' + std::string(kGivenGpus) + '=';
    const size_t at = text.find(name);
    if (at == std::string::npos) return ids;
    std::istringstream list(text.c_str() + at + name.size());
    for (std::string id; std::getline(list, id, ',');)
      if (!id.empty()) ids.push_back(id);
  } catch (const Error&) {  // gone
  }
  return ids;
}

// A process sees those that it has, and no others, whatever else its environment says.
void show_gpus(const GpuPool::Share& gpus, process::SpawnOptions& launch) {
  std::erase_if(launch.environment,
                [](const auto& variable) { return is_gpu_variable(variable.first); });
  for (auto& variable : gpu_environment(gpus ? *gpus : std::vector<Gpu>()))
    launch.environment.push_back(std::move(variable));
}

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

// A worker of an agent ignores what its agent ignores: a pilot's notice.
sigset_t mask_of_workers(const LocalLauncherOptions& options) {
  sigset_t mask;
  ::sigemptyset(&mask);
  if (!options.kills_at_end) ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

// By a fault of its own, and not because somebody killed it.
bool is_crash(const siginfo_t& end) {
  constexpr std::array<int, 7> kFaults = {SIGSEGV, SIGBUS,  SIGILL, SIGFPE,
                                          SIGABRT, SIGTRAP, SIGSYS};
  return end.si_code != CLD_EXITED && std::ranges::find(kFaults, end.si_status) != kFaults.end();
}

class LocalLauncher : public Launcher {
 public:
  LocalLauncher(net::Loop& loop, LocalLauncherOptions options, const fs::path& run,
                std::shared_ptr<process::Zygote> loaded)
      : options_(std::move(options)),
        run_(run.string()),
        events_(loop),
        zygotes_(options_.zygotes || !is_python()
                     ? options_.zygotes
                     : std::make_shared<Zygotes>(loop, kPatienceWithPython)) {
    if (loaded && zygotes_ && !options_.zygotes) zygotes_->take_over(std::move(loaded));
  }

  ~LocalLauncher() override {
    for (auto& [id, worker] : workers_) withdraw(worker);
    std::erase_if(workers_, [](const auto& entry) { return entry.second.asked.has_value(); });
    if (!options_.kills_at_end) return;
    finish();
    const auto deadline = std::chrono::steady_clock::now() + kFarewell;
    for (auto& [id, worker] : workers_) await_end(worker, deadline);
  }

  void finish() override {
    if (!options_.kills_at_end) return;
    std::vector<WorkerId> all;
    for (const auto& [id, worker] : workers_) all.push_back(id);
    for (const WorkerId id : all) kill(id);
  }
  bool finished() const override { return workers_.empty() || !options_.kills_at_end; }

  void start(const WorkerStart& start) override {
    Worker worker;
    Descriptor write_end;
    if (!options_.keepers) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe", errno);
      worker.progress = Descriptor(ends[0]);
      write_end = Descriptor(ends[1]);
      fcntl(worker.progress.get(), F_SETFL, O_NONBLOCK);
    }
    worker.place = free_place();
    process::SpawnOptions launch;
    const int64_t sharing = std::max<int64_t>(1, start.workers);
    const char* told = std::getenv("OMP_NUM_THREADS");
    if (options_.gpus && start.gpus > 0) worker.gpus = take_gpus(start.gpus);
    if (options_.cores) worker.share = options_.cores->take(start.devices, near(worker));
    if (worker.share) launch.cpus = worker.share->threads;
    const int64_t cores =
        launch.cpus.empty() ? cpu_share().usable() / sharing : worker.share->cores;
    const int64_t threads = options_.threads > 0 ? options_.threads : threads_on(cores, told);
    launch.program = options_.program;
    launch.arguments = start.arguments;
    if (options_.keepers)
      launch.environment.emplace_back("OMP_NUM_THREADS",
                                      std::to_string(std::max(start.devices, cores)));
    else
      launch.environment = process::worker_environment(threads);
    launch.environment.insert(launch.environment.end(), start.environment.begin(),
                              start.environment.end());
    if (options_.gpus) show_gpus(worker.gpus, launch);
    launch.log = options_.log;
    launch.progress_fd = write_end.get();
    launch.dies_with_parent = false;  // a controller that is started again finds it at work
    launch.begins_with_parent = options_.keepers;  // and what it does not find does not begin
    if (!options_.cores && !options_.keepers) {
      // Where workers come and go later, they share these cores anew, as far as the user lets them.
      const std::vector<int> cores = usable_cores();
      launch.environment.emplace_back("DUCTILE_CORES", fmt::format("{}", fmt::join(cores, ",")));
      if (told != nullptr) launch.environment.emplace_back("DUCTILE_THREADS", told);
      launch.cpus = core_share(worker.place, sharing, cores);
    }
    mask_ = mask_of_workers(options_);
    if (options_.keepers)  // what asks it to end waits until it can
      for (const int signal : link::kKeeperSignals) sigaddset(&mask_, signal);
    launch.mask = &mask_;
    if (ask_zygote(launch, worker)) {
      worker.asked->write_end = std::move(write_end);
    } else {
      spawn(launch, worker);
    }
    workers_.emplace(start.worker, std::move(worker));
  }

  void kill(WorkerId id) override {
    const auto found = workers_.find(id);
    if (found == workers_.end()) {
      if (!elsewhere_.contains(id)) events_.gone(id);
    } else if (found->second.asked) {
      withdraw(found->second);
      workers_.erase(found);
      events_.gone(id);
    } else {
      end(found->second);
    }
  }

  void ask_to_end(WorkerId id) override {
    const auto found = workers_.find(id);
    if (found != workers_.end() && options_.keepers)
      link::ask_keeper_to_end(found->second.pid_fd.get());
  }

  void adopt(std::span<const EarlierWorker> earlier) override {
    const std::vector<pid_t> pids = link::all_processes();
    const std::string here = link::PeerAddress::here("").place;
    for (const EarlierWorker& sought : earlier) {
      const WorkerId id = sought.worker;
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
        // Of another machine, or another boot of this one, nothing is seen here.
        if (!sought.place.empty() && sought.place != here) {
          elsewhere_.insert(id);
        } else {
          events_.gone(id);
        }
        continue;
      }
      worker.place = free_place();
      if (options_.cores) worker.share = options_.cores->take_again(cores_of(worker.pid));
      if (options_.gpus) worker.gpus = options_.gpus->take_again(gpus_of(worker.pid));
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
      if (worker.asked && !started(id, worker, events)) {
        it = workers_.erase(it);
        continue;
      }
      if (worker.asked) {
        ++it;
        continue;
      }
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
        if (worker.forked && is_crash(info)) zygotes_->distrust();
      } else {
        exited.code = -1;
      }
      events.emplace_back(exited);
      it = workers_.erase(it);
    }
    return events;
  }

 private:
  // A worker that the zygote is to fork.
  struct Asked {
    Zygotes::Asked wish;
    process::SpawnOptions launch;  // if there will be none
    Descriptor write_end;          // of its progress
    net::Loop::Watch watch;
  };
  struct Worker {
    Descriptor pid_fd;
    Descriptor progress;  // none of an adopted one
    process::LineReader lines;
    pid_t pid = 0;
    int64_t place = 0;
    CorePool::Share share;
    GpuPool::Share gpus;
    bool child = false, forked = false;
    net::Loop::Watch end_watch, line_watch;
    std::optional<Asked> asked;
  };

  // Not for ever: a keeper that waits for room on a full disk to say how its command ended, or a
  // worker that waits for a disk that does not answer, is found by whoever comes next.
  static void await_end(const Worker& worker, std::chrono::steady_clock::time_point deadline) {
    if (!worker.child) return;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd end{worker.pid_fd.get(), POLLIN, 0};
    siginfo_t info{};
    if (::poll(&end, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) > 0)
      ::waitid(P_PIDFD, static_cast<id_t>(worker.pid_fd.get()), &info, WEXITED);
  }

  bool is_python() const { return options_.program.filename() == process::kPythonWorker; }

  GpuPool::Share take_gpus(int64_t count) const {
    if (GpuPool::Share gpus = options_.gpus->take(count)) return gpus;
    fail(ErrorCode::unavailable, "{} of {} GPUs are free here, fewer than the {} asked for",
         options_.gpus->free(), options_.gpus->usable(), count);
  }

  // NUMA nodes on which a worker's cores are best: those of its GPUs, or of its job.
  std::set<int> near(const Worker& worker) const {
    std::set<int> nodes;
    if (worker.gpus) {
      for (const Gpu& gpu : *worker.gpus) nodes.insert(gpu.numa_node);
    } else {
      for (const auto& [id, other] : workers_)
        if (other.share) nodes.insert(other.share->nodes.begin(), other.share->nodes.end());
    }
    return nodes;
  }

  // Whether a zygote has been asked for the worker; if not, it has to be started.
  bool ask_zygote(const process::SpawnOptions& launch, Worker& worker) {
    if (!zygotes_ || options_.keepers) return false;
    std::optional<Zygotes::Asked> wish = zygotes_->ask(launch);
    if (!wish) return false;
    Asked asked;
    asked.wish = *std::move(wish);
    asked.launch = launch;
    try {
      asked.watch = events_.watch(asked.wish.socket.get());
    } catch (const Error&) {
      zygotes_->withdraw(std::move(asked.wish));
      return false;
    }
    worker.asked = std::move(asked);
    return true;
  }

  void withdraw(Worker& worker) {
    if (!worker.asked) return;
    worker.asked->watch.end();
    zygotes_->withdraw(std::move(worker.asked->wish));
  }

  void spawn(const process::SpawnOptions& launch, Worker& worker) {
    std::optional<MemoryHome> home;  // where its cores are, and others are not
    if (worker.share && worker.share->nodes.size() == 1 && options_.cores->map().nodes.size() > 1)
      home.emplace(worker.share->nodes.front());
    worker.pid = process::spawn(launch);
    worker.child = true;
    watch(worker);
  }

  void watch(Worker& worker) {
    try {
      worker.pid_fd = opened(::pidfd_open(worker.pid, 0), "pidfd_open");
      worker.end_watch = events_.watch(worker.pid_fd.get());
      if (worker.progress) worker.line_watch = events_.watch(worker.progress.get());
    } catch (const Error&) {  // nobody would see its end
      ::kill(worker.pid, SIGKILL);
      ::waitpid(worker.pid, nullptr, 0);
      throw;
    }
  }

  // Looks for the worker that the zygote was asked for; false: it cannot be started.
  bool started(WorkerId id, Worker& worker, std::vector<LauncherEvent>& events) {
    Asked& asked = *worker.asked;
    const process::ZygoteAnswer answer = zygotes_->answer(asked.wish);
    if (!answer.none && !answer.worker) return true;
    try {
      if (answer.none) {
        withdraw(worker);
        zygotes_->warm(asked.launch);  // for those to come
        spawn(asked.launch, worker);
      } else {
        worker.pid = *answer.worker;
        worker.child = worker.forked = true;
        watch(worker);
        process::let_go(asked.wish.socket.get());
      }
    } catch (const Error& e) {
      events.emplace_back(control::LaunchFailed{id, e.what()});
      return false;
    }
    worker.asked.reset();
    return true;
  }

  // One that was stopped would neither hear it nor ever end.
  void end(const Worker& worker) const {
    for (const int number : {options_.keepers ? SIGQUIT : SIGKILL, SIGCONT})
      ::pidfd_send_signal(worker.pid_fd.get(), number, nullptr, 0);
  }

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
  sigset_t mask_{};  // of workers; one that the zygote does not fork is started with it later
  LauncherEvents events_;
  const std::shared_ptr<Zygotes> zygotes_;
  std::map<WorkerId, Worker> workers_;
  std::set<WorkerId> elsewhere_;
};

}  // namespace

void warm_up(const LocalLauncherOptions& options) {
  const CorePool::Share share = options.cores ? options.cores->take() : nullptr;  // given back here
  const int64_t cores = share ? share->cores : cpu_share().usable();
  const sigset_t mask = mask_of_workers(options);
  process::SpawnOptions worker;
  worker.program = options.program;
  worker.environment = process::worker_environment(
      options.threads > 0 ? options.threads : threads_on(cores, std::getenv("OMP_NUM_THREADS")));
  if (options.gpus) show_gpus({}, worker);
  worker.mask = &mask;
  options.zygotes->warm(worker);
}

std::unique_ptr<Launcher> make_local_launcher(net::Loop& loop, LocalLauncherOptions options,
                                              const fs::path& run,
                                              std::shared_ptr<process::Zygote> loaded) {
  return std::make_unique<LocalLauncher>(loop, std::move(options), run, std::move(loaded));
}

}  // namespace ductile::server
