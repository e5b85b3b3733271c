#include "ductile/serving/replicas.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <optional>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/process/line_reader.h"
#include "ductile/process/spawn.h"
#include "ductile/serving/replica_line.h"
#include "ductile/serving/replica_pace.h"

namespace ductile::serving {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50};  // between two looks for processes that have ended

}  // namespace

class Replicas::Impl {
 public:
  Impl(net::Loop& loop, Router& router, ReplicaCommand command, Callbacks callbacks)
      : loop_(loop),
        router_(router),
        command_(std::move(command)),
        callbacks_(std::move(callbacks)) {
    look_ = loop_.every(kLook, [this] { look(); });
    router_.call_when_lost([this](Router::ReplicaId id) {
      if (const auto found = replicas_.find(id); found != replicas_.end())
        ::kill(found->second.pid, SIGKILL);  // look() then finds it gone
    });
  }

  ~Impl() {
    router_.call_when_lost({});
    for (auto& [id, replica] : replicas_) {
      router_.remove(id);
      ::kill(replica.pid, SIGKILL);
      ::waitpid(replica.pid, nullptr, 0);
    }
  }

  void resize(int64_t count);
  int64_t wanted() const { return wanted_; }
  int64_t used() const { return static_cast<int64_t>(replicas_.size()); }
  int64_t ready() const {
    return std::ranges::count_if(replicas_,
                                 [](const auto& one) { return one.second.state == State::ready; });
  }
  void end(std::function<void()> on_ended);
  std::vector<int> pids() const {
    std::vector<int> out;
    for (const auto& [id, replica] : replicas_) out.push_back(replica.pid);
    return out;
  }

 private:
  enum class State { starting, ready, ending };
  struct Replica {
    pid_t pid = -1;
    Descriptor progress;
    net::Loop::Watch watch;
    process::LineReader lines;
    State state = State::starting;
    std::optional<Error> failed;  // what it says before it ends
    net::Loop::Timer patience;
  };

  void settle();
  bool start_or_wait();
  void start();
  void read(Router::ReplicaId id);
  void hear(Router::ReplicaId id, std::string_view line);
  void let_go(Router::ReplicaId id, Replica& replica);
  void look();
  void gone(Router::ReplicaId id);

  net::Loop& loop_;
  Router& router_;
  const ReplicaCommand command_;
  const Callbacks callbacks_;
  std::map<Router::ReplicaId, Replica> replicas_;
  Router::ReplicaId last_id_ = 0;
  int64_t wanted_ = 0;
  ReplicaPace pace_{loop_, [this] { settle(); }};
  bool was_ready_ = false;
  net::Loop::Timer look_;
  std::function<void()> on_ended_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

void Replicas::Impl::resize(int64_t count) {
  wanted_ = count;
  settle();
}

void Replicas::Impl::end(std::function<void()> on_ended) {
  on_ended_ = std::move(on_ended);
  resize(0);
}

// As many as are wanted; of those that are too many the youngest go, first those that start.
void Replicas::Impl::settle() {
  int64_t alive = 0;
  for (const auto& [id, replica] : replicas_) alive += replica.state != State::ending ? 1 : 0;
  for (int64_t more = pace_.to_start(wanted_, alive); more > 0; --more, ++alive)
    if (!start_or_wait()) break;
  for (const State state : {State::starting, State::ready}) {
    for (auto one = replicas_.rbegin(); one != replicas_.rend() && alive > wanted_; ++one) {
      if (one->second.state != state) continue;
      let_go(one->first, one->second);
      --alive;
    }
  }
}

// A process that cannot be started at this moment, where others could be, is started later.
bool Replicas::Impl::start_or_wait() {
  try {
    start();
    return true;
  } catch (const Error& error) {
    if (!was_ready_) throw;
    if (callbacks_.tell)
      callbacks_.tell(fmt::format("a replica cannot be started now: {}", error.message()));
    pace_.lost();
    return false;
  }
}

void Replicas::Impl::start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe", errno);
  const Router::ReplicaId id = ++last_id_;
  Descriptor theirs(ends[1]);
  Replica replica;
  replica.progress = Descriptor(ends[0]);
  ::fcntl(replica.progress.get(), F_SETFL, O_NONBLOCK);
  process::SpawnOptions options;
  options.program = command_.program;
  options.arguments = command_.arguments;
  options.environment = command_.environment;
  options.log = command_.log;
  options.progress_fd = theirs.get();
  replica.pid = process::spawn(options);
  Replica& kept = replicas_[id] = std::move(replica);
  kept.watch =
      loop_.watch(kept.progress.get(), net::Interest::read, [this, id](net::Ready) { read(id); });
}

