#include "ductile/sched/fleet.h"

#include <algorithm>
#include <cmath>

#include "ductile/base/error.h"
#include "ductile/sched/valuation.h"

namespace ductile::sched {

namespace {

// What a device of the guaranteed part, of what the guarantee asks beyond it and of spare devices
// is worth, by tier. Far apart, so that no number of lower claims outbids a higher one of the size.
constexpr double kOwed[] = {8e3, 1e3, 1};
constexpr double kUrgentWeight = 3;  // times kOwed
constexpr double kPlain[] = {30, 10, 3};
constexpr double kSpare = 1;
// A restart counts for so many: a promise kept narrowly is not to be risked for little.
constexpr double kReluctance[] = {10, 5, 3};
constexpr double kServiceMoves = 0.5;

bool may_use(const FleetJob& job, int32_t type) {
  return type < 64 && (job.types >> type & 1) != 0;
}

}  // namespace

class FleetScheduler::Impl {
 public:
  struct State {
    FleetJob job;
    bool alive = false;
    bool dirty = true;
    Owed owed;  // when it was last weighed
    int32_t region = -1;
    int32_t slot = -1;  // in the region's allocator
    int32_t pool = -1;  // held; -1: none
    int32_t devices = 0;
    double pause = 0;
    double window_start = 0;
    double granted = 0, asked = 0;
  };
  struct Region {
    std::vector<int32_t> pools;
    std::vector<int64_t> capacity, leaving;  // leaving: of the capacity, announced and near
    std::unique_ptr<Allocator> allocator;
    std::vector<int32_t> slots;  // job of each slot; -1: free
    std::vector<int32_t> free_slots;
    std::vector<int32_t> dirty;    // jobs to be weighed
    std::vector<int32_t> changed;  // slots offered since the last decision
    bool capacity_changed = true;
  };

  Impl(std::span<const Pool> pools, std::span<const int32_t> region_of_cluster,
       const FleetOptions& options)
      : options_(options), pools_(pools.begin(), pools.end()) {
    int32_t count = 0;
    for (int32_t r : region_of_cluster) count = std::max(count, r + 1);
    regions_.resize(static_cast<size_t>(count));
    for (size_t p = 0; p < pools_.size(); ++p) {
      Region& r =
          regions_[static_cast<size_t>(region_of_cluster[static_cast<size_t>(pools_[p].cluster)])];
      index_in_region_.push_back(static_cast<int32_t>(r.pools.size()));
      region_of_pool_.push_back(region_of_cluster[static_cast<size_t>(pools_[p].cluster)]);
      r.pools.push_back(static_cast<int32_t>(p));
      r.capacity.push_back(pools_[p].devices);
      r.leaving.push_back(0);
    }
    for (Region& r : regions_) {
      DUCTILE_CHECK(!r.pools.empty(), "a region without devices");
      AllocatorOptions o;
      o.target_gap = options_.target_gap;
      o.exact_labels = 0;  // regions are large: prices and repair come close enough
      o.max_evaluations = 80;
      r.allocator = std::make_unique<Allocator>(r.capacity, o);
    }
  }

  State& at(int32_t job) { return states_[static_cast<size_t>(job)]; }

  void mark(int32_t job) {
    State& s = at(job);
    if (s.dirty || s.region < 0) return;
    s.dirty = true;
    regions_[static_cast<size_t>(s.region)].dirty.push_back(job);
  }

  void enter(int32_t job, int32_t region) {
    State& s = at(job);
    Region& r = regions_[static_cast<size_t>(region)];
    s.region = region;
    if (r.free_slots.empty()) {
      s.slot = static_cast<int32_t>(r.slots.size());
      r.slots.push_back(job);
    } else {
      s.slot = r.free_slots.back();
      r.free_slots.pop_back();
      r.slots[static_cast<size_t>(s.slot)] = job;
    }
    s.dirty = true;
    r.dirty.push_back(job);
  }

