#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/log.h"
#include "ductile/cluster/service_impl.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAgain{1000};                   // after a store that could not be read
constexpr milliseconds kShow{500};                     // while jobs start
constexpr double kSoonest = 0.02, kLookAtDrains = 60;  // seconds
constexpr std::chrono::minutes kSayAgain{10};
constexpr const char* kClock = "clock";  // its name in the store
constexpr size_t kMostMemory = 16 << 20;
constexpr const char* kMemory = "scheduler";  // its name in the store

}  // namespace

void Service::Impl::look() {
  try {
    look_at_events();
  } catch (const Error& error) {
    log_line(fmt::format("store: {}", error.what()));
    if (error.code() == ErrorCode::data_loss && !stopping_) return give_up(error);
    look_again_ = loop_.after(kAgain, [this] { look(); });
  }
}

void Service::Impl::look_at_drains() {
  const double now = wall_seconds();
  std::set<std::string> drained;
  drain_reasons_.clear();
  std::map<std::string, double> leave;
  double next = INFINITY;  // when there is news by itself
  bool over = false;
  for (const Drain& drain : reader_.drains()) {
    over = over || drain.over(now);
    if (drain.over(now)) continue;
    if (drain.holds(now)) {
      drained.insert(drain.node);
      drain_reasons_[drain.node] = drain.reason;
      next = std::min(next, drain.ends.value_or(INFINITY));
    } else {
      leave[drain.node] = schedule_time() + (drain.starts - now);
      next = std::min(next, drain.starts);
    }
  }
  if (over) writer_.write_newest("drains", [now](Change& change) { change.end_drains(now); });
  for (int32_t n = 0; n < nodes_.count(); ++n) {
    const auto found = leave.find(nodes_.name(n));
    scheduler_.leaves(n, found == leave.end() ? INFINITY : found->second);
  }
  nodes_.drained(drained);
  drains_.cancel();
  // A clock that is set meanwhile is looked at again within a minute.
  if (next == INFINITY) return;
  const double wait = std::clamp(next - now, kSoonest, kLookAtDrains);
  await_drains(milliseconds(static_cast<int64_t>(1000 * wait)));
}

void Service::Impl::await_drains(milliseconds wait) {
  drains_ = loop_.after(wait, [this] {
    try {
      look_at_drains();
    } catch (const Error& error) {
      log_line(fmt::format("store: {}", error.what()));
      await_drains(kAgain);
    }
  });
}

// Where its devices are to be. GPUs that have gone since they were granted are no reason to wait
// there.
bool Service::Impl::finds_gpus(Live& live) {
  const int64_t wanted = gpus_of(live.work);
  if (wanted == 0 || live.granted.empty()) return true;
  const int32_t node = live.granted.front().node;
  const auto& hardware = nodes_.hardware(node);
  int64_t left = hardware ? hardware->usable_gpus : 0;
  if (left < wanted) {
    live.granted.clear();
    scheduler_.withdrawn(live.record.id);
    return false;
  }
  left += hardware->lost_gpus;  // which are among those that others hold
  for (const auto& [id, other] : live_)
    if ((other.runner || other.starting) && held(other)[static_cast<size_t>(node)] > 0)
      left -= gpus_of(other.work);
  return left >= wanted;
}

void Service::Impl::look_at_hardware() {
  std::map<std::string, server::NodeHardware> known;
  for (int32_t n = 0; n < nodes_.count(); ++n) {
    const auto& hardware = nodes_.hardware(n);
    if (hardware)
      scheduler_.has_gpus(n, static_cast<int32_t>(hardware->usable_gpus),
                          static_cast<int32_t>(hardware->lost_gpus));
    else
      scheduler_.has_gpus(n, 0);
    if (hardware) known.emplace(nodes_.name(n), *hardware);
  }
  view_.set_hardware(std::move(known));
}

