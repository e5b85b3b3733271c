#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include <unistd.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/log.h"
#include "ductile/cluster/commit_queue.h"
#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/job_runner_impl.h"
#include "ductile/cluster/limits_impl.h"
#include "ductile/cluster/nodes_impl.h"
#include "ductile/cluster/page_access.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/service_impl.h"
#include "ductile/cluster/store_writer_impl.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause{5000};  // after a job that could not be started
constexpr int kMostDoublings = 9;     // of that, up to 43 minutes
constexpr milliseconds kSettle{100};  // while devices are given up
constexpr int kMostWaits = 50;        // of these, until a job whose place is to move is preempted

std::vector<int64_t> by_node(const spec::Allocation& allocation, int32_t nodes) {
  std::vector<int64_t> out(static_cast<size_t>(nodes));
  for (const spec::NodeShare& share : allocation)
    out[static_cast<size_t>(share.node)] += share.devices;
  return out;
}

spec::Allocation as_far_as(const spec::Allocation& wanted, const std::vector<int64_t>& room) {
  spec::Allocation out;
  for (const spec::NodeShare& share : wanted) {
    const int64_t devices = std::min<int64_t>(share.devices, room[static_cast<size_t>(share.node)]);
    if (devices > 0) out.push_back({share.node, static_cast<int32_t>(devices)});
  }
  return out;
}

}  // namespace

Service::Impl::Impl(net::Loop& loop, ServiceOptions options)
    : loop_(loop),
      options_(std::move(options)),
      cluster_(cluster_of(options_)),
      store_(store_of(options_)),
      queue_(store_),
      reader_(store_of(options_)),
      runs_(runs_of(options_, reader_)),
      engine_(engine_of(loop_, options_)),
      nodes_(loop_, cluster_, *engine_, writer_, options_.grace),
      scheduler_(cluster_, options_.policy, options_.interval),
      view_(options_.quotas, options_.gpu_quotas, options_.shares) {
  scheduler_.set_gpu_quotas(gpu_quotas_of(options_));
  if (!runs_.mark.empty() && runs_.mark != reader_.memory(kRunsMark))
    writer_.write([mark = runs_.mark](Change& change) { change.set_memory(kRunsMark, mark); });
  count_beyond_old_runs();
  seen_ = reader_.last_event();
  look_at_hardware();
  for (JobRecord& record : reader_.live_jobs()) {
    recall_run(record);
    take_up(std::move(record));
  }
  nodes_.call_on_change([this] { look_at_nodes(); });
  nodes_.call_for_leave([this](int32_t node) { return time_to_leave(node); });
  look_at_drains();
  recall();
  go_on();
  writer_.call_when_idle([this] { end_if_idle(); });
  writer_.call_at_failure([this](const Error& error) { give_up(error); });
  writer_.call_on_refusal([this] {
    const auto& refusal = writer_.refusal();
    view_.set_refusal(refusal ? refusal->fault : StoreFault::none, refusal ? refusal->text : "");
    show();
  });
  open_interface();
  decide();
  remember();
  prune();
  tell_of_backup();
}

Service::Impl::~Impl() {
  http_.reset();
  for (auto& [id, live] : live_) live.runner.reset();
}

void Service::Impl::take_up(JobRecord record) {
  const JobId id = record.id;
  Live live;
  try {
    const auto read = specs_.read_text(record.submission.kind, reader_.spec(id));
    live.work = read->work;
    live.application = read->application;
    live.plans = read->plans;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) throw;
    return end(id, Phase::failed, error.what());  // options that this program no longer knows
  }
  const std::string name =
      record.run.empty() ? name_of_run(record) : fs::path(record.run).filename().string();
  live.run = runs_.path / name;
  live.arrival = arrived_ = std::max(arrived_, std::min(record.submitted, schedule_time()));
  live.record = std::move(record);
  if (const std::string never = await_earlier(live); !never.empty()) {
    live_[id] = std::move(live);  // what begins after it is told its name
    return end(id, Phase::cancelled, never);
  }
  view_.enter(id, live.record.submission.owner, live.record.submission.tier);
  view_.set_gpus(id, gpus_of(live.work));
  Live& kept = live_[id] = std::move(live);
  if (kept.record.phase == Phase::paused)
    scheduler_.set_aside(id);
  else
    admit(kept);
  if (kept.record.phase != Phase::running) follow_wish(kept);
}

