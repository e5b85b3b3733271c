#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/paths.h"
#include "ductile/server/hosts.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

// What the workers of a job by stages need of memory by the figures of its plan, where fewer of
// them than it has stages, with all replicas and parts, take turns. Of divided stages the plan's
// figures are too small: note_on_split().
class PlanMemory {
 public:
  // Of the plan with this text, by which the job runs. Nothing where it does not say what its
  // stages need: somebody wrote it by hand, or it is of other stages.
  static std::optional<PlanMemory> of(const spec::JobOptions& job, const std::string& plan);

  // Whether so many workers, and any larger number of them, have room for all of it: each has what
  // a device has by the file for which the plan was made; or, where `here` is above 0, all are on
  // one machine, which has so many bytes for them together.
  bool fits(int64_t workers, double here) const { return workers >= fewest(here); }
  int64_t fewest(double here) const;   // workers that have room
  double most(int64_t workers) const;  // bytes of the worker that needs most
  double limit() const;                // of the smallest device

  // From here on no device has more than so many bytes: those of the plan may be gone.
  void limit_to(double bytes);

 private:
  struct Stage {
    double peak = 0, limit = 0, state = 0;  // bytes; the state is a part of the peak
  };
  bool has_room(int64_t workers, double here) const;
  // Of each of so many workers: what it needs, and what the smallest device of its stages has.
  std::vector<std::pair<double, double>> needs(int64_t workers) const;

  std::vector<Stage> stages_;
  std::vector<size_t> stage_of_;  // by virtual rank of one pipeline
  int64_t virtual_ranks_ = 1;
  bool replicated_ = false;  // stages have replicas of their own
  bool sharded_ = false;     // a worker holds the state of its own stages alone
  double whole_state_ = 0;
};

// The memory for workers that are all on this machine, in bytes; 0 where the setup names hosts.
double memory_here(const server::HostSetup& setup);

// Throws invalid_argument, naming the plan's file, where so many workers have no room.
void check_fewest(const spec::JobOptions& job, const std::string& plan, const fs::path& file,
                  int64_t workers, const server::HostSetup& setup);

}  // namespace ductile::cli
