// One file because arrivals, faults, rounds and ends all change the same state, a Simulation's.
#include "ductile/sim/simulator.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/base/interruption.h"
#include "ductile/base/rng.h"
#include "ductile/base/table.h"
#include "ductile/sched/queueing.h"
#include "ductile/sim/job_run_impl.h"

namespace ductile::sim {
namespace {

// Rounds in which work waits, devices idle and nothing runs at all, before the policy is blamed.
constexpr int kMostIdleRounds = 500;
constexpr int kMostFruitlessRounds = 10000;  // a week of a policy's usual ones

// A policy that decides on events learns of a job's end within so many seconds.
constexpr double kNotice = 5;

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

sched::PolicyTraits obeyed(sched::PolicyTraits traits, Information information) {
  if (information == Information::own) return traits;
  const bool full = information != Information::published;
  traits.measures = full && traits.uses == sched::Scaling::adaptive;
  traits.on_events = full;
  return traits;
}

class Simulation {
 public:
  Simulation(const Workload& workload, const Catalog& catalog, const sched::Cluster& cluster,
             sched::Policy& policy, const SimOptions& options);
  SimResult run();

 private:
  void arrive();
  void pass(double until);
  void apply(const FaultEvent& event);
  void round();
  void carry_out(const sched::Decisions& decisions);
  void change(int32_t job, const sched::Allocation& allocation);
  void end_segment(int32_t job, double at);
  Conditions conditions(int32_t job) const;
  void find_interference();
  void find_neighbours();
  bool nothing_runs() const;
  void check_round() const;
  void check_devices_left() const;
  bool drawn(double probability, uint64_t purpose, int32_t job) const;
  double packed_step(const Application& app, int32_t batch, int32_t devices, int32_t type) const;
  std::span<const double> step_seconds(const Submission& job);
  double asked_rate(const Submission& job, const sched::JobView& view, int32_t type) const;
  void end_job(int32_t job, double at);
  void check_arrivals() const;
  void stop();
  int32_t region_of_data(const Submission& job) const;
  void lose_node(int32_t job, int32_t node);