void Service::Impl::admit(Live& live) {
  if (!live.after.empty()) return say(live, text_of_order(live.after));
  if (const std::string lack =
          lack_of_devices(live.record, nodes_.devices(), nodes_.most_devices());
      !lack.empty())
    return say(live, lack);
  keep_plan_of_run(live);
  scheduler_.add(demand_of(live.record, live.work, live.application, teams_of(options_),
                           nodes_.devices(), live.arrival, live.plans));
  show_pipelines(live);
}

// On what it held, as far as there are as many devices as before. Workers may live, so that a job
// that is to run no longer is taken over, too, and then stopped; a command must not begin for that.
void Service::Impl::go_on() {
  Counts left;
  for (int32_t n = 0; n < nodes_.count(); ++n) left.push_back(nodes_.devices(n));
  for (auto& [id, live] : live_) {
    if (live.record.phase != Phase::running) continue;
    const spec::Allocation devices = held_before(id, left);
    const bool begins =
        live.record.wish == Wish::run || !std::holds_alternative<CommandSpec>(live.work);
    const bool goes_on = begins && spec::device_count(devices) >= least_devices(live);
    if (goes_on) {
      live.asked = devices;
      scheduler_.holds(id, devices, schedule_time());
    } else {
      for (const spec::NodeShare& share : devices)
        left[static_cast<size_t>(share.node)] += share.devices;
    }
    if (const std::string lost = lost_run(live.work, runs_, live.run); goes_on && !lost.empty()) {
      live.record.reason = lost + ".";
      writer_.write([id = id, reason = live.record.reason](Change& change) {
        change.set_reason(id, reason, wall_seconds());
      });
    }
    start_runner(live, live.asked);
    if (!live.runner) continue;
    if (!goes_on) preempt(live);
    follow_wish(live);
  }
}

// What the store says that it holds, as far as it is left; which is then less. A service of one
// machine may find it under another name.
spec::Allocation Service::Impl::held_before(JobId id, Counts& left) {
  spec::Allocation out;
  for (const Holding& h : reader_.holdings(id)) {
    const int32_t node = nodes_.count() == 1 ? 0 : nodes_.find(h.node);
    if (node < 0)
      fail(ErrorCode::conflict,
           "job {} runs on node {}, which is not in the cluster file any more; put it back, and "
           "drain the node before you take it away",
           id, h.node);
    int64_t& here = left[static_cast<size_t>(node)];
    const int64_t devices = std::min(h.devices, here);
    here -= devices;
    if (devices > 0) out.push_back({node, static_cast<int32_t>(devices)});
  }
  return out;
}

// The job is over. Until the store says so, it says that the job lives, which must not be believed.
void Service::Impl::end(JobId id, Phase phase, const std::string& reason,
                        std::optional<int64_t> exit_code) {
  scheduler_.remove(id);
  show_claim();
  std::string name;
  if (const auto live = live_.extract(id)) name = live.mapped().record.submission.name;
  view_.forget(id);
  ending_.insert(id);
  writer_.write(
      [id, phase, reason, exit_code](Change& change) {
        change.set_phase(id, phase, reason, wall_seconds(), exit_code);
        change.forget_memory(front_memory_name(id));
      },
      [this, id, phase, name] {
        ending_.erase(id);
        go_on_after(id, name, phase);
        decide_soon();
      });
}

// Workers that an earlier service placed elsewhere, or that were to go when nobody heard it.
void Service::Impl::keep_in_place(Live& live) {
  if (!live.runner || live.stopping || live.asked.empty()) return;
  if (held(live) != by_node(live.asked, nodes_.count()))
    live.runner->resize(nodes_.holdings(live.asked), [](bool) {});
}

