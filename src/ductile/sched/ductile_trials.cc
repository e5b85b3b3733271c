// What was measured of a size may be of a time when a network or a node had trouble, and a job that
// has left it does not measure it again: while devices are idle, it tries it anew.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ductile/sched/ductile_policy_impl.h"

namespace ductile::sched {
namespace {

// A job has had what it holds for so many times as long as a trial may cost it, and for twice as
// long before each further one. So all of them together cost it at most a twentieth of its time,
// and after its first trouble it goes without a size for about as long again as that lasted; after
// later ones for longer.
constexpr double kCostsBeforeTrial = 20;
constexpr double kStepsOfTrial = 3;

}  // namespace

// Seconds of work on a size after which its speed is known.
double DuctilePolicy::Impl::trial_seconds(const Configuration& c) const {
  return std::max(interval_, std::min(kStepsOfTrial / c.rate, options_.horizon));
}

// It has what it tries, or is about to, and has not worked with it for long enough.
bool DuctilePolicy::Impl::is_on_trial(const Round& round, const JobView& job,
                                      const State& s) const {
  if (device_count(job.allocation) != s.trial) return false;
  if (job.granted || job.pause_left > 0) return true;
  for (const Configuration& c : s.configurations)
    if (c.pool == s.pool_now && c.devices == s.trial)
      return round.now - job.last_change < job.change_seconds() + trial_seconds(c);
  return false;
}

// Sizes in its pool, for which so many devices are idle, on which it is slower than with what it
// has, by what was measured; the smallest first.
std::vector<const Configuration*> DuctilePolicy::Impl::slower_sizes(const JobView& job,
                                                                    const State& s,
                                                                    int64_t idle) const {
  const int32_t held = device_count(job.allocation);
  std::vector<const Configuration*> out;
  const Configuration* now = nullptr;
  for (const Configuration& c : s.configurations) {
    if (c.pool != s.pool_now) continue;
    if (c.devices == held) now = &c;
    if (c.devices > held && c.devices - held <= idle) out.push_back(&c);
  }
  if (now == nullptr) return {};
  std::erase_if(out, [now](const Configuration* c) { return c->rate >= now->rate; });
  return out;
}

// Of sizes on which it is slower than with what it has, by what was measured, the largest for which
// devices are idle, then the next one; if others may try sizes too, those within its share come
// first, or else the smallest one. Until that is measured it counts as fast as it may be.
void DuctilePolicy::Impl::begin_trial(const Round& round, const JobView& job, State& s,
                                      int64_t share, int64_t& idle) {
  const int32_t held = device_count(job.allocation);
  std::vector<const Configuration*> slower = slower_sizes(job, s, idle);
  while (slower.size() > 1 && slower.back()->devices - held > share) slower.pop_back();
  if (slower.empty()) return;
  const size_t turn = static_cast<size_t>(s.trials) % slower.size();
  const Configuration& c = *slower[slower.size() - 1 - turn];
  // It ends with a round.
  const double cost =
      2 * (job.change_seconds() + job.unsaved_seconds) + trial_seconds(c) + interval_;
  if (round.now - job.last_change < kCostsBeforeTrial * cost * std::exp2(s.trials)) return;
  idle -= c.devices - held;
  s.trial = c.devices;
  for (const Configuration& now : s.configurations)
    if (now.pool == s.pool_now && now.devices == held) s.trial_rate = now.rate * c.devices / held;
  s.given_weight = -1;
}

// Before jobs are offered.
void DuctilePolicy::Impl::try_again(const Round& round) {
  std::vector<int64_t> idle;
  for (const Pool& pool : pools_) idle.push_back(pool.devices);
  bool wanted = false;  // by a job that waits
  for (const JobView& job : round.jobs) wanted = wanted || (job.allocation.empty() && !job.service);
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    if (s.trial > 0 && (wanted || !is_on_trial(round, job, s))) {
      s.trial = 0;
      s.given_weight = -1;
    }
    if (s.pool_now < 0) continue;
    idle[static_cast<size_t>(s.pool_now)] -= device_count(
        s.grant >= 0 ? grants_[static_cast<size_t>(s.grant)].allocation : job.allocation);
  }
  if (wanted) return;
  std::vector<const JobView*> jobs;  // that may try a size, those that hold the fewest first
  std::vector<int64_t> of_pool(pools_.size());
  for (const JobView& job : round.jobs) {
    const State& s = states_.at(job.id);
    if (job.service || s.pinned || s.pool_now < 0 || s.trial > 0) continue;
    if (!job.saves || !job.plans.empty() || job.pause_left > 0 || job.last_change < 0) continue;
    const auto pool = static_cast<size_t>(s.pool_now);
    if (slower_sizes(job, s, idle[pool]).empty()) continue;
    jobs.push_back(&job);
    ++of_pool[pool];
  }
  std::ranges::stable_sort(jobs, {},
                           [](const JobView* job) { return device_count(job->allocation); });
  for (const JobView* job : jobs) {
    State& s = states_.at(job->id);
    const auto pool = static_cast<size_t>(s.pool_now);
    const int64_t share = idle[pool] / of_pool[pool]--;
    begin_trial(round, *job, s, share, idle[pool]);
  }
}

// After it was decided who gets what: a trial that is worth less than what it costs, or that a
// quota forbids, is none, and its turn is over as if it had been made.
void DuctilePolicy::Impl::count_trials(const Round& round) {
  for (const JobView& job : round.jobs) {
    State& s = states_.at(job.id);
    if (s.trial == 0 || device_count(job.allocation) == s.trial) continue;
    ++s.trials;
    const int choice = s.pinned ? -1 : allocator_->chosen(s.slot);
    if (choice >= 0) {
      const Configuration& c = s.configurations[static_cast<size_t>(choice)];
      if (c.pool == s.pool_now && c.devices == s.trial) continue;
    }
    s.trial = 0;
    s.given_weight = -1;
  }
}

// What was to try a size for which there is no piece keeps what it has. Returns whether there were
// any, and all has to be placed again.
bool DuctilePolicy::Impl::drop_trials(const Round& round, const std::vector<uint8_t>& unplaced) {
  bool any = false;
  for (size_t i = 0; i < round.jobs.size(); ++i) {
    State& s = states_.at(round.jobs[i].id);
    if (unplaced[i] == 0 || s.trial == 0) continue;
    s.trial = 0;
    s.given_weight = -1;
    offer(round.jobs[i], s);
    any = true;
  }
  if (any) allocator_->solve();
  return any;
}

}  // namespace ductile::sched