void Service::Impl::look_at_nodes() {
  if (std::exchange(hardware_seen_, nodes_.hardware_changes()) != nodes_.hardware_changes())
    look_at_hardware();
  for (int32_t n = 0; n < nodes_.count(); ++n) {
    scheduler_.drain(n, !nodes_.keeps_jobs(n),
                     fmt::format("{} {}", nodes_.name(n), why_to_leave(n)));
    scheduler_.away(n, nodes_.away(n), fmt::format("{} does not answer now", nodes_.name(n)));
  }
  decide_soon();
}

// Why no job may stay on the node, as the end of a sentence; empty: they may.
std::string Service::Impl::why_to_leave(int32_t node) const {
  if (nodes_.keeps_jobs(node)) return "";
  const auto drain = drain_reasons_.find(nodes_.name(node));
  if (drain != drain_reasons_.end())
    return drain->second.empty() ? "is drained" : fmt::format("is drained, \"{}\"", drain->second);
  const NodeRecord& record = nodes_.record(node);
  std::string why = record.why;
  while (why.ends_with('.')) why.pop_back();
  return fmt::format("{}{}{}", record.state == NodeState::lost ? "is lost" : "is about to go",
                     why.empty() ? "" : ": ", why);
}

// "node one is drained and node two is lost"; empty: it may stay on all that it has.
std::string Service::Impl::nodes_to_leave(const Live& live) const {
  std::string out;
  for (const spec::NodeShare& share : live.asked)
    if (!nodes_.keeps_jobs(share.node))
      out += fmt::format("{}node {} {}", out.empty() ? "" : " and ", nodes_.name(share.node),
                         why_to_leave(share.node));
  return out;
}

// How long before a node is gone its training jobs begin to leave it, in seconds: three times what
// any of them has needed to save or to change, since all may save at once, and a tenth of the
// notice at least. Infinite where one has not saved yet.
double Service::Impl::time_to_leave(int32_t node) const {
  constexpr double kTimes = 3, kLeastPart = 0.1;
  double longest = 0;
  for (const auto& [id, live] : live_) {
    if (!live.runner || !std::holds_alternative<spec::JobOptions>(live.work)) continue;
    if (held(live)[static_cast<size_t>(node)] == 0) continue;
    const JobProgress progress = live.runner->progress();
    const double save = std::max(live.save, progress.save);
    if (save <= 0) return INFINITY;
    longest = std::max({longest, save, progress.pause_of_start ? 0 : progress.pause});
  }
  return std::max(kTimes * longest, kLeastPart * nodes_.notice(node));
}

void Service::Impl::look_at_events() {
  constexpr int64_t kPage = 1000;
  std::set<JobId> changed;
  std::map<JobId, Event> reloads;
  bool drains = false;
  Revision seen = seen_;
  while (true) {
    const std::vector<Event> events = reader_.events(seen, kPage);
    for (const Event& event : events) {
      seen = event.seq;
      // A reason is this service's own, and of many jobs at once.
      if (event.job != 0 && event.kind != "reason") changed.insert(event.job);
      if (event.kind == "drain" || event.kind == "undrain") drains = true;
      if (event.kind == kReload) reloads[event.job] = event;
    }
    if (static_cast<int64_t>(events.size()) < kPage) break;
  }
  if (drains) look_at_drains();
  for (const JobId id : changed) {
    std::optional<JobRecord> record = reader_.job_if_kept(id);
    if (!record) continue;  // it has ended, and was removed since its events were read
    const auto known = live_.find(id);
    if (known == live_.end()) {
      if (!has_ended(record->phase) && !ending_.contains(id)) take_up(std::move(*record));
      continue;
    }
    // The rest is this service's own doing.
    known->second.record.wish = record->wish;
    known->second.record.held_by = record->held_by;
    follow_devices(known->second, record->submission);
    follow_wish(known->second);
  }
  for (const auto& [id, event] : reloads)
    if (const auto found = live_.find(id); found != live_.end())
      follow_reload(found->second, event);
  seen_ = seen;
  if (!changed.empty()) follow_demand();
  if (drains || !changed.empty()) decide_soon();
}