void Service::Impl::decide_soon() {
  // A policy of rounds begins one at once where nothing runs: nobody's share is disturbed by it.
  if (stopping_ || !(scheduler_.traits().on_events || scheduler_.nothing_runs())) return;
  // A round over ten thousand jobs takes a while, and each submission asks for one: together they
  // take a quarter of a processor at most, and leave the rest to those who submit.
  const net::Deadline soonest = decided_ + 3 * turn_;
  loop_.arm_once(decide_soon_,
                 std::max<net::Clock::duration>(milliseconds(0), soonest - loop_.now()),
                 [this] { decide(); });
}

void Service::Impl::decide() {
  if (stopping_) return;
  round_ = loop_.after(milliseconds(static_cast<int64_t>(options_.interval * 1000)),
                       [this] { decide(); });
  const auto seconds_since = [](std::chrono::steady_clock::time_point time) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - time).count();
  };
  const auto begin = std::chrono::steady_clock::now();
  for (auto& [id, live] : live_) {
    const auto coming = scheduler_.on_its_way(id);
    live.granted = coming ? *coming : live.stopping ? spec::Allocation{} : live.asked;
    // It is there already: before it could be taken away, it was granted again.
    if (coming == live.asked && live.runner && !live.stopping) scheduler_.withdrawn(id);
    // What is put off is decided about again: other devices may have come meanwhile.
    if (live.runner && !live.stopping && stays_until(live)) scheduler_.withdrawn(id);
    measure(live);
    order_batch(live);
    note_load(live);
    keep_in_place(live);
  }
  const auto asked = std::chrono::steady_clock::now();
  try {
    for (const Allotment& allotment : scheduler_.decide(schedule_time())) {
      Live& live = live_.at(allotment.job);
      live.granted = allotment.allocation;
      live.why = allotment.reason;
    }
  } catch (const Error& error) {  // jobs outlive a policy's fault: each keeps what it has
    log_line(fmt::format("policy {}: {}", options_.policy, error.what()));
  }
  const double decided = seconds_since(asked);
  settle();
  for (auto& [id, live] : live_) {
    if (live.runner || live.starting || live.record.phase != Phase::queued) continue;
    if (scheduler_.knows(id)) say(live, scheduler_.why(id));
  }
  write_reasons();
  show();
  decided_ = loop_.now();
  turn_ = std::chrono::steady_clock::now() - begin;
  view_.note_round(decided, seconds_since(begin));
}

// Devices that its workers take, or may take in a moment: also those of a worker that was told to
// go and has not gone, and of one that somebody else asked for (`ductile resize`).
Service::Impl::Counts Service::Impl::held(const Live& live) const {
  Counts out = by_node(live.asked, nodes_.count());
  if (!live.runner) return out;
  for (const auto& [name, used] : live.runner->used()) {
    const int32_t node = name.empty() ? 0 : nodes_.find(name);
    if (node >= 0) out[static_cast<size_t>(node)] = std::max(out[static_cast<size_t>(node)], used);
  }
  if (nodes_.count() == 1) out[0] = std::max(out[0], live.runner->wanted());
  return out;
}

// Of a node that cannot be used now none is free.
Service::Impl::Counts Service::Impl::free_devices() const {
  Counts free(static_cast<size_t>(nodes_.count()));
  for (int32_t n = 0; n < nodes_.count(); ++n)
    if (nodes_.usable(n)) free[static_cast<size_t>(n)] = nodes_.devices(n);
  for (const auto& [id, live] : live_) {
    const Counts taken = held(live);
    for (size_t n = 0; n < free.size(); ++n) free[n] = std::max<int64_t>(0, free[n] - taken[n]);
  }
  return free;
}

double Service::Impl::schedule_time() const {
  return began_ + std::chrono::duration<double>(loop_.now() - began_steady_).count();
}

