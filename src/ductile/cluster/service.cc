#include "ductile/cluster/service.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/log.h"
#include "ductile/base/options.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/control/membership.h"
#include "ductile/link/membership_options.h"
#include "ductile/run/folder.h"
#include "ductile/run/lock.h"
#include "ductile/run/progress.h"
#include "ductile/server/job_host.h"
#include "ductile/spec/job.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAgain{1000};  // after a write that failed
constexpr milliseconds kPause{5000};  // after a job that could not be started

double now_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

spec::JobOptions job_of(const nlohmann::json& spec) {
  const JsonFields fields(spec, "spec");
  fields.only({"job"});
  spec::JobOptions job;
  OptionSet options(job);
  options.read_toml_text(fields.text("job"), "spec.job");
  spec::check(job);
  return job;
}

sched::Tier tier_of(const std::string& name) {
  constexpr sched::Tier kTiers[] = {sched::Tier::premium, sched::Tier::standard,
                                    sched::Tier::basic};
  std::vector<std::string> known;
  for (const sched::Tier tier : kTiers) {
    if (sched::to_string(tier) == name) return tier;
    known.emplace_back(sched::to_string(tier));
  }
  fail_unknown_name("tier", name, known);
}

spec::Cluster this_machine(const ServiceOptions& options) {
  spec::NodeGroup group;
  group.type = options.device_type;
  group.devices = options.devices;
  group.hosts = {options.node};
  return {{group}, {}};
}

}  // namespace

void check_spec(const Submission& submission, const nlohmann::json& spec, int64_t devices) {
  if (submission.kind != "train")
    fail(ErrorCode::invalid_argument, "kind = \"{}\": this service runs jobs of kind \"train\"",
         submission.kind);
  tier_of(submission.tier);
  const spec::JobOptions job = job_of(spec);
  if (submission.min_devices > devices)
    fail(ErrorCode::invalid_argument, "min_devices = {}: this service has {}",
         submission.min_devices, devices);
  if (submission.max_devices > job.train.virtual_ranks)
    fail(ErrorCode::invalid_argument,
         "max_devices = {}: train.virtual_ranks is {}, and each device hosts at least one of them",
         submission.max_devices, job.train.virtual_ranks);
}

class Service::Impl {
 public:
  Impl(net::Loop& loop, ServiceOptions options);
  ~Impl();

  void stop(std::function<void()> on_stopped);

  const ServiceOptions& options() const { return options_; }
  uint16_t port() const { return http_->port(); }

 private:
  // A job that has not ended.
  struct Live {
    JobRecord record;
    spec::JobOptions job;
    fs::path run;
    int64_t granted = 0;  // devices that the policy wants it to hold
    std::string why;      // of this grant
    int64_t held = 0;     // that its workers take, or may take in a moment
    bool starting = false, stopping = false;
    net::Deadline not_before{};  // after a start that failed
    // Where the steps of the present workers were counted from.
    int64_t generation = -1, first_step = 0;
    net::Deadline first_time{};
    std::unique_ptr<run::RunLock> lock;
    std::unique_ptr<server::JobHost> host;
  };
  using Write = std::function<void(Change&)>;

  void take_up(JobRecord record);
  void look();  // at what the store says anew
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
  void end_without_host(JobId id, Phase phase, const std::string& reason);
  void decide_soon();
  // Calls it in the loop, from any thread, if this object is still there.
  std::function<void(std::function<void()>)> poster();
  int64_t free_devices() const;
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
  Revision seen_ = 0;
  struct Pending {
    Write write;
    std::function<void()> then;
  };
  std::deque<Pending> writes_;
  bool writing_ = false, stopping_ = false;
  std::function<void()> on_stopped_;
  net::Loop::Timer round_, again_, decide_soon_, settle_soon_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Api> api_;
  std::unique_ptr<HttpServer> http_;  // ends first: nothing asks any more
};

Service::Impl::Impl(net::Loop& loop, ServiceOptions options)
    : loop_(loop),
      options_(std::move(options)),
      store_((fs::create_directories(options_.folder / "runs"), options_.folder / "store.db")),
      queue_(store_),
      reader_(options_.folder / "store.db"),
      scheduler_(this_machine(options_), options_.policy, options_.interval) {
  seen_ = reader_.last_event();
  for (JobRecord& record : reader_.live_jobs()) take_up(std::move(record));
  // What ran when the last service ended goes on first, on what it held.
  for (auto& [id, live] : live_) {
    if (live.record.phase != Phase::running) continue;
    for (const Holding& h : reader_.holdings(id)) live.granted += h.devices;
    live.granted = std::clamp<int64_t>(live.granted, 1, options_.devices);
    live.held = live.granted;
    scheduler_.holds(id, {{0, static_cast<int32_t>(live.held)}}, now_seconds());
    start_host(live, live.granted);
  }
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
    // Options that this program no longer knows.
    const std::string why = error.what();
    write([id, why](Change& change) { change.set_phase(id, Phase::failed, why, now_seconds()); });
    return;
  }
  live.run = options_.folder / "runs" /
             fmt::format("{}-{}", id, run::file_name_of(record.submission.name));
  live.record = std::move(record);
  Live& kept = live_[id] = std::move(live);
  if (kept.record.phase != Phase::paused) {
    const Submission& s = kept.record.submission;
    JobDemand demand;
    demand.id = id;
    demand.name = s.name;
    demand.application = s.name;
    demand.arrival = kept.record.submitted;
    demand.tier = tier_of(s.tier);
    demand.min_devices = static_cast<int32_t>(s.min_devices);
    demand.max_devices = static_cast<int32_t>(std::min(s.max_devices, options_.devices));
    demand.batch = static_cast<int32_t>(kept.job.train.batch_size);
    scheduler_.add(demand);
  }
  follow_wish(kept);
}