void Service::Impl::follow_devices(Live& live, const Submission& wanted) {
  if (wanted == live.record.submission) return;
  live.record.submission = wanted;
  const JobId id = live.record.id;
  if (scheduler_.knows(id)) {
    scheduler_.set_bounds(id, static_cast<int32_t>(wanted.min_devices),
                          static_cast<int32_t>(std::min(wanted.max_devices, nodes_.devices())));
    show_claim();
    show_pipelines(live);
  } else if (live.record.phase == Phase::queued && !live.rest.armed()) {
    admit(live);  // it asked for more than there is
  }
}

void Service::Impl::follow_wish(Live& live) {
  const JobId id = live.record.id;
  const Wish wish = live.record.wish;
  if (live.starting || stopping_) return;  // looked at again when it has started
  if (live.runner) {
    if (wish != Wish::run) preempt(live);
    return;
  }
  if (wish == Wish::cancel) return end(id, Phase::cancelled, "It was cancelled.");
  if (wish == Wish::pause && live.record.phase == Phase::queued) {
    scheduler_.remove(id, false);
    show_claim();
    live.rest.cancel();
    live.granted.clear();
    live.record.phase = Phase::paused;
    close_front(live);
    writer_.write([id, reason = text_of_pause(live.record)](Change& change) {
      change.set_phase(id, Phase::paused, reason, wall_seconds());
    });
  }
  if (wish == Wish::run && live.record.phase == Phase::paused) {
    JobRecord record = live.record;
    record.phase = Phase::queued;
    live_.erase(id);
    writer_.write([id](Change& change) {
      change.set_phase(id, Phase::queued, "Its user let it go on.", wall_seconds());
    });
    take_up(std::move(record));
  }
}

// Jobs that rest or are paused need nothing. Those that run use up to what they asked for.
void Service::Impl::follow_demand() {
  if (!engine_->borrows_nodes()) return;  // this looks at all jobs
  Demand demand;
  for (int32_t n = 0; n < nodes_.count(); ++n) {
    Demand::Node& node = demand.nodes.emplace_back();
    node.usable = nodes_.keeps_jobs(n);
    if (const auto& hardware = nodes_.hardware(n))
      node.gpus = hardware->usable_gpus + hardware->lost_gpus;
  }
  for (const auto& [id, live] : live_) {
    const Submission& asked = live.record.submission;
    const int64_t gpus = gpus_of(live.work);
    const Counts has = held(live);
    bool holds = false;
    for (size_t n = 0; n < has.size(); ++n) {
      if (has[n] == 0) continue;
      holds = true;
      demand.nodes[n].devices += has[n];
      if (gpus == 0) continue;
      demand.nodes[n].of_gpu_jobs.devices += has[n];
      demand.nodes[n].of_gpu_jobs.gpus += gpus;
    }
    if (!scheduler_.knows(id) || live.record.wish != Wish::run) continue;
    // Lent nodes come last, and are in one region, which it may not enter.
    if (!asked.movable && asked.region != cluster_.groups.back().region) continue;
    const int64_t useful = scheduler_.service_needs(id).value_or(asked.max_devices);
    if (gpus == 0) demand.devices += useful;
    demand.waits = demand.waits || (!holds && useful > 0);
    demand.jobs = demand.jobs * 31 % 1'000'000'007 + id % 1'000'003;
    if (gpus == 0 && !holds && std::holds_alternative<CommandSpec>(live.work))
      demand.on_one_node.push_back(asked.min_devices);
    if (gpus > 0 && !holds) demand.on_gpus.push_back({asked.min_devices, gpus});
  }
  engine_->follow(demand);
}

// Without it jobs and policy learn the same again: damage is said, and stops nothing.
void Service::Impl::recall() {
  try {
    const std::string text = reader_.memory(kMemory);
    if (text.empty()) return;
    scheduler_.restore(parse_json(text, "what the scheduler had learnt", ErrorCode::data_loss),
                       schedule_time());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_loss) throw;
    log_line(error.message());
  }
}

