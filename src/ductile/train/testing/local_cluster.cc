#include "ductile/train/testing/local_cluster.h"

#include <chrono>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/link/addresses.h"
#include "ductile/link/boot_clock.h"
#include "ductile/link/membership_options.h"
#include "ductile/train/worker_loop.h"

namespace ductile::train::testing {
namespace {

using namespace control;
using namespace std::chrono_literals;

struct Killed {};  // no std::exception: nothing in the loop takes it for an error of its own

MembershipOptions options_of(const spec::JobOptions& job) {
  MembershipOptions options = link::membership_options(job);
  options.join_window = 50ms;
  options.backoff_base = 1ms;
  options.backoff_max = 20ms;
  options.max_failures = options.max_crashes_alone = 1000;
  // The machine may be loaded; that a worker is gone is told, never guessed.
  options.heartbeat_deadline = options.lease = 1h;
  options.start_deadline = options.pause_deadline = options.preempt_deadline = 1h;
  return options;
}

}  // namespace

// What one worker's loop takes its commands from.
class LocalCluster::Source final : public link::CommandSource {
 public:
  Source(LocalCluster& cluster, WorkerId id)
      : cluster_(cluster), protocol_(worker_options(id)), id_(id) {}

  WorkerId worker() const override { return id_; }

  void tell(const WorkerEvent& event) override {
    if (killed_) throw Killed();
    apply(event);
  }

  std::optional<WorkerCommand> next(std::chrono::milliseconds wait) override {
    apply(Beat{});
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [&] { return killed_ || !commands_.empty(); });
    if (killed_) throw Killed();
    return commands_.take();
  }

  bool abandoned(Generation generation) const override {
    const std::lock_guard lock(mutex_);
    return killed_ || generation <= commands_.abandoned() || commands_.exited();
  }

  std::optional<net::Address> store() const override { return std::nullopt; }
  std::optional<run::Cost> job_cost() const override { return std::nullopt; }

  void apply(const WorkerEvent& event) {
    Generation abandoned = 0;
    {
      const std::lock_guard lock(mutex_);
      const Generation before = commands_.abandoned();
      for (WorkerCommand& command : protocol_.apply(event, link::boot_time())) {
        if (auto* send = std::get_if<SendStatus>(&command)) {
          cluster_.hear(WorkerReported{std::move(send->report)});
        } else {
          commands_.add(std::move(command));
        }
      }
      if (commands_.abandoned() > before) abandoned = commands_.abandoned();
    }
    changed_.notify_all();
    if (abandoned > 0) give_up(abandoned);
  }

  void give_up(Generation generation) {
    const std::lock_guard lock(loop_mutex_);
    if (loop_ != nullptr) loop_->give_up(generation);
  }
  void set_loop(WorkerLoop* loop) {
    const std::lock_guard lock(loop_mutex_);
    loop_ = loop;
  }

  // At its next word; its peers, who would see it in the kernel's, need not wait for it.
  void kill() {
    killed_ = true;
    changed_.notify_all();
    give_up(~Generation{0});
  }
  bool killed() const { return killed_; }

 private:
  static WorkerOptions worker_options(WorkerId id) {
    WorkerOptions options;
    options.worker = id;
    options.address = link::PeerAddress::here("127.0.0.1").to_string();
    options.lease = 1h;
    return options;
  }

  LocalCluster& cluster_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  WorkerProtocol protocol_;
  link::CommandQueue commands_;
  std::atomic<bool> killed_ = false;
  const WorkerId id_;
  std::mutex loop_mutex_;
  WorkerLoop* loop_ = nullptr;
};

struct LocalCluster::Worker {
  Worker(LocalCluster& cluster, WorkerId id) : source(cluster, id) {}

  Source source;
  std::atomic<bool> gone = false;
  std::jthread thread;  // last: it ends first
};

LocalCluster::LocalCluster(const run::RunFolder& folder, const spec::JobOptions& job, Recipe recipe)
    : folder_(folder),
      job_(job),
      recipe_(std::move(recipe)),
      secret_(net::Secret::random()),
      driver_({folder.path(), options_of(job), job.checkpoint.keep, {}}, *this) {
  driver_.restore();
}