void Replicas::Impl::read(Router::ReplicaId id) {
  Replica& replica = replicas_.at(id);
  const bool open =
      replica.lines.read(replica.progress.get(), [&](std::string_view line) { hear(id, line); });
  if (!open) replica.watch.end();
}

void Replicas::Impl::hear(Router::ReplicaId id, std::string_view line) {
  const auto known = read_replica_line(line);
  if (!known) return;
  Replica& replica = replicas_.at(id);
  if (known->failed) replica.failed = known->failed;
  if (known->told && callbacks_.tell && replica.state == State::ready)
    callbacks_.tell(fmt::format("replica {}: {}", id, *known->told));
  if (!known->address || replica.state != State::starting) return;
  replica.state = State::ready;
  pace_.ready();
  router_.add(id, net::Address::parse(*known->address), known->version);
  if (!std::exchange(was_ready_, true) && callbacks_.on_ready) callbacks_.on_ready();
}

void Replicas::Impl::let_go(Router::ReplicaId id, Replica& replica) {
  const bool asked = replica.state == State::ready;
  replica.state = State::ending;
  const pid_t pid = replica.pid;
  replica.patience = loop_.after(ReplicaPace::kPatience, [pid] { ::kill(pid, SIGKILL); });
  if (!asked) {
    ::kill(pid, SIGTERM);
    return;
  }
  router_.retire(id, [this, id, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    const auto found = replicas_.find(id);
    if (found != replicas_.end()) ::kill(found->second.pid, SIGTERM);
  });
}

void Replicas::Impl::look() {
  std::vector<Router::ReplicaId> ended;
  for (const auto& [id, replica] : replicas_) {
    if (::waitpid(replica.pid, nullptr, WNOHANG) == replica.pid) ended.push_back(id);
  }
  for (const Router::ReplicaId id : ended) gone(id);
  if (!ended.empty()) settle();
  if (replicas_.empty() && on_ended_) loop_.post(std::exchange(on_ended_, {}));
}

void Replicas::Impl::gone(Router::ReplicaId id) {
  Replica& replica = replicas_.at(id);
  replica.lines.read(replica.progress.get(), [&](std::string_view line) { hear(id, line); });
  const State state = replica.state;
  const std::optional<Error> failed = replica.failed;
  router_.remove(id);
  replicas_.erase(id);
  if (state == State::ending) return;
  if (failed && !was_ready_) {
    wanted_ = 0;
    if (callbacks_.on_failed)
      loop_.post([on_failed = callbacks_.on_failed, error = *failed] { on_failed(error); });
    return;
  }
  if (callbacks_.tell)
    callbacks_.tell(fmt::format("replica {} is lost{}; another one takes its place", id,
                                failed ? fmt::format(": {}", failed->what()) : ""));
  pace_.lost();
}

Replicas::Replicas(net::Loop& loop, Router& router, ReplicaCommand command, Callbacks callbacks)
    : impl_(std::make_unique<Impl>(loop, router, std::move(command), std::move(callbacks))) {}
Replicas::~Replicas() = default;
void Replicas::resize(int64_t count) { impl_->resize(count); }
int64_t Replicas::wanted() const { return impl_->wanted(); }
int64_t Replicas::used() const { return impl_->used(); }
int64_t Replicas::ready() const { return impl_->ready(); }
void Replicas::end(std::function<void()> on_ended) { impl_->end(std::move(on_ended)); }
std::vector<int> Replicas::pids() const { return impl_->pids(); }

}  // namespace ductile::serving
