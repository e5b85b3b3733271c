// The regimes that fleet_scenario compares.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "ductile/sched/fleet.h"

namespace ductile::sched {

constexpr int32_t kPerNode = 8;

struct Job {
  FleetJob what;
  bool service = false;
  double arrival = 0, work = 0;  // seconds on the devices asked for
  double base = 0, phase = 0;    // of a service
  double finish = -1;
  // Held, as the world sees it.
  int32_t pool = -1, devices = 0;
  double pause = 0;
  double window_start = 0, granted = 0, asked = 0;
};

// What a regime does each round: reads jobs, sets `next` (pool, devices) of each.
class Regime {
 public:
  virtual ~Regime() = default;
  virtual void arrived(int32_t job, double now) = 0;
  virtual void changed(int32_t job, double now) = 0;  // a service's demand
  virtual void ended(int32_t job) = 0;
  virtual void lost(int32_t job) = 0;
  virtual void capacity(int32_t pool, int64_t devices) = 0;
  virtual bool heeds() const { return false; }         // announcements
  virtual void announced(int32_t, int64_t, double) {}  // devices of a pool leave at that time
  virtual void decide(double now) = 0;
  virtual std::pair<int32_t, int32_t> held(int32_t job) const = 0;
  virtual void account(double now, double seconds) = 0;
};

class Ours : public Regime {
 public:
  Ours(const std::vector<Pool>& pools, const std::vector<int32_t>& regions,
       const std::vector<Job>& jobs)
      : jobs_(jobs), fleet_(pools, regions) {}
  void arrived(int32_t j, double now) override {
    fleet_.set_job(j, jobs_[static_cast<size_t>(j)].what, now);
  }
  void changed(int32_t j, double now) override { arrived(j, now); }
  void ended(int32_t j) override { fleet_.remove_job(j); }
  void lost(int32_t j) override { fleet_.lose(j); }
  void capacity(int32_t pool, int64_t devices) override { fleet_.set_capacity(pool, devices); }
  bool heeds() const override { return true; }
  void announced(int32_t pool, int64_t devices, double at) override {
    fleet_.announce(pool, devices, at);
  }
  void decide(double now) override { fleet_.decide(now, false); }
  std::pair<int32_t, int32_t> held(int32_t j) const override {
    return {fleet_.pool(j), fleet_.devices(j)};
  }
  void account(double now, double seconds) override {
    closed_.clear();
    fleet_.account(now, seconds, closed_);
  }

