// What the sum of values leaves open: who keeps what it runs on, and which of equal jobs is first.
#include <algorithm>
#include <tuple>

#include "ductile/sched/ductile_policy_impl.h"

namespace ductile::sched {

namespace {
constexpr double kFirstMinutes = 180;  // of a run, in which no equal job takes its devices
}

// What is left of each node beside services and jobs that keep what they have; nothing of one that
// is about to leave.
std::vector<int32_t> DuctilePolicy::Impl::room_beside_kept(const Round& round) const {
  std::vector<int32_t> room(static_cast<size_t>(round.cluster.nodes()));
  for (int32_t n = 0; n < round.cluster.nodes(); ++n)
    if (usable_until(round.cluster, n, horizon_of(round)))
      room[static_cast<size_t>(n)] = round.cluster.usable(n);
  const auto take = [&](const Allocation& allocation) {
    for (const NodeShare& share : allocation)
      room[static_cast<size_t>(share.node)] -= share.devices;
  };
  for (const ServiceGrant& grant : grants_) take(grant.allocation);
  for (const JobView& job : round.jobs)
    if (const State& s = states_.at(job.id); s.pinned && s.grant < 0) take(job.allocation);
  return room;
}

// Whether the job may go on where it is: its team keeps its quota, its user has not asked for
// something else, and nothing else comes there.
bool DuctilePolicy::Impl::may_keep(const Round& round, const JobView& job,
                                   const std::vector<int32_t>& room) const {
  const State& s = states_.at(job.id);
  const int32_t devices = device_count(job.allocation);
  if (job.service || s.pinned || s.pool_now < 0 || devices == 0) return false;
  if (devices < job.min_devices || devices > job.max_devices || s.most < devices) return false;
  for (const Team& team : round.cluster.teams) {
    if (team.id != job.team || team.quota <= 0) continue;
    int64_t held = 0;
    for (const JobView& other : round.jobs)
      if (other.team == team.id) held += device_count(other.allocation);
    if (held > team.quota) return false;
  }
  return std::ranges::all_of(job.allocation, [&](const NodeShare& share) {
    return share.devices <= room[static_cast<size_t>(share.node)];
  });
}

// Jobs that cannot be saved, the one that has run for longest first.
std::vector<const JobView*> DuctilePolicy::Impl::unsaved_jobs(const Round& round) const {
  std::vector<const JobView*> out;
  for (const JobView& job : round.jobs)
    if (!job.saves && !job.service && !job.allocation.empty()) out.push_back(&job);
  std::ranges::stable_sort(out, {}, [](const JobView* job) { return job->last_change; });
  return out;
}

// A job that would lose all of its work keeps its devices while nobody of a higher tier waits.
void DuctilePolicy::Impl::keep_unsaved(const Round& round, std::vector<int64_t>& capacity) {
  const std::vector<const JobView*> unsaved = unsaved_jobs(round);
  if (unsaved.empty()) return;
  Tier first = Tier::basic;
  for (const JobView& job : round.jobs)
    if (!job.service && job.allocation.empty()) first = std::min(first, job.tier);
  std::vector<int32_t> room = room_beside_kept(round);
  for (const JobView* job : unsaved) {
    if (first < job->tier || !may_keep(round, *job, room)) continue;
    State& s = states_.at(job->id);
    s.pinned = true;
    capacity[static_cast<size_t>(s.pool_now)] -= device_count(job->allocation);
    for (const NodeShare& share : job->allocation)
      room[static_cast<size_t>(share.node)] -= share.devices;
  }
}

// One that can be saved and whose length nobody knows: of those that are like it, which of them
// ends first is not known yet either, so that a stop gains nothing but a second start.
bool DuctilePolicy::Impl::has_just_begun(const Round& round, const JobView& job) const {
  const State& s = states_.at(job.id);
  return job.saves && !job.service && s.guessed && !job.allocation.empty() &&
         job.last_change >= 0 && round.now - job.last_change < kFirstMinutes;
}

// Where somebody of a higher tier waits, what cannot be saved is stopped, or moved, for those
// alone, and what has just begun is stopped for those alone and for jobs of a known length. If
// these get less than it and its like would give up, one of these keeps what it has after all. True
// where one does, and all has been solved anew.
bool DuctilePolicy::Impl::keep_from_own_tier(const Round& round,
                                             const std::vector<Allocation>& next) {
  std::vector<const JobView*> stopped;
  const auto after = [&](const JobView* job) -> const Allocation& {
    return next[static_cast<size_t>(job - round.jobs.data())];
  };
  for (const JobView* job : unsaved_jobs(round))
    if (!states_.at(job->id).pinned && after(job) != job->allocation) stopped.push_back(job);
  for (const JobView& job : round.jobs)
    if (after(&job).empty() && has_just_begun(round, job)) stopped.push_back(&job);
  if (stopped.empty()) return false;
  const std::vector<int32_t> room = room_beside_kept(round);
  for (const JobView* job : stopped) {
    if (!may_keep(round, *job, room)) continue;
    State& s = states_.at(job->id);
    int64_t given_up = 0, gained = 0;
    for (const JobView* other : stopped)
      if (states_.at(other->id).pool_now == s.pool_now) given_up += device_count(other->allocation);
    for (size_t i = 0; i < round.jobs.size(); ++i) {
      const JobView& other = round.jobs[i];
      const bool first =
          other.tier < job->tier || (job->saves && !other.service && !states_.at(other.id).guessed);
      if (!first || next[i].empty() || pool_of(round.cluster, next[i]) != s.pool_now) continue;
      const bool here = states_.at(other.id).pool_now == s.pool_now;
      gained += std::max(0, device_count(next[i]) - (here ? device_count(other.allocation) : 0));
    }
    if (gained >= given_up) continue;
    std::vector<int64_t> capacity(allocator_->capacity().begin(), allocator_->capacity().end());
    int64_t& here = capacity[static_cast<size_t>(s.pool_now)];
    if (here < device_count(job->allocation)) continue;
    here -= device_count(job->allocation);
    s.pinned = true;
    offer(*job, s);
    allocator_->set_capacity(std::move(capacity));
    allocator_->solve();
    return true;
  }
  return false;
}

// The most devices that are free on one node of each pool.
std::vector<int32_t> DuctilePolicy::Impl::largest_pieces(
    const Round& round, const std::vector<Allocation>& next) const {
  const Cluster& cluster = round.cluster;
  std::vector<int32_t> free(static_cast<size_t>(cluster.nodes()));
  for (int32_t n = 0; n < cluster.nodes(); ++n)
    if (usable_until(cluster, n, horizon_of(round)))
      free[static_cast<size_t>(n)] = cluster.node_devices[static_cast<size_t>(n)];
  for (const Allocation& allocation : next)
    for (const NodeShare& share : allocation)
      free[static_cast<size_t>(share.node)] -= share.devices;
  std::vector<int32_t> out;
  for (const Pool& pool : pools_) {
    int32_t most = 0;
    for (const int32_t n : pool.nodes) most = std::max(most, free[static_cast<size_t>(n)]);
    out.push_back(most);
  }
  return out;
}

// Jobs that stay where they are, and services, may leave devices free in pieces that are too small
// for what was chosen for one that waits. It is offered what the largest of them has, or, where it
// could not begin on that, left out: others have these then. True where all has been solved anew.
bool DuctilePolicy::Impl::leave_out(const Round& round, const std::vector<uint8_t>& unplaced,
                                    const std::vector<Allocation>& next) {
  const bool serves = std::ranges::any_of(
      grants_, [](const ServiceGrant& grant) { return !grant.allocation.empty(); });
  if (!serves && unsaved_jobs(round).empty()) return false;
  std::vector<int32_t> pieces;
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    State& s = states_.at(round.jobs[i].id);
    if (!unplaced[i] || s.left_out || !round.jobs[i].allocation.empty() || s.takes < 0) continue;
    if (pieces.empty()) pieces = largest_pieces(round, next);
    const Configuration& chosen = s.configurations[static_cast<size_t>(s.takes)];
    const auto pool = static_cast<size_t>(chosen.pool);
    s.fits.resize(pools_.size(), INT32_MAX);
    s.fits[pool] = std::min(chosen.devices - 1, pieces[pool]);
    s.left_out = std::ranges::none_of(s.configurations, [&](const Configuration& c) {
      return c.devices <= s.fits[static_cast<size_t>(c.pool)];
    });
    s.given_weight = -1;  // offered again, now and in the next round
    if (s.left_out) {
      allocator_->set_job(s.slot, {});
    } else {
      offer(round.jobs[i], s);
      s.given_weight = -1;
    }
  }
  if (!pieces.empty()) allocator_->solve();
  return !pieces.empty();
}