void Service::Impl::remember() {
  if (stopping_) return;
  // Once a round, and of very many jobs less often. Where the disk is full nothing piles up.
  constexpr int kMostShare = 20;
  const net::Deadline begin = loop_.now();
  if (writer_.idle()) remember_now();
  const auto round = milliseconds(static_cast<int64_t>(options_.interval * 1000));
  remember_ = loop_.after(std::max<net::Clock::duration>(round, kMostShare * (loop_.now() - begin)),
                          [this] { remember(); });
}

void Service::Impl::remember_now() {
  std::string text = dump_json(scheduler_.state());
  const bool too_much = text.size() > kMostMemory;
  if (too_much && !std::exchange(forgets_, true))
    log_line(
        fmt::format("what the scheduler has learnt is {} bytes, of which at most {} are kept: the "
                    "next service will learn anew",
                    text.size(), kMostMemory));
  if (too_much) return;
  forgets_ = false;
  writer_.write_newest(
      kMemory, [text = std::move(text)](Change& change) { change.set_memory(kMemory, text); });
}

// What an earlier service believed last; of a store that has no such time yet, when something
// happened last.
double Service::Impl::known_time() {
  const std::string kept = reader_.memory(kClock);
  double known = 0;
  if (std::from_chars(kept.data(), kept.data() + kept.size(), known).ec == std::errc() && known > 0)
    return known;
  const std::vector<Event> last = reader_.newest_events(1);
  known = last.empty() ? wall_seconds() : last[0].time;
  queue_.post([known](Change& change) { change.set_memory(kClock, fmt::format("{:.0f}", known)); },
              [](const Error*) {});
  return known;
}

// Where the clock is not believed nothing is removed for its age, and the rest as ever.
Retention Service::Impl::retention_at(double wall) {
  Retention out = options_.retention;
  const bool doubted =
      !clock_.now(wall, std::chrono::duration<double>(loop_.now().time_since_epoch()).count());
  if (doubted && !clock_doubted_)
    log_line(
        fmt::format("the clock is {:.0f} days ahead of what it said last: until it has gone on for "
                    "a day nothing is removed from the store for its age",
                    (wall - clock_.known()) / TrustedTime::kDay));
  clock_doubted_ = doubted;
  if (doubted) out.seconds = 0;
  return out;
}