 private:
  const std::vector<Job>& jobs_;
  FleetScheduler fleet_;
  std::vector<ClosedWindow> closed_;
};

// How fixed sizes are served, first come first served within a tier.
enum class Serving {
  partitions,  // every tier has its own part of each pool; nothing is taken from who runs
  queue,       // all share, Premium first in the queue; nothing is taken from who runs
  priority,    // all share; a job stops the last to come of lower tiers where it does not fit
};

class Rigid : public Regime {
 public:
  Rigid(const std::vector<Pool>& pools, const std::vector<int32_t>& region_of_cluster,
        const std::vector<Job>& jobs, Serving serving, std::array<double, 3> shares)
      : jobs_(jobs),
        pools_(pools),
        regions_(region_of_cluster),
        serving_(serving),
        split_(serving == Serving::partitions) {
    for (const Pool& p : pools)
      for (int t = 0; t < 3; ++t)
        free_.push_back(split_ ? static_cast<int64_t>(shares[static_cast<size_t>(t)] *
                                                      static_cast<double>(p.devices / kPerNode)) *
                                     kPerNode
                               : (t == 0 ? p.devices : 0));
    total_.resize(pools.size());
    for (size_t p = 0; p < pools.size(); ++p) total_[p] = pools[p].devices;
  }
  void arrived(int32_t j, double) override {
    queue_[static_cast<size_t>(jobs_[static_cast<size_t>(j)].what.tier)].push_back(j);
    grow(j);
  }
  void changed(int32_t j, double) override {
    State& s = state(j);
    const int32_t want = jobs_[static_cast<size_t>(j)].what.demand;
    if (s.pool < 0) return;
    int64_t& f = part(s.pool, j);
    if (want < s.devices) {
      f += s.devices - want;
      s.devices = want;
    } else {
      const auto more =
          static_cast<int32_t>(std::min<int64_t>(want - s.devices, std::max<int64_t>(f, 0)));
      f -= more;
      s.devices += more;
    }
  }
  void ended(int32_t j) override {
    State& s = state(j);
    if (s.pool >= 0) part(s.pool, j) += s.devices;
    s = {};
    s.gone = true;
  }
  void lost(int32_t j) override { (void)j; }  // it restarts where it is, on what comes free first
  void capacity(int32_t pool, int64_t devices) override {
    // What is lost is taken from the parts in turn.
    int64_t change = devices - total_[static_cast<size_t>(pool)];
    total_[static_cast<size_t>(pool)] = devices;
    while (change != 0) {
      const int64_t node = std::clamp<int64_t>(change, -kPerNode, kPerNode);
      free_[static_cast<size_t>(pool) * 3 + (split_ ? turn_++ % 3 : 0)] += node;
      change -= node;
    }
  }
  void decide(double) override {
    // Parts that lost devices below what is held: the last to come stops and queues again.
    for (size_t p = 0; p < pools_.size(); ++p)
      for (size_t t = 0; t < 3; ++t)
        for (size_t j = jobs_.size(); free_[p * 3 + t] < 0 && j-- > 0;) {
          if (j >= states_.size()) continue;
          State& s = states_[j];
          if (s.pool != static_cast<int32_t>(p) || jobs_[j].service) continue;
          if (split_ && static_cast<size_t>(jobs_[j].what.tier) != t) continue;
          free_[p * 3 + t] += s.devices;
          s.pool = -1;
          s.devices = 0;
          queue_[static_cast<size_t>(jobs_[j].what.tier)].push_front(static_cast<int32_t>(j));
        }
    // Where only services are left, they shrink.
    for (size_t p = 0; p < pools_.size(); ++p)
      for (size_t t = 0; t < 3; ++t)
        for (size_t j = 0; free_[p * 3 + t] < 0 && j < states_.size(); ++j) {
          State& s = states_[j];
          if (s.pool != static_cast<int32_t>(p) || !jobs_[j].service) continue;
          const auto less = static_cast<int32_t>(std::min<int64_t>(s.devices, -free_[p * 3 + t]));
          s.devices -= less;
          free_[p * 3 + t] += less;
        }
    if (serving_ == Serving::priority) find_victims();
    for (auto& queue : queue_) {
      std::deque<int32_t> left;
      for (int32_t j : queue) {
        State& s = state(j);
        if (s.gone || s.pool >= 0) continue;
        const FleetJob& w = jobs_[static_cast<size_t>(j)].what;
        for (int pass = 0; pass < 2 && s.pool < 0; ++pass)
          for (size_t p = 0; p < pools_.size() && s.pool < 0; ++p) {
            const bool home = regions_[static_cast<size_t>(pools_[p].cluster)] == w.home;
            if ((pass == 0) != home || (!home && !w.movable)) continue;
            if (w.type >= 0 && pools_[p].type != w.type) continue;
            int64_t& f = part(static_cast<int32_t>(p), j);
            if (f < w.demand && serving_ == Serving::priority) make_room(p, w);
            if (f < w.demand) continue;
            f -= w.demand;
            s.pool = static_cast<int32_t>(p);
            s.devices = w.demand;
          }
        if (s.pool < 0) left.push_back(j);
      }
      queue = std::move(left);
    }
  }
  std::pair<int32_t, int32_t> held(int32_t j) const override {
    const State& s = states_[static_cast<size_t>(j)];
    return {s.pool, s.devices};
  }
  void account(double, double) override {}

 private:
  struct State {
    int32_t pool = -1, devices = 0;
    bool gone = false;
  };
  // Who runs, by pool and tier, in order of arrival; services are never stopped.
  void find_victims() {
    victims_.assign(pools_.size(), {});
    for (size_t j = 0; j < states_.size(); ++j)
      if (states_[j].pool >= 0 && !jobs_[j].service)
        victims_[static_cast<size_t>(states_[j].pool)][static_cast<size_t>(jobs_[j].what.tier)]
            .push_back(static_cast<int32_t>(j));
  }
  // Stops jobs of lower tiers, the lowest and last first, if that makes room for the job.
  void make_room(size_t pool, const FleetJob& job) {
    const auto tier = static_cast<size_t>(job.tier);
    int64_t room = free_[pool * 3];
    for (size_t t = tier + 1; t < 3; ++t)
      for (const int32_t v : victims_[pool][t]) room += state(v).devices;
    if (room < job.demand) return;
    for (size_t t = 2; t > tier; --t)
      while (free_[pool * 3] < job.demand && !victims_[pool][t].empty()) {
        const int32_t v = victims_[pool][t].back();
        victims_[pool][t].pop_back();
        free_[pool * 3] += state(v).devices;
        state(v) = {};
        queue_[t].push_front(v);
      }
  }
  void grow(int32_t j) {
    if (static_cast<size_t>(j) >= states_.size()) states_.resize(static_cast<size_t>(j) + 1);
  }
  State& state(int32_t j) { return states_[static_cast<size_t>(j)]; }
  int64_t& part(int32_t pool, int32_t j) {
    return free_[static_cast<size_t>(pool) * 3 +
                 (split_ ? static_cast<size_t>(jobs_[static_cast<size_t>(j)].what.tier) : 0)];
  }
  const std::vector<Job>& jobs_;
  std::vector<Pool> pools_;
  std::vector<int32_t> regions_;
  Serving serving_;
  bool split_;
  std::vector<std::array<std::vector<int32_t>, 3>> victims_;
  std::vector<int64_t> free_, total_;
  std::vector<State> states_;
  std::array<std::deque<int32_t>, 3> queue_;
  size_t turn_ = 0;
};

}  // namespace ductile::sched
