#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ductile/sched/allocator.h"
#include "ductile/sched/job.h"
#include "ductile/sched/pools.h"
#include "ductile/sched/sla.h"

namespace ductile::sched {

// A job of a fleet, as its region's scheduler sees it. It consists of plain numbers, so a hundred
// thousand jobs take a few megabytes.
struct FleetJob {
  Tier tier = Tier::basic;
  int32_t team = 0;
  int32_t home = 0;     // region of its data
  bool movable = true;  // may run in another region
  bool elastic = true;  // may hold a quarter, half or twice what it asks for; a service may not
  // Which of these an elastic job may hold: bit 0 a quarter, 1 half, 2 what it asks for, 3 twice.
  uint8_t sizes = 0b1111;
  uint64_t types = ~uint64_t{0};  // device types it may use, by their numbers: a bit each
  int32_t demand = 1;             // devices asked for, the base of its guarantee; a service's floor
  double scaling = 0.9;           // rate(k) grows as k^scaling
  double restart_seconds = 60;    // to save, move and restore: the cost of any change
  double transfer_seconds = 0;    // besides, to start in another region than its data's
};

struct FleetOptions {
  double window = kSlaWindow;  // seconds over which guarantees are accounted
  double horizon = 1800;       // seconds over which a change is expected to pay off
  double migrate_above = 1.3;  // price ratio of regions that makes waiting jobs move
  double lead = 120;  // seconds before an announced loss from which its devices are given to nobody
  double target_gap = 0.001;
  // For a scheduler that is made anew for each round, without last round's choices: a start costs
  // what a change costs, or equal jobs would take turns, and regions take at least what is free.
  bool afresh = false;
};

// The result of a closed window of one job.
struct ClosedWindow {
  int32_t job = 0;
  Tier tier = Tier::basic;
  double granted = 0;  // device-seconds held, not paused
  double asked = 0;    // demand x seconds alive
  double fraction() const { return asked > 0 ? granted / asked : 1; }
};

// Decides for a fleet, region by region; jobs that wait go where devices are cheapest. Every region
// has its own allocator (prices, choices and bound kept between rounds), so a round costs what has
// changed. A job's value of k devices is its tier's weight on the part that its guarantee still
// needs in the present window, the job's team's share on what is beyond it, and less for a change
// than for staying, by the restart against the horizon. One thread.
class FleetScheduler {
 public:
  // `pools`: those of the whole fleet; `region_of_cluster` as Cluster::cluster_region.
  FleetScheduler(std::span<const Pool> pools, std::span<const int32_t> region_of_cluster,
                 const FleetOptions& options = {});
  ~FleetScheduler();

  // Adds a job at `now`, or replaces what is known of it. Jobs are small dense indices.
  void set_job(int32_t job, const FleetJob& what, double now);
  void remove_job(int32_t job);
  // For a driver that keeps the state of jobs itself: where the job is and what it holds there now,
  // whatever was decided (pool -1: nothing), and the account of its present window.
  void set_place(int32_t job, int32_t region, int32_t pool, int32_t devices);
  void set_window(int32_t job, const SlaWindow& window);
  // Sets the number of devices of a pool that are usable now.
  void set_capacity(int32_t pool, int64_t devices);
  // Announces that this many of them will leave at `at` (maintenance, reclaim of spot nodes). From
  // FleetOptions::lead before that time no decision uses them, so nobody holds them when they
  // leave. Call set_capacity() when they have left.
  void announce(int32_t pool, int64_t devices, double at);
  // Sets the share of the fleet of each team; by default they are equal. Above its share a team's
  // jobs count for less.
  void set_team_share(int32_t team, double share);

  // Makes a new decision. A full one considers all jobs again; another one only jobs that changed,
  // and those that their account makes urgent. `moved`: jobs whose region changed.
  struct Summary {
    double objective = 0, bound = 0;
    int32_t changed = 0, migrated = 0, reweighed = 0;
  };
  Summary decide(double now, bool full);

  // To be called between two decisions: `seconds` pass in which the job uses the devices that it
  // holds. Updates its account, and adds the windows that end to `closed`.
  void account(double now, double seconds, std::vector<ClosedWindow>& closed);
  // The job's devices were lost, or its restart is under way: the next `seconds` do not count for
  // it.
  void pause(int32_t job, double seconds);
  // The job lost its devices through a failure.
  void lose(int32_t job);

  int32_t pool(int32_t job) const;     // of what it holds; -1: it waits
  int32_t devices(int32_t job) const;  // held
  int32_t region(int32_t job) const;
  int32_t waiting() const;
  std::string explain(int32_t job) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::sched