// A little at a time on the thread that commits, so that nobody waits for it.
void Service::Impl::prune() {
  constexpr double kKeepClock = 3600;
  constexpr int64_t kMost = 500;  // rows
  static constexpr milliseconds kBetween{20}, kNext{60'000};
  const auto more = std::make_shared<bool>();
  const auto next = [post = make_poster(loop_, alive_), this, more](const Error* error) {
    post([this, again = error == nullptr && *more,
          trouble = error == nullptr ? std::string() : error->message()] {
      if (!trouble.empty() && trouble != prune_trouble_)
        log_line(fmt::format(
            "store: what is too old could not be removed, and is tried again each minute: {}",
            trouble));
      prune_trouble_ = trouble;
      prune_ = loop_.after(again ? kBetween : kNext, [this] { prune(); });
    });
  };
  const double now = wall_seconds();
  const Retention retention = retention_at(now);
  const bool keeps = clock_.known() >= clock_kept_ + kKeepClock;
  if (keeps) clock_kept_ = clock_.known();
  try {
    queue_.post(
        [more, retention, now,
         clock = keeps ? fmt::format("{:.0f}", clock_kept_) : std::string()](Change& change) {
          *more = change.prune(retention, now, kMost);
          if (!clock.empty()) change.set_memory(kClock, clock);
        },
        next);
  } catch (const Error&) {  // too many others wait for the disk
    prune_ = loop_.after(kNext, [this] { prune(); });
  }
}

LiveState Service::Impl::state_of(const Live& live) const {
  using Moment = LiveState::Moment;
  using Cause = LiveState::Cause;
  const JobId id = live.record.id;
  if (live.runner && live.stopping) {
    const Wish wish = live.record.wish;
    if (wish == Wish::pause)
      return {Moment::saving, who_paused(live.record) + " paused it", Cause::user};
    if (wish == Wish::cancel) return {Moment::saving, "it is being cancelled", Cause::user};
    if (stopping_) return {Moment::saving, "the service stops", Cause::end};
    if (!live.leaves.empty()) return {Moment::saving, live.leaves, Cause::node};
    return {Moment::saving, "others get what it holds", Cause::room};
  }
  const JobProgress progress = live.runner ? live.runner->progress() : JobProgress{};
  if (live.starting && writer_.refusal()) return {Moment::starting, writer_.refusal()->text};
  if (live.starting || (live.runner && progress.generation < 0)) return {Moment::starting, ""};
  if (live.runner)
    return {Moment::running,
            live.front ? "it answers at " + live.front->address() : progress.trouble, Cause::none,
            live.plans.empty() ? scheduler_.why(id) : ""};
  if (live.rest.armed()) return {Moment::resting, live.record.reason, Cause::failure};
  if (!live.after.empty() && live.record.phase == Phase::queued)
    return {Moment::waiting, text_of_order(live.after), Cause::order};
  const Cause cause = live.record.phase == Phase::paused ? Cause::user
                      : !scheduler_.knows(id)            ? Cause::too_large
                      : scheduler_.over_quota(id)        ? Cause::quota
                                                         : Cause::devices;
  return {Moment::waiting, scheduler_.why(id), cause};
}

void Service::Impl::show_claim() {
  std::optional<NodeClaim> shown;
  if (const auto& claim = scheduler_.claim()) {
    const JobRecord& job = live_.at(claim->job).record;
    shown =
        NodeClaim{job.id,        job.submission.name, job.submission.tier, nodes_.name(claim->node),
                  job.submitted, claim->since};
  }
  view_.set_claim(std::move(shown));
}

void Service::Impl::show() {
  show_claim();
  bool moves = false;  // somebody's state changes soon, without an event
  for (const auto& [id, live] : live_) {
    LiveState state = state_of(live);
    moves = moves || state.moment == LiveState::Moment::starting ||
            (live.runner && !live.front && !state.text.empty());
    view_.set(id, std::move(state));
  }
  if (moves) show_soon_ = loop_.after(kShow, [this] { show(); });
}

void Service::Impl::say(Live& live, const std::string& reason) {
  if (reason.empty() || reason == live.record.reason) return;
  live.record.reason = reason;
  live.unsaid = true;
  write_reasons_in(milliseconds(0));
}

// Each round comes here.
void Service::Impl::write_reasons_in(milliseconds wait) {
  loop_.arm_once(say_soon_, wait, [this] { write_reasons(); });
}

// One job that ends changes what thousands of others wait for, and nobody may wait until all of
// that is on the disk: many are written in one change, when nothing else is, and each job's again
// only after a while. Who asks meanwhile is told what the policy says now (LiveView).
void Service::Impl::write_reasons() {
  constexpr size_t kMost = 500;  // in one change, which others may have to wait for
  static constexpr milliseconds kBetween{20}, kBusy{200};
  if (stopping_) return;
  if (!writer_.idle()) return write_reasons_in(kBusy);
  const net::Deadline now = loop_.now();
  std::vector<std::pair<JobId, std::string>> reasons;
  for (auto& [id, live] : live_) {
    if (live.runner || live.starting || live.record.phase != Phase::queued) live.unsaid = false;
    if (!live.unsaid || (live.said && now < *live.said + kSayAgain)) continue;
    if (reasons.size() == kMost) {
      write_reasons_in(kBetween);
      break;
    }
    live.unsaid = false;
    live.said = now;
    reasons.emplace_back(id, live.record.reason);
  }
  if (reasons.empty()) return;
  writer_.write([reasons = std::move(reasons)](Change& change) {
    const double now = wall_seconds();
    for (const auto& [id, reason] : reasons) change.set_reason(id, reason, now);
  });
}

}  // namespace ductile::cluster
