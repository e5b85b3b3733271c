// The replicas of a job of kind "serve", wherever its engine starts workers.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/paths.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/job_runner_impl.h"
#include "ductile/cluster/service_spec_impl.h"
#include "ductile/link/addresses.h"
#include "ductile/process/worker.h"
#include "ductile/run/folder.h"
#include "ductile/run/lock.h"
#include "ductile/server/launcher.h"
#include "ductile/server/run_secret.h"
#include "ductile/serving/replica_line.h"
#include "ductile/serving/replica_link.h"
#include "ductile/serving/replica_pace.h"
#include "ductile/serving/silent_hosts.h"

namespace ductile::cluster {
namespace {

using control::WorkerId;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kLook{500};          // for what a launcher does after some time
constexpr milliseconds kStart{120'000};     // until it can be asked
constexpr milliseconds kHandOver{150'000};  // those that go wait for those that come
static_assert(kHandOver > kStart, "whoever comes has its whole time before others have gone");
constexpr milliseconds kEndIsHeard{5'000};  // of a replica that is killed on a node that answers
constexpr milliseconds kLeave{5'000};       // at the end, for nodes that do not answer
constexpr int kMostFailures = 4;            // of starts, one after the other, before any succeeds

// That the run which is served cannot be seen, as where its disk is not mounted; it need not lie
// where the service's own runs do. Empty: it is there, or was deleted.
std::string absence_of_served(const fs::path& run) {
  std::error_code unknown;
  if (fs::exists(run.parent_path(), unknown) || unknown) return "";
  return fmt::format(
      "The run that is served, {}, is not there, and neither is the folder that it lies in, as "
      "where its disk is not mounted: mount the disk, and it is served again",
      run.string());
}

class ServeRunner final : public JobRunner {
 public:
  ServeRunner(net::Loop& loop, Engine& engine, const run::RunFolder& folder, Front& front,
              std::chrono::seconds alone)
      : loop_(loop),
        engine_(engine),
        lock_(folder.path(), run::RunLock::kController),
        run_(folder.path()),
        log_(folder.log_file()),
        front_(front),
        alone_(alone),
        launcher_(engine.launcher(folder, /*python=*/false)) {
    launcher_->call_when_ready([this] { note(); });
    front_.router().call_when_lost([this](WorkerId id) { give_up_on(id); });
    look_ = loop_.every(kLook, [this] { take(); });
  }

  ~ServeRunner() override {
    front_.router().call_when_lost({});
    for (const auto& [id, replica] : replicas_) front_.router().remove(id);
    front_.close_doors();  // the next run of the job may have another secret
    front_.set_ready(0);
    front_.set_trouble("");
  }

  // Those that an earlier service started are found by their numbers. One that had not said where
  // it listens cannot say it any more.
  void start(const std::vector<Holding>& devices, OnEnd on_end) override {
    on_end_ = std::move(on_end);
    set_devices(devices);
    std::vector<server::EarlierWorker> before;
    for (const auto& [id, known] : front_.memory().replicas) before.push_back({id});
    launcher_->adopt(before);
    for (const auto& [id, known] : front_.memory().replicas) {
      Replica& replica = replicas_[id];
      if (known.address.empty()) {
        replica.state = State::ending;
        launcher_->kill(id);
      } else {
        replica.state = State::ready;
        if (known.has_door) use_doors();
        front_.add(id, known);
        was_ready_ = true;
      }
    }
    note();
    settle();
    if (wanted_ == 0 && replicas_.empty()) ending_ = true;
    look_ended();
  }

  void resize(const std::vector<Holding>& devices, std::function<void(bool)> taken) override {
    if (ending_) return taken(false);
    set_devices(devices);
    settle();
    taken(true);
  }

  void preempt() override {
    if (std::exchange(ending_, true)) return;
    pace_.end();
    const auto go = [this, alive = std::weak_ptr<bool>(alive_)] {
      if (alive.expired()) return;
      wanted_ = 0;
      leaving_.clear();
      leave_at_ = loop_.now() + kLeave;
      settle();
      look_ended();
    };
    // What was accepted is answered first, where nobody will answer it later.
    front_.closing() && ready() > 0 ? front_.call_when_quiet(go) : go();
  }

  int64_t wanted() const override { return wanted_; }
  std::map<std::string, int64_t> used() const override { return launcher_->by_host(); }
  JobProgress progress() const override { return {was_ready_ ? 0 : -1, 0, 0}; }

 private:
  enum class State { recorded, starting, ready, ending };
  struct Replica {
    State state = State::recorded;
    std::optional<Error> failed;  // what it says before it ends
    net::Deadline begun{};        // of one that an earlier service started: long ago
    std::string silent_on;        // the node, of one that was given up on, then
    net::Deadline silent_at{};
    net::Loop::Timer patience;
  };

  void set_devices(const std::vector<Holding>& devices) {
    devices_ = devices;
    wanted_ = 0;
    for (const Holding& h : devices) wanted_ += h.devices;
    place();
  }

  // Where all nodes would rest, none does: it may be that the replicas hang, and their nodes are
  // well.
  bool rests(const std::string& node) const {
    const auto silent = [&](const std::string& name) { return silent_.rests(name, loop_.now()); };
    return silent(node) && !std::ranges::all_of(devices_, silent, &Holding::node);
  }

  // What rests gets nothing new, and keeps what answers there.
  void place() {
    std::vector<server::HostShare> shares;
    withheld_ = 0;
    std::string trouble;
    for (const Holding& h : devices_) {
      int64_t places = h.devices;
      if (rests(h.node)) {
        places =
            std::min(places, count([&](WorkerId id, const Replica& r) {
                       return r.state != State::ending && launcher_->place_of(id).host == h.node;
                     }));
        trouble += (trouble.empty() ? "" : "; ") + text_of_rest(h.node);
      }
      withheld_ += h.devices - places;
      shares.push_back({h.node, places});
    }
    front_.set_trouble(std::move(trouble));
    // Asked again for what it was asked for, nobody's time begins anew.
    std::set<WorkerId> leaving;
    for (const WorkerId id : launcher_->place(shares)) leaving.insert(id);
    if (std::exchange(leaving_, leaving) != leaving || !hand_over_.armed())
      hand_over_ = loop_.after(kHandOver, [this] { let_leaving_go(); });
  }

  std::string text_of_rest(const std::string& node) const {
    return fmt::format(
        "requests do not reach node {}: {} replicas that were started there one after the other "
        "went silent, so the next one waits, for longer each time",
        node, silent_.losses(node));
  }

  // One that is started again and again where no request reaches it takes its place for nothing.
  // Where its end is heard of at once, whoever starts replicas there is reached: else the node is
  // away, and gets nothing anyway.
  void note_silent(const Replica& replica) {
    const net::Deadline now = loop_.now();
    if (ending_ || replica.silent_on.empty() || now > replica.silent_at + kEndIsHeard) return;
    const std::chrono::seconds rest = silent_.lost(replica.silent_on, replica.begun, now);
    if (rest.count() == 0) return;
    if (rests(replica.silent_on))
      front_.tell(fmt::format("{}: {} s now", text_of_rest(replica.silent_on), rest.count()));
    place();
    await_rest();
  }

  void await_rest() {
    const auto end = silent_.next_end(loop_.now());
    if (!end) return;
    rested_ = loop_.at(*end, [this] {
      place();
      settle();
      await_rest();
    });
  }

  // It gives no sign of life. Where nobody reaches its node, nobody can end it, or will hear of its
  // end; so it is replaced at once.
  void give_up_on(WorkerId id) {
    const auto found = replicas_.find(id);
    if (found == replicas_.end()) return;
    if (std::exchange(found->second.state, State::ending) != State::ending && !ending_) {
      front_.tell(fmt::format("replica {} is silent; another one takes its place", id));
      found->second.silent_on = launcher_->place_of(id).host;
      found->second.silent_at = loop_.now();
      pace_.lost();
    }
    leaving_.erase(id);
    launcher_->kill(id);
  }

  int64_t count(const std::function<bool(WorkerId, const Replica&)>& which) const {
    return std::ranges::count_if(replicas_,
                                 [&](const auto& one) { return which(one.first, one.second); });
  }
  int64_t ready() const {
    return count([](WorkerId, const Replica& r) { return r.state == State::ready; });
  }

  // As many as are wanted, beside those that leave a node. Those that leave go when the others can
  // be asked. Of those that are too many the youngest go, first those that start.
  void settle() {
    int64_t staying = count([&](WorkerId id, const Replica& r) {
      return r.state != State::ending && !leaving_.contains(id);
    });
    if (const int64_t more = pace_.to_start(wanted_ - withheld_, staying); more > 0) {
      std::vector<WorkerId> fresh;
      for (int64_t i = 0; i < more; ++i) fresh.push_back(record());
      staying += more;
      front_.save([this, fresh, alive = std::weak_ptr<bool>(alive_)] {
        if (alive.expired()) return;
        for (const WorkerId id : fresh) launch(id);
        look_ended();
      });
    }
    for (const State state : {State::recorded, State::starting, State::ready}) {
      for (auto one = replicas_.rbegin(); one != replicas_.rend() && staying > wanted_; ++one) {
        if (one->second.state != state || leaving_.contains(one->first)) continue;
        let_go(one->first, one->second);
        --staying;
      }
    }
    const int64_t stay_ready = count([&](WorkerId id, const Replica& r) {
      return r.state == State::ready && !leaving_.contains(id);
    });
    if (stay_ready >= wanted_ - withheld_) let_leaving_go();
    tell_ready();
  }

  // Those that answer now: one on a node that is lost does not, long before it counts as lost.
  void tell_ready() {
    int64_t answer = 0;
    std::map<std::string, int64_t> by_node;
    for (const auto& [id, replica] : replicas_) {
      if (replica.state != State::ready || !front_.router().takes_requests(id)) continue;
      ++answer;
      if (engine_.only_here()) continue;
      if (const std::string node = launcher_->place_of(id).host; !node.empty()) ++by_node[node];
    }
    front_.set_ready(answer, std::move(by_node));
  }

  // By the secret of the job, from its folder, which all nodes see.
  void use_doors() try {
    front_.use_doors(server::secret_of(run_), link::job_name(run_));
  } catch (const Error& error) {  // it is nothing of what is served, and may pass
    fail(ErrorCode::unavailable, "{}", error.what());
  }

  void let_leaving_go() {
    for (const WorkerId id : std::exchange(leaving_, {})) {
      const auto found = replicas_.find(id);
      if (found != replicas_.end() && found->second.state != State::ending)
        let_go(id, found->second);
    }
    hand_over_.cancel();
  }

  WorkerId record() {
    const WorkerId id = ++front_.memory().last;
    front_.memory().replicas[id] = {};
    replicas_[id].state = State::recorded;
    return id;
  }

  void launch(WorkerId id) {
    const auto found = replicas_.find(id);
    if (found == replicas_.end()) return;
    if (found->second.state != State::recorded) return gone(id);  // it was let go before it began
    const ServeSpec& spec = front_.spec();
    json request = {{"name", spec.model},
                    {"run", spec.run.string()},
                    {"host", "127.0.0.1"},
                    {"port", 0},
                    {"threads", 0},
                    {"max_batch", spec.max_batch},
                    {"max_delay_us", static_cast<int64_t>(1000 * spec.max_delay)},
                    {"max_waiting", spec.max_waiting},
                    {"follow_ms", spec.follow ? 1000 : 0},
                    {"alone", alone_.count()}};
    const auto version =
        spec.follow || !front_.memory().version ? spec.version : front_.memory().version;
    if (version) request["version"] = *version;
    server::WorkerStart start;
    start.worker = id;
    start.workers = wanted_;
    try {
      found->second.state = State::starting;
      found->second.begun = loop_.now();
      if (!engine_.only_here()) {
        use_doors();
        const serving::FrontPlace front{link::PeerAddress::here("").place, engine_.listen(),
                                        link::job_name(run_)};
        request["front"] = front.to_json();
        start.environment = {{"DUCTILE_SECRET_FILE", (run_ / "secret").string()}};
      } else if (const std::string absence = absence_of_served(spec.run); !absence.empty()) {
        fail(ErrorCode::unavailable, "{}", absence);  // no process need find that out
      }
      start.arguments = {"--run",    run_.string(),
                         "--worker", std::to_string(id),
                         "--serve",  dump_json_exactly(request, "--serve")};
      found->second.patience = loop_.after(kStart, [this, id] {
        replicas_.at(id).failed.emplace(
            ErrorCode::unavailable,
            fmt::format("it could not be asked for {} seconds after its start",
                        std::chrono::duration_cast<std::chrono::seconds>(kStart).count()));
        launcher_->kill(id);
      });
      launcher_->start(start);
    } catch (const Error& error) {
      found->second.failed = error;
      gone(id);
    }
  }

  void let_go(WorkerId id, Replica& replica) {
    const State before = std::exchange(replica.state, State::ending);
    if (before == State::recorded) return;  // launch() finds it
    replica.patience =
        loop_.after(serving::ReplicaPace::kPatience, [this, id] { launcher_->kill(id); });
    if (before == State::starting) return launcher_->kill(id);
    // When it has no requests any more, nothing is lost with it.
    front_.router().retire(id, [this, id, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired() && replicas_.contains(id)) launcher_->kill(id);
    });
  }

  void note() {
    if (std::exchange(noted_, true)) return;
    loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
      if (alive.expired()) return;
      noted_ = false;
      take();
    });
  }

  void take() {
    for (const server::LauncherEvent& event : launcher_->take()) {
      if (const auto* line = std::get_if<server::WorkerLine>(&event)) {
        if (replicas_.contains(line->worker)) hear(*line);
      } else if (const auto* exited = std::get_if<control::WorkerExited>(&event)) {
        gone(exited->worker);
      } else if (const auto* failed = std::get_if<control::LaunchFailed>(&event)) {
        if (replicas_.contains(failed->worker))
          replicas_.at(failed->worker).failed.emplace(ErrorCode::unavailable, failed->text);
        gone(failed->worker);
      }
    }
    leave_unreachable();
    tell_ready();  // where those of an earlier service are is found out little by little
    look_ended();
  }

  void hear(const server::WorkerLine& line) {
    const WorkerId id = line.worker;
    const auto known = serving::read_replica_line(line.text);
    if (!known) return;
    Replica& replica = replicas_.at(id);
    if (known->failed) replica.failed = failure_of(line, *known->failed);
    if (known->told && replica.state == State::ready)
      front_.tell(fmt::format("replica {}: {}", id, *known->told));
    if (!known->address || replica.state != State::starting) return;
    const bool here = known->place == link::PeerAddress::here("").place;
    if (!here && !known->door) {
      replica.failed.emplace(
          ErrorCode::unavailable,
          fmt::format("node {}: its replica says no address under which other machines reach it; "
                      "install the same version of Ductile there",
                      line.host));
      return launcher_->kill(id);
    }
    try {
      (void)net::Address::parse(here ? *known->address : *known->door);
    } catch (const Error& error) {  // of a worker that is faulty, or of another version
      replica.failed = error;
      return launcher_->kill(id);
    }
    replica.state = State::ready;
    replica.patience.cancel();
    pace_.ready();
    failures_ = 0;
    was_ready_ = true;
    front_.memory().replicas[id] = {here ? *known->address : *known->door, known->version, !here};
    front_.add(id, front_.memory().replicas[id]);
    if (!front_.spec().follow) front_.memory().version = front_.router().wanted();
    front_.save();
    settle();
  }

  // Of a node, which may see other files than this machine.
  static Error failure_of(const server::WorkerLine& line, const Error& error) {
    if (line.host.empty()) return error;
    return {error.code(), fmt::format("node {}: {}", line.host, error.message())};
  }

  // Its process has ended.
  void gone(WorkerId id) {
    const auto found = replicas_.find(id);
    if (found == replicas_.end()) return;
    const State state = found->second.state;
    std::optional<Error> failed = found->second.failed;
    // Neither the run nor the checkpoint that all have counts as deleted for that.
    if (failed && failed->code() == ErrorCode::not_found)
      if (const std::string absence = absence_of_served(front_.spec().run); !absence.empty())
        failed.emplace(ErrorCode::unavailable, absence);
    const Replica was = std::move(found->second);
    replicas_.erase(found);
    leaving_.erase(id);
    front_.router().remove(id);
    front_.memory().replicas.erase(id);
    front_.save();
    tell_ready();
    note_silent(was);
    // A place that it had on a node which rests is not taken again.
    if (!ending_ && silent_.next_end(loop_.now())) place();
    if (state == State::ending) return settle();
    if (failed && failed->code() == ErrorCode::not_found && front_.memory().version) {
      // The checkpoint that all of them had is there no more.
      front_.tell(
          fmt::format("replica {}: {}; new ones begin as the job says", id, failed->message()));
      front_.memory().version.reset();
      front_.router().want({});
    } else if (!was_ready_ && failed && failed->code() != ErrorCode::unavailable) {
      return give_up(*failed);
    }
    if (state == State::starting && ++failures_ >= kMostFailures && !was_ready_)
      return give_up(
          failed
              ? *failed
              : Error(ErrorCode::internal,
                      fmt::format("its replicas end before they can be asked; what they said: {}",
                                  process::log_tail(log_, 2))));
    front_.tell(fmt::format("replica {} is lost{}; another one takes its place", id,
                            failed ? ": " + failed->message() : std::string()));
    pace_.lost();
  }

  void give_up(const Error& error) {
    if (!failed_) failed_ = error;
    preempt();
  }

  // At the end nobody waits for nodes that do not answer: where one does again, what no job knows
  // is ended before its devices count.
  void leave_unreachable() {
    if (!ending_ || !leave_at_ || loop_.now() < *leave_at_ || launcher_->running() > 0) return;
    for (const auto& [id, replica] : std::exchange(replicas_, {})) {
      front_.router().remove(id);
      front_.memory().replicas.erase(id);
    }
    front_.save();
  }

  // The launcher is at its end first, so that its destructor waits for nobody: all that the service
  // does would wait with it for an agent that gives no sign. on_end may destroy this object, so
  // nobody is in its functions then.
  void look_ended() {
    if (!ending_ || !replicas_.empty() || !on_end_) return;
    if (!std::exchange(finishing_, true)) launcher_->finish();
    if (!launcher_->finished()) return;
    end_timer_ = loop_.after(milliseconds(0), [this, on_end = std::exchange(on_end_, {})] {
      RunnerEnd end;
      if (failed_) end = end_by(std::make_exception_ptr(*failed_));
      const OnEnd call = on_end;  // outlives this object
      call(end);
    });
  }

  net::Loop& loop_;
  Engine& engine_;
  const run::RunLock lock_;
  const fs::path run_, log_;
  Front& front_;
  const std::chrono::seconds alone_;
  OnEnd on_end_;
  int64_t wanted_ = 0, withheld_ = 0;  // devices; of these, on nodes that rest
  std::vector<Holding> devices_;
  serving::SilentHosts silent_;
  std::map<WorkerId, Replica> replicas_;
  std::set<WorkerId> leaving_;  // are to go, when others have taken their places
  std::optional<Error> failed_;
  serving::ReplicaPace pace_{loop_, [this] { settle(); }};
  std::optional<net::Deadline> leave_at_;
  int failures_ = 0;
  bool was_ready_ = false, ending_ = false, finishing_ = false, noted_ = false;
  net::Loop::Timer look_, hand_over_, end_timer_, rested_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  const std::unique_ptr<server::Launcher> launcher_;
};

}  // namespace

std::unique_ptr<JobRunner> make_serve_runner(net::Loop& loop, Engine& engine, const fs::path& run,
                                             Front& front, std::chrono::seconds alone) {
  // Replicas that live are taken over whatever has become of the run that they serve.
  if (kind_of(run / "job.toml") != FileKind::none)
    return std::make_unique<ServeRunner>(loop, engine, run::RunFolder::open(run), front, alone);
  if (const std::string absence = absence_of_served(front.spec().run); !absence.empty())
    fail(ErrorCode::unavailable, "{}", absence);
  spec::JobOptions job = served_job(front.spec());
  return std::make_unique<ServeRunner>(loop, engine, made_run(run, job), front, alone);
}

}  // namespace ductile::cluster