  void leave(int32_t job) {
    State& s = at(job);
    Region& r = regions_[static_cast<size_t>(s.region)];
    r.allocator->set_job(s.slot, {});
    r.slots[static_cast<size_t>(s.slot)] = -1;
    r.free_slots.push_back(s.slot);
    drop(s);
    s.region = s.slot = -1;
  }

  void drop(State& s) {
    if (s.pool >= 0) team_held(s.job.team) -= s.devices;
    s.pool = -1;
    s.devices = 0;
  }

  double& team_held(int32_t team) {
    if (teams_.size() <= static_cast<size_t>(team)) teams_.resize(static_cast<size_t>(team) + 1);
    return teams_[static_cast<size_t>(team)].held;
  }

  double team_factor(int32_t team) {
    const double held = team_held(team);
    const Team& t = teams_[static_cast<size_t>(team)];
    double total = 0;
    for (const Region& r : regions_)
      for (int64_t c : r.capacity) total += static_cast<double>(c);
    const double share = t.share > 0 ? t.share : 1.0 / static_cast<double>(teams_.size());
    return sched::team_factor(held, share * total);
  }

  Owed owed(const State& s) const {
    return owed_devices(s.job.tier, guarantee(s.job.tier), kPromiseMargin, s.job.demand,
                        {0, 0, s.granted, s.asked}, options_.window);
  }

  void weigh(int32_t job) {
    State& s = at(job);
    Region& r = regions_[static_cast<size_t>(s.region)];
    s.dirty = false;
    const auto tier = static_cast<size_t>(s.job.tier);
    s.owed = owed(s);
    const double need = s.owed.devices;
    const double worth = (need > s.job.demand ? 2 : 1) * kOwed[tier] *
                         (s.owed.urgent && s.job.tier == Tier::standard ? kUrgentWeight : 1);
    const double team = team_factor(s.job.team);
    const double d = s.job.demand;
    offers_.clear();
    for (size_t p = 0; p < r.pools.size(); ++p) {
      const Pool& pool = pools_[static_cast<size_t>(r.pools[p])];
      if (!may_use(s.job, pool.type)) continue;
      const int32_t sizes[] = {s.job.demand / 4, s.job.demand / 2, s.job.demand, s.job.demand * 2};
      for (size_t i = 0; i < std::size(sizes); ++i) {
        const int32_t k = sizes[i];
        if (k < 1 || (s.job.elastic ? (s.job.sizes >> i & 1) == 0 : k != s.job.demand)) continue;
        // Concave: what is owed first, then up to the demand, then spare devices.
        const double x = d * std::pow(k / d, k > d ? s.job.scaling : 1.0);
        double value = worth * std::min(x, need) +
                       kPlain[tier] * team * std::max(0.0, std::min(x, d) - need) +
                       kSpare * team * std::max(0.0, x - std::max(d, need));
        if ((s.pool >= 0 || options_.afresh) && (s.devices != k || s.pool != r.pools[p]))
          value *= after_pause(options_.horizon, kReluctance[tier] * s.job.restart_seconds);
        // A service grows and shrinks where it is; going elsewhere interrupts it.
        if (!s.job.elastic && s.pool >= 0 && s.pool != r.pools[p]) value *= kServiceMoves;
        offers_.push_back({static_cast<int32_t>(p), k, value});
      }
    }
    r.allocator->set_job(s.slot, offers_);
    r.changed.push_back(s.slot);
  }

  Summary decide(double now, bool full);
  std::vector<int64_t> room_for_moves() const;
  int32_t migrate();

  // What is announced to leave within the lead.
  void count_leaving(double now) {
    std::erase_if(announced_, [&](const auto& a) { return a.at <= now; });
    std::vector<int64_t> leaving(pools_.size(), 0);
    for (const Announcement& a : announced_)
      if (a.at <= now + options_.lead) leaving[static_cast<size_t>(a.pool)] += a.devices;
    for (size_t p = 0; p < pools_.size(); ++p) {
      Region& r = regions_[static_cast<size_t>(region_of_pool_[p])];
      int64_t& known = r.leaving[static_cast<size_t>(index_in_region_[p])];
      if (known == leaving[p]) continue;
      known = leaving[p];
      r.capacity_changed = true;
    }
  }