LocalCluster::~LocalCluster() {
  for (auto& [id, worker] : workers_) worker->source.kill();
}

void LocalCluster::hear(Event event) {
  {
    const std::lock_guard lock(mutex_);
    heard_.push_back(std::move(event));
  }
  changed_.notify_all();
}

void LocalCluster::launch(const LaunchWorker& command) {
  auto& place = workers_[command.worker];
  place = std::make_unique<Worker>(*this, command.worker);
  Worker& worker = *place;
  worker.thread = std::jthread([this, &worker, id = command.worker] {
    int64_t signal = 0;
    try {
      const WorkerInput input{.folder = folder_,
                              .job = job_,
                              .recipe = recipe_,
                              .secret = &secret_,
                              .address = "127.0.0.1"};
      WorkerLoop loop(input, worker.source);
      worker.source.set_loop(&loop);
      try {
        loop.run();
      } catch (const Killed&) {
        worker.source.kill();
        signal = SIGKILL;
      }
      worker.source.set_loop(nullptr);
    } catch (const std::exception&) {
      signal = SIGABRT;
    }
    worker.gone = true;
    hear(WorkerExited{id, 0, signal});
  });
}

void LocalCluster::kill(const KillWorker& command) {
  if (const auto found = workers_.find(command.worker); found != workers_.end())
    found->second->source.kill();
}

void LocalCluster::send(const Instruction& instruction) {
  const auto found = workers_.find(instruction.worker);
  if (found != workers_.end() && !found->second->gone && !found->second->source.killed())
    found->second->source.apply(InstructionReceived{instruction});
}

void LocalCluster::adopt(const std::vector<WorkerStatus>& workers) {
  for (const WorkerStatus& status : workers) driver_.add(WorkerExited{status.worker, -1, 0});
}

void LocalCluster::start(int64_t workers) { driver_.start(workers); }

void LocalCluster::pump() {
  driver_.listening();
  driver_.take_published();
  std::vector<Event> events;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 2ms, [&] { return !heard_.empty(); });
    events.swap(heard_);
  }
  for (Event& event : events) driver_.add(std::move(event));
  driver_.drain();
  driver_.look_at_clock();
  driver_.drain();
  say_why_if_nothing_moves();
  for (auto it = workers_.begin(); it != workers_.end();) {
    it = it->second->gone ? workers_.erase(it) : std::next(it);
  }
}

// Nothing here has a deadline that would end such a wait, so whoever looks at it is to find it.
void LocalCluster::say_why_if_nothing_moves() {
  const auto now = std::chrono::steady_clock::now();
  const std::pair at(step(), driver_.membership().generation().number);
  if (at != moved_to_) {
    moved_to_ = at;
    moved_at_ = now;
  } else if (now - moved_at_ >= 20s) {
    moved_at_ = now;
    log_line(fmt::format("no step for 20 s, after step {} in generation {}: {}", at.first,
                         at.second, driver_.why()));
  }
}

void LocalCluster::run_to(int64_t step) {
  while (!over() && this->step() < step) pump();
}

void LocalCluster::kill_some(uint64_t which) {
  std::vector<Worker*> living;
  for (auto& [id, worker] : workers_) {
    if (!worker->gone && !worker->source.killed()) living.push_back(worker.get());
  }
  if (living.empty()) return;
  living[which % living.size()]->source.kill();
}

void LocalCluster::die() { throw Killed(); }

void LocalCluster::resize(int64_t workers) { driver_.request(ResizeJob{workers}); }

void LocalCluster::preempt() {
  driver_.request(PreemptJob{});
  finish();
}

link::JobEnd LocalCluster::finish() {
  while (!driver_.at_rest() || !workers_.empty()) pump();
  const link::JobEnd end = driver_.end(false);
  driver_.write_end(end);
  return end;
}

}  // namespace ductile::train::testing