// Goes from what is held to what is granted: what gives up devices does so at once, what takes them
// does it as far as they are free. What has to wait for devices looks again.
void Service::Impl::settle() {
  if (stopping_) return;
  bool waits = false;
  std::optional<net::Deadline> next;  // when one is to leave
  Counts free = free_devices();
  for (auto& [id, live] : live_) {
    if (live.starting || live.stopping) continue;
    if (live.runner) {
      if (const auto stays = stays_until(live)) {
        next = next ? std::min(*next, *stays) : *stays;
      } else if (live.granted.empty()) {
        preempt(live);
      } else {
        waits = approach(live, free) || waits;
      }
      continue;
    }
    if (live.granted.empty() || live.record.phase != Phase::queued) continue;
    const Counts wanted = by_node(live.granted, nodes_.count());
    const bool fits = std::ranges::equal(wanted, free, std::less_equal<>()) && finds_gpus(live);
    waits = waits || !fits;
    const spec::Allocation now = fits ? live.granted : as_far_as(live.granted, free);
    if (!fits && (!std::holds_alternative<ServeSpec>(live.work) || now.empty())) continue;
    for (const spec::NodeShare& share : now) free[static_cast<size_t>(share.node)] -= share.devices;
    begin(live, now);
  }
  follow_demand();
  const net::Deadline soon = loop_.now() + kSettle;
  if (waits) next = next ? std::min(*next, soon) : soon;
  if (next) settle_soon_ = loop_.at(*next, [this] { settle(); });
}

// Without what it has on nodes that it has to leave.
bool Service::Impl::has_enough_to_stay(const Live& live) const {
  int64_t rest = 0;
  for (const spec::NodeShare& share : live.asked)
    if (nodes_.keeps_jobs(share.node)) rest += share.devices;
  return rest >= least_devices(live);
}

// Of a job that is to have nothing, since too little is left beside nodes that are about to be
// taken back: whether what it has on the others is granted to nobody else.
bool Service::Impl::keeps_the_rest(const Live& live, const Counts& has) const {
  if (!live.granted.empty()) return false;
  if (has_enough_to_stay(live)) return false;  // it is stopped for another reason
  Counts sum = has;
  for (const auto& [id, other] : live_) {
    if (&other == &live) continue;
    for (const spec::NodeShare& share : other.granted)
      sum[static_cast<size_t>(share.node)] += share.devices;
  }
  for (int32_t n = 0; n < nodes_.count(); ++n) {
    const auto at = static_cast<size_t>(n);
    if (nodes_.keeps_jobs(n) && has[at] > 0 && sum[at] > nodes_.devices(n)) return false;
  }
  return true;
}

// Of a training job that is to have less of nodes that are about to be taken back, and as much as
// now of all others, or nothing, since its least number of devices is not left to it: until when it
// may use what it has, since nobody else can.
std::optional<net::Deadline> Service::Impl::stays_until(const Live& live) const {
  if (!std::holds_alternative<spec::JobOptions>(live.work) || live.granted == live.asked) return {};
  const Counts has = by_node(live.asked, nodes_.count());
  const Counts gets = by_node(live.granted, nodes_.count());
  const bool keeps_rest = keeps_the_rest(live, has);
  std::optional<net::Deadline> out;
  for (int32_t n = 0; n < nodes_.count(); ++n) {
    const auto at = static_cast<size_t>(n);
    if (gets[at] == has[at] || (keeps_rest && nodes_.keeps_jobs(n))) continue;
    const auto stays = nodes_.stays_until(n);
    if (gets[at] > has[at] || !stays) return {};
    out = out ? std::min(*out, *stays) : *stays;
  }
  return out;
}

// Takes a job that runs towards what it was granted, as far as that is free, and its least number
// of devices allows; whether it has to look again. Two jobs that are to change places would wait
// for each other, so a job is saved and begins anew where that takes too long.
bool Service::Impl::approach(Live& live, Counts& free) {
  const Counts has = by_node(live.asked, nodes_.count());
  Counts may = free;
  for (size_t n = 0; n < may.size(); ++n) may[n] += has[n];
  const spec::Allocation next =
      scheduler_.next_whole(live.record.id, live.asked, live.granted, as_far_as(live.granted, may));
  const int64_t least = least_devices(live);
  if (spec::device_count(next) < least) {
    if (++live.waits > kMostWaits) preempt(live);
    return true;
  }
  if (spec::device_count(next) < live.runner->least()) {
    preempt(live);
    return true;
  }
  const bool too_many = live.runner->wanted() > spec::device_count(live.asked);
  if (next != live.asked || (next == live.granted && too_many)) {
    for (const spec::NodeShare& share : next) {
      const auto n = static_cast<size_t>(share.node);
      free[n] -= std::max<int64_t>(0, share.devices - has[n]);
    }
    resize(live, next);
  }
  live.waits = 0;
  return next != live.granted;
}

