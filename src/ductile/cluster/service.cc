#include "ductile/cluster/service.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/service_spec_impl.h"
#include "ductile/link/membership_options.h"
#include "ductile/run/lock.h"
#include "ductile/run/progress.h"
#include "ductile/server/job_host.h"
#include "ductile/spec/job.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAgain{1000};  // after a write that failed
constexpr milliseconds kPause{5000};  // after a job that could not be started
constexpr milliseconds kSettle{100};  // while devices are given up

}  // namespace

class Service::Impl {
 public:
  Impl(net::Loop& loop, ServiceOptions options);
  ~Impl();

  void stop(std::function<void()> on_stopped);

  uint16_t port() const { return http_->port(); }

 private:
  // A job that has not ended.
  struct Live {
    JobRecord record;
    spec::JobOptions job;
    fs::path run;
    int64_t granted = 0;  // devices that the policy wants it to hold
    std::string why;      // of this grant
    int64_t asked = 0;    // that its workers were told to take
    bool starting = false, stopping = false;
    net::Loop::Timer rest;  // after a start that failed: until it is tried again
    // Where the steps of the present workers were counted from.
    int64_t generation = -1, first_step = 0;
    net::Deadline first_time{};
    std::unique_ptr<run::RunLock> lock;
    std::unique_ptr<server::JobHost> host;
  };
  using Write = std::function<void(Change&)>;

  void take_up(JobRecord record);
  void admit(Live& live);  // to those that the policy decides about
  void go_on();            // with what ran when the last service ended
  void look();             // at what the store says anew
  void look_at_events();
  void look_at_drains();
  void follow_wish(Live& live);
  void measure(Live& live);
  void decide();
  void settle();
  void begin(Live& live, int64_t devices);
  void start_host(Live& live, int64_t workers);
  void resize(Live& live, int64_t devices);
  void preempt(Live& live);
  void hear(JobId id, std::string_view line);
  void ended(JobId id, const server::JobOutcome& outcome);
  void end(JobId id, Phase phase, const std::string& reason);
  void say(Live& live, const std::string& reason);
  void decide_soon();
  // Calls it in the loop, from any thread, if this object is still there.
  std::function<void(std::function<void()>)> poster();
  static int64_t held(const Live& live);
  int64_t free_devices() const;
  double schedule_time() const;  // seconds since 1970 that never go back
  std::vector<Holding> holding(int64_t devices) const { return {{options_.node, devices}}; }

  // Writes in order, again and again while the disk is full; then calls `then` in the loop.
  void write(Write write, std::function<void()> then = {});
  void write_next();
  void written(const std::optional<Error>& error);

  net::Loop& loop_;
  const ServiceOptions options_;
  Store store_;
  CommitQueue queue_;
  Reader reader_;
  Scheduler scheduler_;
  std::map<JobId, Live> live_;
  std::set<JobId> ending_;  // have ended, and the store does not say so yet
  Revision seen_ = 0;
  const double began_ = wall_seconds();
  const net::Deadline began_steady_ = loop_.now();
  struct Pending {
    Write write;
    std::function<void()> then;
  };
  std::deque<Pending> writes_;
  bool writing_ = false, stopping_ = false;
  std::function<void()> on_stopped_;
  net::Loop::Timer round_, again_, look_again_, decide_soon_, settle_soon_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Api> api_;
  std::unique_ptr<HttpServer> http_;  // ends first: nothing asks any more
};

Service::Impl::Impl(net::Loop& loop, ServiceOptions options)
    : loop_(loop),
      options_(std::move(options)),
      store_((runs_of(options_.folder), options_.folder / "store.db")),
      queue_(store_),
      reader_(options_.folder / "store.db"),
      scheduler_(one_machine(options_.node, options_.device_type, options_.devices),
                 options_.policy, options_.interval) {
  seen_ = reader_.last_event();
  for (JobRecord& record : reader_.live_jobs()) take_up(std::move(record));
  look_at_drains();
  go_on();
  api_ = std::make_unique<Api>(options_.folder / "store.db", queue_);
  api_->check_submission(
      [devices = options_.devices](const Submission& s, const nlohmann::json& spec) {
        check_spec(s, spec, devices);
      });
  api_->on_commit([post = poster(), this] { post([this] { look(); }); });
  HttpOptions http;
  http.socket = options_.folder / "api.sock";
  http.port = options_.port;
  http_ = std::make_unique<HttpServer>(*api_, std::move(http));
  decide();
}