namespace {

// All that the policy knows of a waiting job but when it came.
struct Waiting {
  const JobView* job;
  std::span<const Configuration> configurations;
  int32_t most;
  bool guessed;
  double remaining, least_left, promised;
  int32_t* takes;

  auto rank() const {
    return std::tuple(job->tier, job->team, job->scaling, job->preemptible, job->saves,
                      job->min_devices, job->max_devices, job->requested_devices, job->region,
                      job->movable, job->transfer_seconds, job->restart_seconds, job->progress,
                      most, guessed, remaining, least_left, promised);
  }
};

bool is_less(const Waiting& a, const Waiting& b) {
  if (const auto x = a.rank(), y = b.rank(); x != y) return x < y;
  return std::ranges::lexicographical_compare(
      a.configurations, b.configurations, [](const Configuration& c, const Configuration& d) {
        return std::tie(c.pool, c.devices, c.nodes, c.rate) <
               std::tie(d.pool, d.devices, d.nodes, d.rate);
      });
}

}  // namespace

// What each job is to have. Of jobs that wait for their first start and are alike but for their
// age, the oldest get what any of them gets: prices, and offers that are made again only when a
// weight has changed by 1 %, would leave their order to chance.
void DuctilePolicy::Impl::take_choices(const Round& round) {
  std::vector<Waiting> waiting;
  bool some = false;
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    s.takes = s.pinned ? -1 : allocator_->chosen(s.slot);
    if (s.pinned || job.service || job.started >= 0 || !job.allocation.empty()) continue;
    some = some || s.takes >= 0;
    waiting.push_back({&job, s.configurations, s.most, s.guessed, s.remaining, s.least_left,
                       s.promised, &s.takes});
  }
  if (!some) return;
  std::ranges::sort(waiting, [](const Waiting& a, const Waiting& b) {
    if (is_less(a, b)) return true;
    if (is_less(b, a)) return false;
    return std::tie(a.job->arrival, a.job->id) < std::tie(b.job->arrival, b.job->id);
  });
  std::vector<int32_t> takes;
  for (size_t begin = 0, end; begin < waiting.size(); begin = end) {
    for (end = begin + 1; end < waiting.size() && !is_less(waiting[begin], waiting[end]);) ++end;
    takes.clear();
    for (size_t i = begin; i < end; ++i)
      if (*waiting[i].takes >= 0) takes.push_back(*waiting[i].takes);
    std::ranges::stable_sort(takes, std::greater<>(), [&](int32_t choice) {
      return waiting[begin].configurations[static_cast<size_t>(choice)].devices;
    });
    for (size_t i = begin; i < end; ++i)
      *waiting[i].takes = i - begin < takes.size() ? takes[i - begin] : -1;
  }
}

}  // namespace ductile::sched