// Looks at many runs, so not for each job that waits for them.
bool Service::Impl::restores_mark() {
  if (loop_.now() < next_mark_) return false;
  next_mark_ = loop_.now() + kPause;
  return restore_mark(runs_, reader_);
}

// The store says that a job runs before any of it does.
void Service::Impl::begin(Live& live, const spec::Allocation& devices) {
  const JobId id = live.record.id;
  const fs::path known = live.record.run.empty() ? fs::path() : live.run;
  if (const std::string absence = absence_of_runs(runs_, known);
      !absence.empty() && !restores_mark())
    return let_rest(live, absence + ".");
  live.starting = true;
  live.said.reset();
  live.asked = devices;
  std::string why = live.why;
  if (live.record.run.empty()) {
    live.run = unused(live.run);
  } else if (const std::string lost = lost_run(live.work, runs_, live.run); !lost.empty()) {
    why = lost + ": " + why;
  }
  live.record.run = live.run.string();
  live.record.reason = why;
  view_.set(id, state_of(live));
  writer_.write(
      [id, held = nodes_.holdings(devices), why, run = live.run.string()](Change& change) {
        const double now = wall_seconds();
        change.set_run(id, run, now);
        change.set_phase(id, Phase::running, why, now);
        change.set_holdings(id, held, why, now);
      },
      [this, id, devices] {
        Live& live = live_.at(id);
        live.starting = false;
        live.record.phase = Phase::running;
        scheduler_.holds(id, devices, schedule_time());
        show_claim();
        // Paused or cancelled meanwhile, as while the store found no room: none of it begins.
        const bool wanted = live.record.wish == Wish::run;
        if (live.front && !wanted) live.front->close();
        if (stopping_ || !wanted) return ended(id, {});
        start_runner(live, devices);
      });
}

void Service::Impl::start_runner(Live& live, const spec::Allocation& devices) {
  const JobId id = live.record.id;
  try {
    if (const auto* serve = std::get_if<ServeSpec>(&live.work); serve != nullptr && !live.front)
      open_front(live, *serve);
    settle_plan(live, devices);
    // Its user may have it on fewer than have memory for its plan by the plan's figures.
    const int64_t count = std::max<int64_t>(1, spec::device_count(devices));
    const int64_t least = live.plans.empty() ? 1 : std::min(live.plans.front().least, count);
    live.runner = make_runner(loop_, *engine_, options_, live.record, runs_, live.run, live.work,
                              live.front.get(), plan_text(live), least);
    live.runner->start(nodes_.holdings(devices),
                       [this, id](RunnerEnd end) { ended(id, std::move(end)); });
  } catch (const std::exception&) {
    live.runner.reset();
    if (std::holds_alternative<ServeSpec>(live.work)) end_replicas(live);
    live.starting = true;  // until ended(): nobody else ends it
    make_poster(loop_,
                alive_)([this, id, end = end_by(std::current_exception())] { ended(id, end); });
  }
}

void Service::Impl::resize(Live& live, const spec::Allocation& devices) {
  const JobId id = live.record.id;
  live.leaves = nodes_to_leave(live);  // for a command, which moves by ending
  const spec::Allocation before = std::exchange(live.asked, devices);
  live.runner->resize(
      nodes_.holdings(devices), [this, id, devices, before, why = live.why](bool taken) {
        const auto found = live_.find(id);
        if (found == live_.end() || !found->second.runner) return;
        Live& live = found->second;
        if (!taken) {  // it is just ending; what it has it keeps until then
          live.asked = live.granted = before;
          scheduler_.withdrawn(id);
          return;
        }
        if (!live.stopping) live.leaves.clear();
        live.record.reason = why;
        scheduler_.holds(id, devices, schedule_time());
        writer_.write_newest(fmt::format("holdings {}", id),
                             [id, held = nodes_.holdings(devices), why](Change& change) {
                               if (change.job(id).phase == Phase::running)
                                 change.set_holdings(id, held, why, wall_seconds());
                             });
      });
}