Service::Impl::~Impl() {
  http_.reset();
  for (auto& [id, live] : live_) live.host.reset();
}

void Service::Impl::take_up(JobRecord record) {
  const JobId id = record.id;
  Live live;
  try {
    live.job = job_of(parse_json(reader_.spec(id), "spec", ErrorCode::data_loss));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) throw;
    return end(id, Phase::failed, error.what());  // options that this program no longer knows
  }
  const std::string name = record.run.empty()
                               ? fmt::format("{}-{}", id, run::file_name_of(record.submission.name))
                               : fs::path(record.run).filename().string();
  live.run = options_.folder / "runs" / name;
  live.record = std::move(record);
  Live& kept = live_[id] = std::move(live);
  if (kept.record.phase != Phase::paused) admit(kept);
  if (kept.record.phase != Phase::running) follow_wish(kept);
}

void Service::Impl::admit(Live& live) {
  if (const std::string lack = lack_of_devices(live.record, options_.devices); !lack.empty())
    return say(live, lack);
  scheduler_.add(demand_of(live.record, live.job, options_.devices, schedule_time()));
}

// On what it held, as far as there are as many devices as before. Workers may live, so that a job
// that is to run no longer is taken over, too, and then stopped.
void Service::Impl::go_on() {
  int64_t left = options_.devices;
  for (auto& [id, live] : live_) {
    if (live.record.phase != Phase::running) continue;
    int64_t devices = 0;
    for (const Holding& h : reader_.holdings(id)) devices += h.devices;
    devices = std::min(devices, left);
    const bool fits = devices >= live.record.submission.min_devices;
    if (fits) {
      left -= devices;
      live.asked = devices;
      scheduler_.holds(id, {{0, static_cast<int32_t>(devices)}}, schedule_time());
    }
    start_host(live, live.asked);
    if (!live.host) continue;
    if (!fits) preempt(live);
    follow_wish(live);
  }
}

void Service::Impl::look() {
  try {
    look_at_events();
  } catch (const Error& error) {
    log_line(fmt::format("store: {}", error.what()));
    look_again_ = loop_.after(kAgain, [this] { look(); });
  }
}

void Service::Impl::look_at_drains() {
  const std::vector<Drain> drains = reader_.drains();
  scheduler_.drain(
      0, std::ranges::any_of(drains, [&](const Drain& d) { return d.node == options_.node; }));
}

void Service::Impl::look_at_events() {
  constexpr int64_t kPage = 1000;
  std::set<JobId> changed;
  bool drains = false;
  Revision seen = seen_;
  while (true) {
    const std::vector<Event> events = reader_.events(seen, kPage);
    for (const Event& event : events) {
      seen = event.seq;
      if (event.job != 0) changed.insert(event.job);
      if (event.kind == "drain" || event.kind == "undrain") drains = true;
    }
    if (static_cast<int64_t>(events.size()) < kPage) break;
  }
  if (drains) look_at_drains();
  for (const JobId id : changed) {
    JobRecord record = reader_.job(id);
    const auto known = live_.find(id);
    if (known == live_.end()) {
      if (!has_ended(record.phase) && !ending_.contains(id)) take_up(std::move(record));
      continue;
    }
    known->second.record.wish = record.wish;  // the rest is this service's own doing
    follow_wish(known->second);
  }
  seen_ = seen;
  if (drains || !changed.empty()) decide_soon();
}

void Service::Impl::follow_wish(Live& live) {
  const JobId id = live.record.id;
  const Wish wish = live.record.wish;
  if (live.starting || stopping_) return;  // looked at again when it has started
  if (live.host) {
    if (wish != Wish::run) preempt(live);
    return;
  }
  if (wish == Wish::cancel) return end(id, Phase::cancelled, "It was cancelled.");
  if (wish == Wish::pause && live.record.phase == Phase::queued) {
    scheduler_.remove(id);
    live.rest.cancel();
    live.granted = 0;
    live.record.phase = Phase::paused;
    write([id](Change& change) {
      change.set_phase(id, Phase::paused, "Its user paused it.", wall_seconds());
    });
  }
  if (wish == Wish::run && live.record.phase == Phase::paused) {
    JobRecord record = live.record;
    record.phase = Phase::queued;
    live_.erase(id);
    write([id](Change& change) {
      change.set_phase(id, Phase::queued, "Its user let it go on.", wall_seconds());
    });
    take_up(std::move(record));
  }
}