void Service::Impl::look() {
  constexpr int64_t kPage = 1000;
  std::set<JobId> changed;
  while (true) {
    const std::vector<Event> events = reader_.events(seen_, kPage);
    for (const Event& event : events) {
      seen_ = event.seq;
      if (event.job != 0) changed.insert(event.job);
      if (event.kind == "drain") scheduler_.drain(0, true);
      if (event.kind == "undrain") scheduler_.drain(0, false);
    }
    if (static_cast<int64_t>(events.size()) < kPage) break;
  }
  for (const JobId id : changed) {
    JobRecord record = reader_.job(id);
    const auto known = live_.find(id);
    if (known == live_.end()) {
      if (!has_ended(record.phase)) take_up(std::move(record));
      continue;
    }
    known->second.record.wish = record.wish;  // the rest is this service's own doing
    follow_wish(known->second);
  }
  if (!changed.empty()) decide_soon();
}

void Service::Impl::follow_wish(Live& live) {
  const JobId id = live.record.id;
  const Wish wish = live.record.wish;
  if (live.starting || stopping_) return;  // looked at again when it has started
  if (live.host) {
    if (wish != Wish::run) preempt(live);
    return;
  }
  if (wish == Wish::cancel) return end_without_host(id, Phase::cancelled, "It was cancelled.");
  if (wish == Wish::pause && live.record.phase == Phase::queued) {
    scheduler_.remove(id);
    live.granted = 0;
    live.record.phase = Phase::paused;
    write([id](Change& change) {
      change.set_phase(id, Phase::paused, "Its user paused it.", now_seconds());
    });
  }
  if (wish == Wish::run && live.record.phase == Phase::paused) {
    JobRecord record = live.record;
    record.phase = Phase::queued;
    live_.erase(id);
    write([id](Change& change) {
      change.set_phase(id, Phase::queued, "Its user let it go on.", now_seconds());
    });
    take_up(std::move(record));
  }
}

void Service::Impl::end_without_host(JobId id, Phase phase, const std::string& reason) {
  if (scheduler_.knows(id)) scheduler_.remove(id);
  live_.erase(id);
  write(
      [id, phase, reason](Change& change) { change.set_phase(id, phase, reason, now_seconds()); });
}

// How fast the job is, from the steps that it committed while its workers were the same.
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
    live.granted = live.stopping ? 0 : live.held;
    measure(live);
  }
  for (const Allotment& allotment : scheduler_.decide(now_seconds())) {
    Live& live = live_.at(allotment.job);
    live.granted = sched::device_count(allotment.allocation);
    live.why = allotment.reason;
  }
  settle();
  for (auto& [id, live] : live_) {
    if (live.host || live.starting || live.record.phase != Phase::queued) continue;
    std::string why = scheduler_.knows(id) ? scheduler_.why(id) : "";
    if (why.empty() || why == live.record.reason) continue;
    live.record.reason = why;
    write([id = id, why](Change& change) { change.set_reason(id, why, now_seconds()); });
  }
}

int64_t Service::Impl::free_devices() const {
  int64_t held = 0;
  for (const auto& [id, live] : live_) held += live.held;
  return options_.devices - held;
}

// Goes from what is held to what is granted: first what gives up devices, then, as far as they are
// free, what takes them.
void Service::Impl::settle() {
  if (stopping_) return;
  for (auto& [id, live] : live_) {
    if (!live.host || live.stopping) continue;
    if (live.granted == 0) {
      preempt(live);
    } else if (live.granted < live.host->wanted_workers()) {
      resize(live, live.granted);
    }
  }
  for (auto& [id, live] : live_) {
    if (live.granted == 0 || live.starting || live.stopping) continue;
    const int64_t free = free_devices();
    if (!live.host) {
      const bool may = live.record.phase == Phase::queued && loop_.now() >= live.not_before;
      if (may && free >= live.granted) begin(live, live.granted);
    } else if (live.granted > live.held && free > 0) {
      resize(live, std::min(live.granted, live.held + free));
    }
  }
}