void Service::Impl::preempt(Live& live) {
  measure(live);
  if (std::exchange(live.stopping, true)) return;
  live.leaves.clear();
  if (!stopping_ && live.record.wish == Wish::run && !has_enough_to_stay(live))
    live.leaves = nodes_to_leave(live);
  if (live.front && (stopping_ || live.record.wish != Wish::run)) live.front->close();
  live.runner->preempt();
  view_.set(live.record.id, state_of(live));
}

// It cannot begin, for a reason that passes by itself: meanwhile nobody waits for it.
void Service::Impl::let_rest(Live& live, const std::string& why) {
  const JobId id = live.record.id;
  live.granted.clear();
  scheduler_.remove(id, false);
  live.rest = loop_.after(kPause, [this, id] {
    admit(live_.at(id));
    decide_soon();
  });
  say(live, why);
}

void Service::Impl::ended(JobId id, RunnerEnd end) {
  Live& live = live_.at(id);
  end = unless_away(std::move(end), runs_, live.run);
  measure(live);  // a short job is over before anybody has looked
  live.runner.reset();
  live.stopping = live.starting = false;
  live.asked.clear();
  live.granted.clear();
  live.waits = 0;
  const std::string leaves = std::exchange(live.leaves, "");
  const bool rests = end.rests;
  const milliseconds pause = kPause * (1 << std::min(live.redone, kMostDoublings));
  if (end.redoes) ++live.redone;
  Phase phase = end.phase;
  std::string reason = std::move(end.reason);
  if (reason.empty())
    reason = lack_of_devices(live.record, nodes_.devices(), nodes_.most_devices());
  if (reason.empty())
    reason = stopping_         ? "The service stopped; it goes on when the service does."
             : !leaves.empty() ? fmt::format("It had to leave: {}.", leaves)
                               : "It made room for others.";
  else if (end.moves && !leaves.empty())
    reason = fmt::format("{}: {}.", reason.substr(0, reason.find_last_not_of('.') + 1), leaves);
  if (phase == Phase::queued && live.record.wish == Wish::cancel) {
    phase = Phase::cancelled;
    reason = "It was cancelled.";
  }
  if (phase == Phase::queued && live.record.wish == Wish::pause) {
    phase = Phase::paused;
    reason = text_of_pause(live.record);
  }
  if (has_ended(phase)) {
    this->end(id, phase, reason, end.exit_code);
    return end_if_idle();
  }
  if (live.front && live.front->closing()) close_front(live);
  live.record.phase = phase;
  live.record.reason = reason;
  if (scheduler_.knows(id)) scheduler_.holds(id, {}, schedule_time());
  if (phase == Phase::paused || rests) scheduler_.remove(id, false);
  if (phase == Phase::queued && rests) {  // meanwhile nobody waits for it
    live.rest = loop_.after(end.redoes ? pause : kPause, [this, id] {
      admit(live_.at(id));
      decide_soon();
    });
  }
  view_.set(id, state_of(live));
  writer_.write(
      [id, phase, reason](Change& change) { change.set_phase(id, phase, reason, wall_seconds()); },
      [this] { decide_soon(); });
  end_if_idle();
}

Service::Service(net::Loop& loop, ServiceOptions options) {
  // Before it starts a process, which has the same limit of descriptors.
  connections_for(HttpLimits{}.connections);
  impl_ = std::make_unique<Impl>(loop, std::move(options));
}
Service::~Service() = default;
void Service::stop(std::function<void()> on_stopped) { impl_->stop(std::move(on_stopped)); }
uint16_t Service::port() const { return impl_->port(); }
const std::string& Service::address() const { return impl_->address(); }
std::string Service::page_link() { return impl_->page_link(); }

}  // namespace ductile::cluster