// The job is over. Until the store says so, it says that the job lives, which must not be believed.
void Service::Impl::end(JobId id, Phase phase, const std::string& reason) {
  scheduler_.remove(id);
  live_.erase(id);
  ending_.insert(id);
  write(
      [id, phase, reason](Change& change) { change.set_phase(id, phase, reason, wall_seconds()); },
      [this, id] {
        ending_.erase(id);
        decide_soon();
      });
}

void Service::Impl::say(Live& live, const std::string& reason) {
  if (reason.empty() || reason == live.record.reason) return;
  live.record.reason = reason;
  write([id = live.record.id, reason](Change& change) {
    change.set_reason(id, reason, wall_seconds());
  });
}

// From the steps that it committed while its workers were the same.
void Service::Impl::measure(Live& live) {
  constexpr int64_t kLeastSteps = 5;
  if (!live.host || live.stopping) return;
  const nlohmann::json status = live.host->status();
  if (!status.contains("generation")) return;
  const int64_t generation = status["generation"].value("number", int64_t{0});
  const int64_t step = status.value("step", int64_t{0});
  const net::Deadline now = loop_.now();
  if (generation != live.generation) {
    live.generation = generation;
    live.first_step = step;
    live.first_time = now;
    return;
  }
  const double seconds = std::chrono::duration<double>(now - live.first_time).count();
  if (step < live.first_step + kLeastSteps || seconds < options_.interval / 2) return;
  const double steps = static_cast<double>(step - live.first_step);
  scheduler_.measured(live.record.id,
                      steps * static_cast<double>(live.job.train.batch_size) / seconds);
  live.first_step = step;
  live.first_time = now;
}

std::function<void(std::function<void()>)> Service::Impl::poster() {
  return [mailbox = loop_.mailbox(), alive = std::weak_ptr(alive_)](std::function<void()> what) {
    mailbox.post([alive, what = std::move(what)] {
      if (alive.lock()) what();
    });
  };
}

void Service::Impl::decide_soon() {
  if (stopping_ || !scheduler_.traits().on_events) return;
  decide_soon_ = loop_.after(milliseconds(0), [this] { decide(); });
}

void Service::Impl::decide() {
  if (stopping_) return;
  round_ = loop_.after(milliseconds(static_cast<int64_t>(options_.interval * 1000)),
                       [this] { decide(); });
  // A grant that was not taken up yet is decided upon anew.
  for (auto& [id, live] : live_) {
    live.granted = live.stopping ? 0 : live.asked;
    measure(live);
  }
  try {
    for (const Allotment& allotment : scheduler_.decide(schedule_time())) {
      Live& live = live_.at(allotment.job);
      live.granted = sched::device_count(allotment.allocation);
      live.why = allotment.reason;
    }
  } catch (const Error& error) {  // jobs outlive a policy's fault: each keeps what it has
    log_line(fmt::format("policy {}: {}", options_.policy, error.what()));
  }
  settle();
  for (auto& [id, live] : live_) {
    if (live.host || live.starting || live.record.phase != Phase::queued) continue;
    if (scheduler_.knows(id)) say(live, scheduler_.why(id));
  }
}

// Devices that its workers take, or may take in a moment: also those of a worker that was told to
// go and has not gone, and of one that somebody else asked for (`ductile resize`).
int64_t Service::Impl::held(const Live& live) {
  if (!live.host) return live.asked;
  const int64_t processes = live.host->status().value("processes", int64_t{0});
  return std::max({live.asked, live.host->wanted_workers(), processes});
}

int64_t Service::Impl::free_devices() const {
  int64_t sum = 0;
  for (const auto& [id, live] : live_) sum += held(live);
  return options_.devices - sum;
}

double Service::Impl::schedule_time() const {
  return began_ + std::chrono::duration<double>(loop_.now() - began_steady_).count();
}