  struct Announcement {
    int32_t pool;
    int64_t devices;
    double at;
  };
  std::vector<Announcement> announced_;

  FleetOptions options_;
  std::vector<Pool> pools_;
  std::vector<int32_t> index_in_region_, region_of_pool_;
  std::vector<Region> regions_;
  std::vector<State> states_;
  struct Team {
    double share = 0, held = 0;
  };
  std::vector<Team> teams_;
  std::vector<Option> offers_;
};

// What a region takes in a round: a small part of what it has, or its price would be out of date,
// and with FleetOptions::afresh at least what is free there.
std::vector<int64_t> FleetScheduler::Impl::room_for_moves() const {
  std::vector<int64_t> room;
  for (const Region& r : regions_) {
    int64_t all = 0, free = 0;
    for (size_t p = 0; p < r.capacity.size(); ++p) {
      all += r.capacity[p];
      free += std::max<int64_t>(r.allocator->capacity()[p] - r.allocator->used()[p], 0);
    }
    room.push_back(options_.afresh ? std::max(all / 50, free) : all / 50);
  }
  return room;
}

// Jobs that got nothing, less than their guarantee needs or less than they asked for, go to the
// region where a device they can use is cheapest, if it is much cheaper than at home.
int32_t FleetScheduler::Impl::migrate() {
  // Price of the cheapest device of a region that the job can use; none: out of reach.
  const auto price = [&](size_t region, const FleetJob& job) {
    const Region& r = regions_[region];
    double least = HUGE_VAL;
    for (size_t p = 0; p < r.pools.size(); ++p)
      if (may_use(job, pools_[static_cast<size_t>(r.pools[p])].type) && r.capacity[p] > 0)
        least = std::min(least, r.allocator->prices()[p]);
    return least;
  };
  std::vector<int64_t> room = room_for_moves();
  int32_t moved = 0;
  for (size_t r = 0; r < regions_.size(); ++r)
    for (size_t slot = 0; slot < regions_[r].slots.size(); ++slot) {
      const int32_t job = regions_[r].slots[slot];
      if (job < 0) continue;
      State& s = at(job);
      const bool squeezed = s.pool >= 0 && s.devices < s.job.demand;
      const bool short_of_owed = s.pool < 0 || owed(s).devices > s.devices;
      if (!s.job.movable || !(short_of_owed || squeezed)) continue;
      size_t best = r;
      const double here = price(r, s.job);
      double least = here / options_.migrate_above / (short_of_owed ? 1 : 2);
      // The time that a transfer takes counts as devices of the present region.
      const double lost = 1 - after_pause(options_.horizon, s.job.transfer_seconds);
      const double transfer = lost > 0 && here < HUGE_VAL ? lost * here : 0;
      for (size_t o = 0; o < regions_.size(); ++o) {
        if (o == r || room[o] < s.job.demand) continue;
        const double there =
            price(o, s.job) + (static_cast<int32_t>(o) == s.job.home ? 0 : transfer);
        if (there >= least) continue;
        least = there;
        best = o;
      }
      if (best == r) continue;
      room[best] -= s.job.demand;
      leave(job);
      enter(job, static_cast<int32_t>(best));
      ++moved;
    }
  return moved;
}

FleetScheduler::Summary FleetScheduler::Impl::decide(double now, bool full) {
  count_leaving(now);
  Summary summary;
  for (Region& r : regions_) {
    if (r.capacity_changed) {
      std::vector<int64_t> left = r.capacity;
      for (size_t p = 0; p < left.size(); ++p)
        left[p] = std::max<int64_t>(0, left[p] - r.leaving[p]);
      r.allocator->set_capacity(std::move(left));
    }
    r.capacity_changed = false;
    if (full) {
      for (int32_t job : r.slots)
        if (job >= 0) weigh(job), ++summary.reweighed;
    } else {
      for (int32_t job : r.dirty)
        if (at(job).alive && at(job).dirty && at(job).region >= 0 &&
            &regions_[static_cast<size_t>(at(job).region)] == &r)
          weigh(job), ++summary.reweighed;
    }
    r.dirty.clear();
    const AllocatorResult& result = full ? r.allocator->solve_afresh() : r.allocator->solve();
    summary.objective += result.objective;
    summary.bound += result.bound;
    r.changed.clear();
    for (size_t slot = 0; slot < r.slots.size(); ++slot) {
      const int32_t job = r.slots[slot];
      if (job < 0) continue;
      State& s = at(job);
      const int chosen = r.allocator->chosen(static_cast<int>(slot));
      int32_t pool = -1, devices = 0;
      if (chosen >= 0) {
        const Option& o = r.allocator->choices(static_cast<int>(slot))[static_cast<size_t>(chosen)];
        pool = r.pools[static_cast<size_t>(o.type)];
        devices = o.gpus;
      }
      if (pool == s.pool && devices == s.devices) continue;
      ++summary.changed;
      drop(s);
      s.pool = pool;
      s.devices = devices;
      if (pool >= 0) {
        team_held(s.job.team) += devices;
        s.pause = s.job.restart_seconds;
      }
      // It counts as held from the next round on.
      if (!s.dirty) {
        s.dirty = true;
        r.dirty.push_back(job);
      }
    }
  }
  summary.migrated = migrate();
  return summary;
}

FleetScheduler::FleetScheduler(std::span<const Pool> pools,
                               std::span<const int32_t> region_of_cluster,
                               const FleetOptions& options)
    : impl_(std::make_unique<Impl>(pools, region_of_cluster, options)) {}
FleetScheduler::~FleetScheduler() = default;

void FleetScheduler::set_job(int32_t job, const FleetJob& what, double now) {
  if (what.demand < 1)
    fail(ErrorCode::invalid_argument, "fleet job {}: a demand of {} devices", job, what.demand);
  if (what.home < 0 || static_cast<size_t>(what.home) >= impl_->regions_.size())
    fail(ErrorCode::invalid_argument, "fleet job {}: region {}, there are {}", job, what.home,
         impl_->regions_.size());
  auto& states = impl_->states_;
  if (static_cast<size_t>(job) >= states.size()) states.resize(static_cast<size_t>(job) + 1);
  Impl::State& s = impl_->at(job);
  const bool fresh = !s.alive;
  if (fresh) s = {};
  s.job = what;
  s.alive = true;
  impl_->team_held(what.team);
  if (fresh) {
    s.window_start = now;
    impl_->enter(job, what.home);
  } else {
    impl_->mark(job);
  }
}

void FleetScheduler::remove_job(int32_t job) {
  Impl::State& s = impl_->at(job);
  if (!s.alive) return;
  impl_->leave(job);
  s.alive = false;
}

void FleetScheduler::set_place(int32_t job, int32_t region, int32_t pool, int32_t devices) {
  Impl::State& s = impl_->at(job);
  DUCTILE_CHECK(s.alive && region >= 0 && static_cast<size_t>(region) < impl_->regions_.size(),
                "fleet job {} in region {}", job, region);
  DUCTILE_CHECK(pool < 0 || impl_->region_of_pool_[static_cast<size_t>(pool)] == region,
                "pool {} is not of region {}", pool, region);
  impl_->drop(s);
  if (region != s.region) {
    impl_->leave(job);
    impl_->enter(job, region);
  }
  s.pool = pool;
  s.devices = pool >= 0 ? devices : 0;
  impl_->team_held(s.job.team) += s.devices;
  impl_->mark(job);
}

void FleetScheduler::set_window(int32_t job, const SlaWindow& window) {
  Impl::State& s = impl_->at(job);
  s.window_start = window.from;
  s.granted = window.granted;
  s.asked = window.asked;
  impl_->mark(job);
}

void FleetScheduler::set_capacity(int32_t pool, int64_t devices) {
  auto& r = impl_->regions_[static_cast<size_t>(impl_->region_of_pool_[static_cast<size_t>(pool)])];
  r.capacity[static_cast<size_t>(impl_->index_in_region_[static_cast<size_t>(pool)])] = devices;
  r.capacity_changed = true;
}

void FleetScheduler::announce(int32_t pool, int64_t devices, double at) {
  DUCTILE_CHECK(pool >= 0 && static_cast<size_t>(pool) < impl_->pools_.size(), "pool {}", pool);
  impl_->announced_.push_back({pool, devices, at});
}

void FleetScheduler::set_team_share(int32_t team, double share) {
  impl_->team_held(team);
  impl_->teams_[static_cast<size_t>(team)].share = share;
}

FleetScheduler::Summary FleetScheduler::decide(double now, bool full) {
  return impl_->decide(now, full);
}

void FleetScheduler::account(double now, double seconds, std::vector<ClosedWindow>& closed) {
  for (size_t i = 0; i < impl_->states_.size(); ++i) {
    Impl::State& s = impl_->states_[i];
    if (!s.alive) continue;
    const double paused = std::min(s.pause, seconds);
    s.pause -= paused;
    if (s.pool >= 0) s.granted += (seconds - paused) * s.devices;
    s.asked += seconds * s.job.demand;
    const Owed owed = impl_->owed(s);
    if (now - s.window_start >= impl_->options_.window) {
      closed.push_back({static_cast<int32_t>(i), s.job.tier, s.granted, s.asked});
      s.window_start = now;
      s.granted = s.asked = 0;
      impl_->mark(static_cast<int32_t>(i));
    } else if (owed != s.owed) {
      impl_->mark(static_cast<int32_t>(i));
    }
  }
}

void FleetScheduler::pause(int32_t job, double seconds) { impl_->at(job).pause += seconds; }

void FleetScheduler::lose(int32_t job) {
  Impl::State& s = impl_->at(job);
  if (!s.alive) return;
  s.pause = s.job.restart_seconds;
  impl_->mark(job);
}

int32_t FleetScheduler::pool(int32_t job) const { return impl_->at(job).pool; }
int32_t FleetScheduler::devices(int32_t job) const { return impl_->at(job).devices; }
int32_t FleetScheduler::region(int32_t job) const { return impl_->at(job).region; }

int32_t FleetScheduler::waiting() const {
  int32_t n = 0;
  for (const Impl::State& s : impl_->states_) n += s.alive && s.pool < 0;
  return n;
}

std::string FleetScheduler::explain(int32_t job) const {
  const Impl::State& s = impl_->at(job);
  if (!s.alive) return "";
  const Impl::Region& r = impl_->regions_[static_cast<size_t>(s.region)];
  const double fraction = s.asked > 0 ? s.granted / s.asked : 1;
  const std::string account =
      fmt::format("{} tier, {:.0f} % of its demand in this window (guarantee {:.0f} %)",
                  to_string(s.job.tier), 100 * fraction, 100 * guarantee(s.job.tier));
  if (s.pool >= 0)
    return fmt::format("runs on {} of {} devices asked for: {}", s.devices, s.job.demand, account);
  int64_t free = 0;
  for (size_t p = 0; p < r.allocator->capacity().size(); ++p)
    free += r.allocator->capacity()[p] - r.allocator->used()[p];
  return fmt::format(
      "waits: {}; it asks for {} devices, and {} of its region are free, the others serve jobs to "
      "which more is promised or that make more of them. It starts when enough come free there, or "
      "when its window falls behind the guarantee",
      account, s.job.demand, free);
}

}  // namespace ductile::sched