// The store says that a job runs before any of it does.
void Service::Impl::begin(Live& live, int64_t devices) {
  const JobId id = live.record.id;
  live.starting = true;
  live.held = devices;
  const std::string why = live.why;
  write(
      [this, id, devices, why, run = live.run.string()](Change& change) {
        const double now = now_seconds();
        change.set_run(id, run, now);
        change.set_phase(id, Phase::running, why, now);
        change.set_holdings(id, holding(devices), why, now);
      },
      [this, id, devices] {
        Live& live = live_.at(id);
        live.starting = false;
        live.record.phase = Phase::running;
        scheduler_.holds(id, {{0, static_cast<int32_t>(devices)}}, now_seconds());
        if (stopping_) return ended(id, {{.phase = control::Phase::preempted}, {}});
        start_host(live, devices);
        follow_wish(live);
      });
}

void Service::Impl::start_host(Live& live, int64_t workers) {
  const JobId id = live.record.id;
  try {
    if (!fs::exists(live.run)) run::RunFolder::create_at(live.run, OptionSet(live.job).to_toml());
    const run::RunFolder folder = run::RunFolder::open(live.run);
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
    options.on_note = [this, id](const control::Note& note) {
      if (note.event != "generation") return;
      Live& live = live_.at(id);
      if (live.host) live.held = std::max<int64_t>(1, live.host->wanted_workers());
      settle_soon_ = loop_.after(milliseconds(0), [this] { settle(); });
    };
    live.host = std::make_unique<server::JobHost>(loop_, *live.lock, std::move(options),
                                                  std::move(launcher));
    live.host->start(workers,
                     [this, id](const server::JobOutcome& outcome) { ended(id, outcome); });
  } catch (const Error&) {
    live.host.reset();
    live.lock.reset();
    poster()([this, id, error = std::current_exception()] { ended(id, {{}, error}); });
  }
}

void Service::Impl::resize(Live& live, int64_t devices) {
  const JobId id = live.record.id;
  if (devices > live.held) live.held = devices;
  const std::string why = live.why;
  live.host->request(control::ResizeJob{devices},
                     [this, id, devices, why](const link::RequestAnswer& answer) {
                       if (!answer.refused.empty() || !live_.contains(id)) return;
                       scheduler_.holds(id, {{0, static_cast<int32_t>(devices)}}, now_seconds());
                       write([this, id, devices, why](Change& change) {
                         if (change.job(id).phase == Phase::running)
                           change.set_holdings(id, holding(devices), why, now_seconds());
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
  live.held = live.granted = 0;
  Phase phase = Phase::queued;
  std::string reason;
  if (outcome.error) {
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      // A full disk, or somebody else who runs it: it is tried again. Damage is not.
      if (error.code() != ErrorCode::unavailable && error.code() != ErrorCode::conflict)
        phase = Phase::failed;
      live.not_before = loop_.now() + kPause;
      reason = error.what();
    }
  } else if (outcome.end.phase == control::Phase::finished) {
    phase = Phase::finished;
    reason = fmt::format("It is done after {} steps.", outcome.end.step);
  } else if (outcome.end.phase == control::Phase::failed) {
    phase = Phase::failed;
    reason = outcome.end.reason;
  } else {
    reason = stopping_ ? "The service stopped; it goes on when the service does."
                       : "It made room for others.";
  }
  if (phase == Phase::queued && live.record.wish == Wish::cancel) {
    phase = Phase::cancelled;
    reason = "It was cancelled.";
  }
  if (phase == Phase::queued && live.record.wish == Wish::pause) {
    phase = Phase::paused;
    reason = "Its user paused it.";
  }
  if (phase != Phase::queued) {
    if (scheduler_.knows(id)) scheduler_.remove(id);
    if (has_ended(phase)) {
      live_.erase(id);
    } else {
      live.record.phase = phase;
    }
  } else {
    live.record.phase = phase;
    scheduler_.holds(id, {}, now_seconds());
  }
  write(
      [id, phase, reason](Change& change) {
        if (change.job(id).phase != phase) change.set_phase(id, phase, reason, now_seconds());
      },
      [this] { decide_soon(); });
}

void Service::Impl::write(Write write, std::function<void()> then) {
  writes_.push_back({std::move(write), std::move(then)});
  write_next();
}

void Service::Impl::write_next() {
  if (writing_ || writes_.empty()) return;
  writing_ = true;
  queue_.post(writes_.front().write, [post = poster(), this](const Error* error) {
    const auto copy = error == nullptr ? std::nullopt : std::optional<Error>(*error);
    post([this, copy] { written(copy); });
  });
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
  write([](Change& change) { change.record(0, "stopped", "{}", now_seconds()); });
}

Service::Service(net::Loop& loop, ServiceOptions options)
    : impl_(std::make_unique<Impl>(loop, std::move(options))) {}
Service::~Service() = default;
void Service::stop(std::function<void()> on_stopped) { impl_->stop(std::move(on_stopped)); }
uint16_t Service::port() const { return impl_->port(); }
fs::path Service::socket() const { return impl_->options().folder / "api.sock"; }

}  // namespace ductile::cluster