// Goes from what is held to what is granted: first what gives up devices, then, as far as they are
// free, what takes them. What has to wait for devices looks again.
void Service::Impl::settle() {
  if (stopping_) return;
  for (auto& [id, live] : live_) {
    if (!live.host || live.stopping) continue;
    if (live.granted == 0) {
      preempt(live);
    } else if (live.granted < std::max(live.asked, live.host->wanted_workers())) {
      resize(live, live.granted);
    }
  }
  bool waits = false;
  int64_t free = free_devices();
  for (auto& [id, live] : live_) {
    if (live.starting || live.stopping || live.granted <= live.asked) continue;
    const int64_t more = live.granted - live.asked;
    if (live.host) {
      const int64_t taken = std::min(more, free);
      if (taken > 0) resize(live, live.asked + taken);
      free -= std::max<int64_t>(0, taken);
    } else if (live.record.phase == Phase::queued && free >= more) {
      begin(live, live.granted);
      free -= more;
    }
    waits = waits || live.granted > live.asked;
  }
  if (waits) settle_soon_ = loop_.after(kSettle, [this] { settle(); });
}

// The store says that a job runs before any of it does.
void Service::Impl::begin(Live& live, int64_t devices) {
  const JobId id = live.record.id;
  live.starting = true;
  live.asked = devices;
  if (live.record.run.empty()) live.run = unused(live.run);
  live.record.run = live.run.string();
  live.record.reason = live.why;
  const std::string why = live.why;
  write(
      [this, id, devices, why, run = live.run.string()](Change& change) {
        const double now = wall_seconds();
        change.set_run(id, run, now);
        change.set_phase(id, Phase::running, why, now);
        change.set_holdings(id, holding(devices), why, now);
      },
      [this, id, devices] {
        Live& live = live_.at(id);
        live.starting = false;
        live.record.phase = Phase::running;
        scheduler_.holds(id, {{0, static_cast<int32_t>(devices)}}, schedule_time());
        if (stopping_) return ended(id, {{.phase = control::Phase::preempted}, {}});
        start_host(live, devices);
        follow_wish(live);
      });
}

void Service::Impl::start_host(Live& live, int64_t workers) {
  const JobId id = live.record.id;
  try {
    const run::RunFolder folder = made_run(live.run, live.job);
    live.lock = std::make_unique<run::RunLock>(folder.path(), run::RunLock::kController);
    folder.remove_leftovers();
    auto launcher =
        server::make_local_launcher(loop_, {options_.worker, folder.log_file(), 1}, folder.path());
    server::JobHostOptions options;
    options.run = folder.path();
    options.membership = link::membership_options(live.job);
    options.membership.max_workers = live.job.train.virtual_ranks;
    options.keep_checkpoints = live.job.checkpoint.keep;
    options.on_line = [this, id](control::WorkerId, std::string_view line) { hear(id, line); };
    live.host = std::make_unique<server::JobHost>(loop_, *live.lock, std::move(options),
                                                  std::move(launcher));
    live.host->start(workers,
                     [this, id](const server::JobOutcome& outcome) { ended(id, outcome); });
  } catch (const Error&) {
    live.host.reset();
    live.lock.reset();
    live.starting = true;  // until ended(): nobody else ends it
    poster()([this, id, error = std::current_exception()] { ended(id, {{}, error}); });
  }
}

void Service::Impl::resize(Live& live, int64_t devices) {
  const JobId id = live.record.id;
  live.asked = devices;
  const std::string why = live.why;
  live.host->request(
      control::ResizeJob{devices}, [this, id, devices, why](const link::RequestAnswer& answer) {
        const auto found = live_.find(id);
        if (found == live_.end() || !found->second.host) return;
        Live& live = found->second;
        if (!answer.refused.empty()) {  // it is just ending; what it has it keeps until then
          live.asked = live.granted = std::max<int64_t>(1, live.host->wanted_workers());
          return;
        }
        live.record.reason = why;
        scheduler_.holds(id, {{0, static_cast<int32_t>(devices)}}, schedule_time());
        write([this, id, devices, why](Change& change) {
          if (change.job(id).phase == Phase::running)
            change.set_holdings(id, holding(devices), why, wall_seconds());
        });
      });
}

void Service::Impl::preempt(Live& live) {
  if (std::exchange(live.stopping, true)) return;
  live.host->request(control::PreemptJob{}, [](const link::RequestAnswer&) {});
}