  sched::PolicyTraits traits_;  // of the policy, with SimOptions::information
  Workload workload_;
  const Catalog& catalog_;
  sched::Cluster cluster_;
  sched::Policy& policy_;
  const SimOptions& options_;
  sched::FitCache fits_;
  sched::SharedMeasurements measurements_;
  std::vector<JobRun> runs_;
  std::vector<double> declared_;       // factor on the true length; 0: not declared
  std::vector<sched::JobView> views_;  // of active_, in the same order
  std::vector<int32_t> active_;        // arrived, not finished; rising
  std::vector<FaultEvent> faults_;
  size_t next_fault_ = 0, next_job_ = 0;
  double now_ = 0, next_round_ = 0;
  std::vector<double> node_slow_;
  std::vector<int32_t> node_losses_;         // a node may be lost twice over
  std::vector<std::set<double>> announced_;  // times of losses to come, by node
  double network_slow_ = 1, lost_decisions_ = 0, late_reports_ = 0;
  MessageFaults messages_;
  std::vector<int32_t> data_;  // by job: the region of its data; -1: everywhere
  std::vector<std::unique_ptr<ControlledJob>> controlled_;  // by job, with options_.control
  std::vector<uint8_t> interfered_, beside_others_;         // by job
  std::vector<double> segment_start_;
  std::vector<double> contention_, rounds_lived_;
  std::vector<sched::SlaAccount> accounts_;
  int64_t training_left_ = 0;
  int32_t most_workers_ = 1;
  std::map<std::pair<const Application*, int32_t>, std::vector<double>> step_seconds_;
  int idle_rounds_ = 0;
  int fruitless_rounds_ = 0;  // in which no job came further
  double reached_ = 0;        // what the unfinished jobs have done
  SimResult result_;
};

Simulation::Simulation(const Workload& workload, const Catalog& catalog,
                       const sched::Cluster& cluster, sched::Policy& policy,
                       const SimOptions& options)
    : traits_(obeyed(policy.traits(), options.information)),
      workload_(workload),
      catalog_(catalog),
      cluster_(cluster),
      policy_(policy),
      options_(options),
      fits_(traits_.fit_least_gain),
      next_round_(options.interval) {
  if (!(options.interval > 0))
    fail(ErrorCode::invalid_argument, "rounds every {} s; it must be above 0", options.interval);
  const size_t jobs = workload.jobs.size();
  runs_.reserve(jobs);
  int64_t largest = 0;  // devices of one type
  for (int32_t t = 0; t < cluster_.type_count(); ++t)
    largest = std::max(largest, cluster_.usable_devices(t));
  for (Submission& job : workload_.jobs) {
    job.devices = static_cast<int32_t>(std::min<int64_t>(job.devices, largest));
    if (!job.service) {
      ++training_left_;
      continue;
    }
    const int32_t unit = job.service->replica_devices;
    if (job.devices < unit)
      fail(ErrorCode::invalid_argument, "{}: a replica takes {} devices, the cluster has {}",
           job.name, unit, largest);
    job.devices -= job.devices % unit;
  }
  check_arrivals();
  for (const Submission& job : workload_.jobs) data_.push_back(region_of_data(job));
  for (size_t j = 0; j < jobs; ++j) {
    const Submission& job = workload_.jobs[j];
    runs_.emplace_back(job, catalog.find(job.application), catalog.rules, cluster_.types, traits_,
                       fits_, measurements_, Instruments{options.noise, options.seed, j});
    if (options.information == Information::profiled) runs_.back().measure_all(cluster_);
    if (!traits_.sees_types)
      for (const std::string& type : cluster_.types)
        if (!job.service && catalog.find(job.application).unit(type) == 0)
          fail(ErrorCode::invalid_argument,
               "{}: pipelines of {} do not run on {}, and policy {} knows nothing of device types",
               job.name, job.application, type, policy.name());
    double factor = 0;
    if (options.budget && !job.service) {
      Rng rng(options.seed, 0xb0d9e7, j);
      const double range = std::log(std::max(*options.budget, 1.0));
      factor = std::exp(rng.uniform(-range, range));
    }
    declared_.push_back(factor);
    JobResult result;
    result.name = job.name;
    result.application = job.application;
    result.tier = job.tier;
    result.team = job.team;
    result.arrival = job.time;
    result_.jobs.push_back(std::move(result));
    accounts_.emplace_back(job.time);
  }
  controlled_.resize(jobs);
  most_workers_ = static_cast<int32_t>(std::min<int64_t>(largest, 4096));
  segment_start_.assign(jobs, 0);
  interfered_.assign(jobs, 0);
  beside_others_.assign(jobs, 0);
  contention_.assign(jobs, 0);
  rounds_lived_.assign(jobs, 0);
  node_slow_.assign(cluster_.nodes(), 1);
  node_losses_.assign(cluster_.nodes(), 0);
  announced_.resize(cluster_.nodes());
  faults_ = plan_faults(options.scenario, cluster_, options.seed, options.most_seconds);
  result_.workload = workload.name;
  result_.policy = policy.name();
}

void Simulation::check_arrivals() const {
  const double until = options_.scenario.until;
  if (until <= 0) return;
  for (const Submission& job : workload_.jobs)
    if (job.time >= until)
      fail(ErrorCode::invalid_argument,
           "{} arrives at {} s, and the scenario ends at {} s; let it end later (until), or leave "
           "the job out",
           job.name, job.time, until);
}

int32_t Simulation::region_of_data(const Submission& job) const {
  if (!job.movable && !traits_.sees_regions)
    fail(ErrorCode::invalid_argument,
         "{} may not leave region {}, and policy {} knows nothing of regions; use policy regional",
         job.name, job.region, policy_.name());
  if (job.region.empty()) return -1;
  const auto found = std::find(cluster_.regions.begin(), cluster_.regions.end(), job.region);
  if (found != cluster_.regions.end())
    return static_cast<int32_t>(found - cluster_.regions.begin());
  std::string known;
  for (const std::string& name : cluster_.regions) known += (known.empty() ? "" : ", ") + name;
  fail(ErrorCode::invalid_argument, "{}: no region {} in the cluster, which has {}", job.name,
       job.region, known);
}

// Seconds of a step at the batch asked for on `devices` packed devices of a type. One device always
// accumulates here, as the published oracles have it.
double Simulation::packed_step(const Application& app, int32_t batch, int32_t devices,
                               int32_t type) const {
  const Profile& profile = app.profile(cluster_.types[type]);
  const int32_t per_node = std::max(cluster_.devices_per_node(type), 1);
  std::vector<int32_t> counts;
  for (int32_t left = devices; left > 0; left -= per_node)
    counts.push_back(std::min(left, per_node));
  sched::BatchLimits limits = app.limits(profile);
  if (catalog_.rules.limit_by_placement) limits.max_local = profile.max_local(counts);
  sched::BatchChoice split = sched::split_batch(limits, devices, batch);
  if (devices == 1 && split.accumulation == 0) split = {0, (split.local_batch + 1) / 2, 1};
  const StepTime time = profile.at(counts, std::max(split.local_batch, 1));
  return time.step + (time.step - time.sync) * split.accumulation;
}

// The oracle of Optimus: by number of devices of the first type.
std::span<const double> Simulation::step_seconds(const Submission& job) {
  const Application& app = catalog_.find(job.application);
  const int32_t batch = job.batch > 0 ? job.batch : app.init_batch;
  auto [found, fresh] = step_seconds_.try_emplace({&app, batch});
  if (!fresh) return found->second;
  const int32_t least = app.limits(app.profile(cluster_.types[0])).min_local;
  const auto most = static_cast<int32_t>(
      std::min<int64_t>({64, cluster_.usable_devices() + 1, std::max(batch / least, 1)}));
  for (int32_t k = 1; k <= most; ++k) found->second.push_back(packed_step(app, batch, k, 0));
  return found->second;
}

// Samples a second on the devices and batch asked for.
double Simulation::asked_rate(const Submission& job, const sched::JobView& view,
                              int32_t type) const {
  const Application& app = catalog_.find(job.application);
  double planned = 0;
  for (const PlanProfile& plan : app.plans)
    if (plan.type == cluster_.types[type] && plan.devices == view.requested_devices)
      planned = std::max(planned, plan.batch / plan.seconds);
  if (!app.plans.empty()) return planned;
  if (app.micro_batches == 0)
    return view.requested_batch / packed_step(app, view.requested_batch, job.devices, type);
  const int32_t per_node = std::max(cluster_.devices_per_node(type), 1);
  std::vector<int32_t> counts;
  for (int32_t left = view.requested_devices; left > 0; left -= per_node)
    counts.push_back(std::min(left, per_node));
  return static_cast<double>(job.devices) * app.micro_batches /
         app.step_time(cluster_.types[type], counts, 1).step;
}

void Simulation::arrive() {
  while (next_job_ < workload_.jobs.size() && workload_.jobs[next_job_].time <= now_) {
    const auto j = static_cast<int32_t>(next_job_++);
    sched::JobView view;
    view.id = j;
    runs_[j].describe(view);
    const Submission& job = workload_.jobs[j];
    view.region = data_[j];
    view.transfer_seconds = job.transfer;
    view.movable = job.movable;
    // Sia keeps to the batch that was asked for, and would know less than the jobs themselves.
    if (options_.information >= Information::full && view.scaling == sched::Scaling::adaptive)
      view.requested_batch = 0;
    const Application& app = catalog_.find(job.application);
    if (!job.service && app.micro_batches == 0 && app.plans.empty())
      view.known_step_seconds = step_seconds(job);
    if (job.service) {
      runs_[j].report_load(view, now_, 0);
    } else if (view.scaling == sched::Scaling::rigid) {
      for (int32_t t = 0; t < cluster_.type_count(); ++t)
        if (view.types[t].allowed) view.types[t].requested_rate = asked_rate(job, view, t);
    }
    active_.push_back(j);
    views_.push_back(std::move(view));
  }
}

Conditions Simulation::conditions(int32_t job) const {
  Conditions out;
  for (const sched::NodeShare& share : runs_[job].allocation())
    out.compute = std::max(out.compute, node_slow_[share.node]);
  if (beside_others_[job]) out.steps = options_.neighbours;
  out.network = network_slow_;
  if (interfered_[job]) out.interference = options_.interference;
  return out;
}

void Simulation::end_segment(int32_t job, double at) {
  if (!runs_[job].running() || at <= segment_start_[job]) return;
  result_.timeline.push_back({job, segment_start_[job], at, runs_[job].allocation()});
}

// Advances all jobs; those that end leave.
void Simulation::pass(double until) {
  const double seconds = until - now_;
  if (seconds > 0) {
    size_t kept = 0;
    double last = 0;
    for (size_t i = 0; i < active_.size(); ++i) {
      const int32_t j = active_[i];
      JobRun& run = runs_[j];
      const double before = run.progress(), held = run.service(), paused = run.paused();
      const auto finish = run.advance(now_, seconds, conditions(j));
      DUCTILE_CHECK(run.progress() >= before, "{} went back", result_.jobs[j].name);
      const double made_use =
          run.service() - held - (run.paused() - paused) * sched::device_count(run.allocation());
      accounts_[j].pass(finish.value_or(until), workload_.jobs[j].devices, made_use,
                        result_.jobs[j].windows);
      if (!finish) {
        if (kept != i) {
          active_[kept] = j;
          views_[kept] = std::move(views_[i]);
        }
        ++kept;
        continue;
      }
      end_job(j, *finish);
      if (!workload_.jobs[j].service) last = std::max(last, *finish);
    }
    const bool worked = !active_.empty();
    active_.resize(kept);
    views_.resize(kept);
    if (worked)
      result_.usable_device_seconds += static_cast<double>(cluster_.usable_devices()) *
                                       (kept > 0 || last == 0 ? seconds : last - now_);
  }
  now_ = until;
}

void Simulation::end_job(int32_t j, double at) {
  const JobRun& run = runs_[j];
  if (controlled_[j]) controlled_[j].reset();
  end_segment(j, at);
  JobResult& result = result_.jobs[j];
  result.start = run.first_start() < 0 ? at : run.first_start();
  result.finish = at;
  result.service = run.service();
  result.paused = run.paused();
  result.restarts = run.restarts();
  result.lost = run.lost();
  result.contention = rounds_lived_[j] > 0 ? contention_[j] / rounds_lived_[j] : 1;
  accounts_[j].end(result.windows);
  if (const ServiceRun* service = run.service_run()) {
    result.served = service->record();
    for (const ServiceRecord& hour : service->hours())
      if (hour.requests > 0) result.worst_hour = std::min(result.worst_hour, hour.attained());
    return;
  }
  --training_left_;
  result_.end = std::max(result_.end, at);
}

// The scenario's end: what has not finished counts as such.
void Simulation::stop() {
  for (const int32_t j : active_) {
    end_job(j, now_);
    result_.jobs[j].finished = workload_.jobs[j].service.has_value();
  }
  active_.clear();
  views_.clear();
  result_.end = now_;
}

// A service goes on with the replicas that it has elsewhere; a job's devices stop together.
void Simulation::lose_node(int32_t j, int32_t node) {
  const auto is_there = [&](const sched::NodeShare& s) { return s.node == node; };
  if (std::ranges::none_of(runs_[j].allocation(), is_there)) return;
  sched::Allocation left = runs_[j].allocation();
  std::erase_if(left, is_there);
  ++result_.jobs[j].node_losses;
  if (!workload_.jobs[j].service) {
    result_.jobs[j].redone += runs_[j].lose_work(options_.scenario.lost_work_seconds) *
                              sched::device_count(runs_[j].allocation());
    if (controlled_[j])
      controlled_[j]->lose_workers(
          sched::device_count(runs_[j].allocation()) - sched::device_count(left), messages_);
    left.clear();
  }
  change(j, left);
}

void Simulation::change(int32_t job, const sched::Allocation& allocation) {
  JobRun& run = runs_[job];
  if (run.allocation() == allocation) return;
  const int32_t type = allocation.empty() ? -1 : cluster_.node_type[allocation.front().node];
  end_segment(job, now_);
  segment_start_[job] = now_;
  if (options_.control && !workload_.jobs[job].service) {
    const int32_t devices = sched::device_count(allocation);
    if (!controlled_[job])
      controlled_[job] = std::make_unique<ControlledJob>(result_.jobs[job].name,
                                                         std::max<int32_t>(devices, most_workers_),
                                                         mix(options_.seed, job), result_.control);
    controlled_[job]->set_workers(devices, messages_);
  }
  bool same_shape = run.running() && type == run.type() && allocation.size() == run.counts().size();
  for (size_t i = 0; same_shape && i < allocation.size(); ++i)
    same_shape = allocation[i].devices == run.counts()[i];
  if (same_shape && catalog_.rules.free_moves && !workload_.jobs[job].service) {
    run.move(allocation);
  } else {
    double transfer = 0;
    if (!allocation.empty() && data_[job] >= 0) {
      const int32_t cluster = cluster_.node_cluster[allocation.front().node];
      const int32_t region = cluster_.cluster_region[cluster];
      if (region != data_[job]) transfer = workload_.jobs[job].transfer;
      data_[job] = region;
    }
    run.reallocate(now_, allocation, type, transfer);
  }
}

void Simulation::apply(const FaultEvent& event) {
  switch (event.kind) {
    case FaultKind::node_loss:
    case FaultKind::reclaim:
    case FaultKind::maintenance: {
      if (event.announce) {
        announced_[event.node].insert(event.value);
        cluster_.node_leaves_at[event.node] = *announced_[event.node].begin();
        break;
      }
      if (event.start) announced_[event.node].erase(now_);
      node_losses_[event.node] += event.start ? 1 : -1;
      cluster_.node_up[event.node] = node_losses_[event.node] == 0;
      cluster_.node_leaves_at[event.node] =
          announced_[event.node].empty() ? INFINITY : *announced_[event.node].begin();
      if (!event.start) break;
      for (const int32_t j : active_) lose_node(j, event.node);
      find_neighbours();
      break;
    }
    case FaultKind::straggler:
      node_slow_[event.node] = event.start ? event.value : 1;
      break;
    case FaultKind::slow_network:
      network_slow_ = event.start ? event.value : 1;
      break;
    case FaultKind::lost_decisions:
      lost_decisions_ = event.start ? event.value : 0;
      break;
    case FaultKind::late_reports:
      late_reports_ = event.start ? event.value : 0;
      break;
    case FaultKind::lost_messages:
      messages_.lost = event.start ? event.value : 0;
      break;
    case FaultKind::late_messages:
      messages_.late = event.start ? event.value : 0;
      messages_.delay = event.delay;
      break;
  }
  result_.faults.push_back(event);
}

bool Simulation::drawn(double probability, uint64_t purpose, int32_t job) const {
  if (probability <= 0) return false;
  Rng rng(options_.seed, mix(purpose, static_cast<uint64_t>(now_ * 1000)),
          static_cast<uint64_t>(job));
  return rng.uniform(0, 1) < probability;
}

// What frees devices first, then what takes them; a job that did not hear keeps what it has, and
// another that was meant to have it waits.
void Simulation::carry_out(const sched::Decisions& decisions) {
  std::unordered_map<sched::JobId, const sched::Allocation*> wanted;
  for (const sched::Decision& d : decisions.changes)
    if (!drawn(lost_decisions_, 0x105d, static_cast<int32_t>(d.job)))
      wanted.emplace(d.job, &d.allocation);
  std::vector<int32_t> room(cluster_.nodes());
  for (int32_t n = 0; n < cluster_.nodes(); ++n) room[n] = cluster_.usable(n);
  const auto fits = [&](const sched::Allocation& allocation) {
    return std::all_of(allocation.begin(), allocation.end(),
                       [&](const sched::NodeShare& s) { return s.devices <= room[s.node]; });
  };
  const auto take = [&](const sched::Allocation& allocation) {
    for (const sched::NodeShare& s : allocation) room[s.node] -= s.devices;
  };
  for (const int32_t j : active_)
    if (!wanted.contains(j)) take(runs_[j].allocation());
  for (const int32_t j : active_) {
    const auto found = wanted.find(j);
    if (found == wanted.end()) continue;
    const sched::Allocation held = runs_[j].allocation();
    const sched::Allocation& next = fits(*found->second) ? *found->second
                                    : fits(held)         ? held
                                                         : sched::Allocation{};
    take(next);
    change(j, next);
  }
}

void Simulation::find_interference() {
  std::fill(interfered_.begin(), interfered_.end(), 0);
  if (options_.interference <= 0) return;
  std::vector<int32_t> spread(cluster_.nodes(), 0);
  for (const int32_t j : active_)
    if (runs_[j].allocation().size() > 1)
      for (const sched::NodeShare& s : runs_[j].allocation()) ++spread[s.node];
  for (const int32_t j : active_)
    if (runs_[j].allocation().size() > 1)
      for (const sched::NodeShare& s : runs_[j].allocation())
        if (spread[s.node] > 1) interfered_[j] = 1;
}

void Simulation::find_neighbours() {
  if (options_.neighbours <= 1) return;
  std::vector<int32_t> jobs(cluster_.nodes(), 0);
  for (const int32_t j : active_)
    for (const sched::NodeShare& s : runs_[j].allocation()) ++jobs[s.node];
  for (const int32_t j : active_)
    beside_others_[j] = std::ranges::any_of(
        runs_[j].allocation(), [&](const sched::NodeShare& s) { return jobs[s.node] > 1; });
}

void Simulation::check_round() const {
  std::vector<int32_t> used(cluster_.nodes(), 0);
  for (const int32_t j : active_)
    for (const sched::NodeShare& s : runs_[j].allocation()) used[s.node] += s.devices;
  for (int32_t n = 0; n < cluster_.nodes(); ++n)
    DUCTILE_CHECK(used[n] <= cluster_.usable(n), "node {}: {} devices in use, {} usable", n,
                  used[n], cluster_.usable(n));
}

// Without a device, now and for good, no job that trains would ever end.
void Simulation::check_devices_left() const {
  if (cluster_.usable_devices() > 0) return;
  for (size_t i = next_fault_; i < faults_.size(); ++i)
    if (takes_nodes(faults_[i].kind) && !faults_[i].start) return;
  const auto waits = [&](int32_t j) { return !workload_.jobs[j].service; };
  const auto first = std::find_if(active_.begin(), active_.end(), waits);
  if (first == active_.end()) return;
  fail(ErrorCode::invalid_argument,
       "after {} s all {} nodes are gone for good, and {} jobs are unfinished, {} the first; let a "
       "fault of the scenario end (for = SECONDS), or leave a node out of it",
       now_, cluster_.nodes(), std::count_if(active_.begin(), active_.end(), waits),
       workload_.jobs[*first].name);
}

void Simulation::round() {
  check_devices_left();
  for (size_t i = 0; i < active_.size(); ++i) {
    const int32_t j = active_[i];
    JobRun& run = runs_[j];
    sched::JobView& view = views_[i];
    view.allocation = run.allocation();
    view.region = data_[j];
    contention_[j] += static_cast<double>(active_.size());
    rounds_lived_[j] += 1;
    view.window = accounts_[j].open();
    if (drawn(late_reports_, 0x1a7e, j)) continue;
    run.report(view);
    if (workload_.jobs[j].service) run.report_load(view, now_, 2 * options_.interval);
    if (declared_[j] > 0) {
      view.remaining = declared_[j] * run.total_progress() - run.progress();
      const Application& app = catalog_.find(workload_.jobs[j].application);
      // Of the epochs after this one, as Optimus counts; at least one step.
      view.remaining_steps = run.epoch() + 1 < app.epochs
                                 ? declared_[j] * workload_.jobs[j].work *
                                       (app.iteration(view.requested_batch, app.epochs - 1) -
                                        app.iteration(view.requested_batch, run.epoch()))
                                 : 1;
    }
  }
  const sched::Round round{now_, options_.interval, cluster_, views_};
  const double before = cpu_seconds();
  const sched::Decisions decisions = policy_.decide(round);
  const double spent = cpu_seconds() - before;
  if (options_.check) sched::check_decisions(round, decisions);
  carry_out(decisions);
  find_interference();
  find_neighbours();
  if (options_.check) check_round();
  RoundSample sample;
  sample.time = now_;
  sample.active = static_cast<int32_t>(active_.size());
  sample.usable = cluster_.usable_devices();
  sample.decision_seconds = spent;
  sample.objective = decisions.objective;
  sample.bound = decisions.bound;
  double reached = 0;
  int64_t training = 0;  // devices
  for (const int32_t j : active_) {
    if (!runs_[j].running()) ++sample.waiting;
    sample.used += sched::device_count(runs_[j].allocation());
    if (const ServiceRun* service = runs_[j].service_run()) {
      const sched::ServiceView view = service->view(now_, 0, 1);
      sample.load += view.load;
      if (const int32_t type = runs_[j].type(); type >= 0)
        sample.on_time += view.load * sched::on_time_share(view.load, service->ready(now_),
                                                           view.rate[type], view.target);
      continue;
    }
    sample.goodput += runs_[j].rate() / runs_[j].total_progress() * 3600;
    reached += runs_[j].progress() / runs_[j].total_progress();
    training += sched::device_count(runs_[j].allocation());
  }
  idle_rounds_ = sample.used == 0 && sample.usable > 0 && sample.active > 0 ? idle_rounds_ + 1 : 0;
  if (idle_rounds_ > kMostIdleRounds)
    fail(ErrorCode::internal,
         "policy {} leaves {} jobs waiting and every device idle since {} s; the first: {}",
         policy_.name(), sample.active, now_ - kMostIdleRounds * options_.interval,
         policy_.explain(views_.front().id));
  fruitless_rounds_ = reached > reached_ || training == 0 ? 0 : fruitless_rounds_ + 1;
  reached_ = reached;
  if (fruitless_rounds_ > kMostFruitlessRounds)
    fail(ErrorCode::internal,
         "under policy {} none of {} jobs has come further since {} s, although {} devices are "
         "held: each start is given up before it is over; the first job: {}",
         policy_.name(), sample.active, now_ - kMostFruitlessRounds * options_.interval, training,
         policy_.explain(views_.front().id));
  result_.rounds.push_back(sample);
}

bool Simulation::nothing_runs() const {
  return std::ranges::all_of(active_, [&](int32_t j) { return runs_[j].allocation().empty(); });
}

SimResult Simulation::run() {
  arrive();
  if (options_.as_service && !active_.empty()) next_round_ = now_;  // nothing runs yet
  while (!active_.empty() || next_job_ < workload_.jobs.size()) {
    ask_whether_wanted();
    if (active_.empty()) {
      // Nothing to do until the round after the next arrival.
      const double arrival = workload_.jobs[next_job_].time;
      next_round_ =
          options_.as_service
              ? arrival
              : std::max(next_round_, std::ceil(arrival / options_.interval) * options_.interval);
    }
    const bool fault = next_fault_ < faults_.size() && faults_[next_fault_].time < next_round_;
    double until = fault ? faults_[next_fault_].time : next_round_;
    const size_t arrived = next_job_, unfinished = active_.size();
    bool event = false;
    if (traits_.on_events || options_.as_service) {
      const double notice =
          options_.as_service ? std::min(kNotice, options_.interval / 100) : kNotice;
      double sooner = unfinished > 0 ? now_ + notice : until;
      if (next_job_ < workload_.jobs.size())
        sooner = std::min(sooner, workload_.jobs[next_job_].time);
      event = sooner < until;
      until = std::min(until, sooner);
    }
    if (const double end = options_.scenario.until; end > 0 && until >= end) {
      pass(end);
      arrive();
      stop();
      break;
    }
    if (until > options_.most_seconds)
      fail(ErrorCode::deadline, "{} jobs of {} under {} are unfinished after {} s", active_.size(),
           workload_.name, policy_.name(), options_.most_seconds);
    pass(until);
    const bool ended = active_.size() < unfinished;
    if (ended) find_neighbours();
    arrive();
    if (event) {
      const bool asked = traits_.on_events || nothing_runs();
      if ((ended || next_job_ > arrived) && !active_.empty() && asked) {
        if (options_.as_service) next_round_ = now_ + options_.interval;
        round();
      }
      continue;
    }
    if (fault) {
      apply(faults_[next_fault_++]);
      continue;
    }
    next_round_ += options_.interval;
    if (!active_.empty()) round();
    if (options_.progress)
      options_.progress({now_,
                         static_cast<int64_t>(next_job_) - static_cast<int64_t>(active_.size()),
                         static_cast<int64_t>(workload_.jobs.size())});
  }
  std::stable_sort(result_.timeline.begin(), result_.timeline.end(),
                   [](const Segment& a, const Segment& b) { return a.from < b.from; });
  return std::move(result_);
}

}  // namespace

Information information_from(std::string_view name) {
  const std::vector<std::string> known = {"own", "published", "full", "profiled"};
  const auto found = std::ranges::find(known, name);
  if (found == known.end()) fail_unknown_name("information", name, known);
  return static_cast<Information>(found - known.begin());
}

SimResult simulate(const Workload& workload, const Catalog& catalog, const sched::Cluster& cluster,
                   sched::Policy& policy, const SimOptions& options) {
  cluster.check();
  return Simulation(workload, catalog, cluster, policy, options).run();
}

}  // namespace ductile::sim