void Service::Impl::hear(JobId id, std::string_view line) {
  const auto known = run::decode(line);
  if (!known || !live_.contains(id)) return;
  if (const auto* progress = std::get_if<run::Progress>(&*known)) {
    scheduler_.progress(id, progress->step, progress->total_steps);
  } else if (const auto* failed = std::get_if<run::Failed>(&*known)) {
    // What a worker says that cannot even reach its controller: another one would say the same.
    Live& live = live_.at(id);
    if (failed->code == ErrorCode::invalid_argument && live.host)
      live.host->give_up(failed->text, failed->code);
  }
}

void Service::Impl::ended(JobId id, const server::JobOutcome& outcome) {
  Live& live = live_.at(id);
  live.host.reset();
  live.lock.reset();
  live.stopping = live.starting = false;
  live.asked = live.granted = 0;
  bool rests = false;
  Phase phase = Phase::queued;
  std::string reason;
  if (outcome.error) {
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      // A full disk, or somebody else who runs it: it is tried again. Damage is not.
      rests = error.code() == ErrorCode::unavailable || error.code() == ErrorCode::conflict;
      reason = error.what();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    if (!rests) phase = Phase::failed;
  } else if (outcome.end.phase == control::Phase::finished) {
    phase = Phase::finished;
    reason = fmt::format("It is done after {} steps.", outcome.end.step);
  } else if (outcome.end.phase == control::Phase::failed) {
    phase = Phase::failed;
    reason = outcome.end.reason;
  } else {
    reason = lack_of_devices(live.record, options_.devices);
    if (reason.empty()) reason = "It made room for others.";
    if (stopping_) reason = "The service stopped; it goes on when the service does.";
  }
  if (phase == Phase::queued && live.record.wish == Wish::cancel) {
    phase = Phase::cancelled;
    reason = "It was cancelled.";
  }
  if (phase == Phase::queued && live.record.wish == Wish::pause) {
    phase = Phase::paused;
    reason = "Its user paused it.";
  }
  if (has_ended(phase)) return end(id, phase, reason);
  live.record.phase = phase;
  live.record.reason = reason;
  if (scheduler_.knows(id)) scheduler_.holds(id, {}, schedule_time());
  if (phase == Phase::paused || rests) scheduler_.remove(id);
  if (phase == Phase::queued && rests) {  // meanwhile nobody waits for it
    live.rest = loop_.after(kPause, [this, id] {
      admit(live_.at(id));
      decide_soon();
    });
  }
  write(
      [id, phase, reason](Change& change) { change.set_phase(id, phase, reason, wall_seconds()); },
      [this] { decide_soon(); });
}

void Service::Impl::write(Write write, std::function<void()> then) {
  writes_.push_back({std::move(write), std::move(then)});
  write_next();
}

void Service::Impl::write_next() {
  if (writing_ || writes_.empty()) return;
  writing_ = true;
  try {
    queue_.post(writes_.front().write, [post = poster(), this](const Error* error) {
      const auto copy = error == nullptr ? std::nullopt : std::optional<Error>(*error);
      post([this, copy] { written(copy); });
    });
  } catch (const Error& error) {  // too many requests wait for the disk
    written(error);
  }
}

void Service::Impl::written(const std::optional<Error>& error) {
  writing_ = false;
  if (error && error->code() == ErrorCode::unavailable) {  // a full disk: it has to wait
    again_ = loop_.after(kAgain, [this] { write_next(); });
    return;
  }
  const Pending done = std::move(writes_.front());
  writes_.pop_front();
  // Its own changes never contradict the store; if they did, this says so.
  if (error) log_line(fmt::format("store: {}", error->what()));
  if (done.then) done.then();
  write_next();
  if (!stopping_ || !writes_.empty() || writing_) return;
  for (const auto& [id, live] : live_) {
    if (live.host || live.starting) return;
  }
  if (on_stopped_) poster()(std::exchange(on_stopped_, {}));
}

void Service::Impl::stop(std::function<void()> on_stopped) {
  http_.reset();
  on_stopped_ = std::move(on_stopped);
  stopping_ = true;
  for (auto& [id, live] : live_) {
    if (live.host) preempt(live);
  }
  write([](Change& change) { change.record(0, "stopped", "{}", wall_seconds()); });
}

Service::Service(net::Loop& loop, ServiceOptions options)
    : impl_(std::make_unique<Impl>(loop, std::move(options))) {}
Service::~Service() = default;
void Service::stop(std::function<void()> on_stopped) { impl_->stop(std::move(on_stopped)); }
uint16_t Service::port() const { return impl_->port(); }

}  // namespace ductile::cluster
