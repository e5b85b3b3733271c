#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/sched/pools.h"

namespace ductile::sched {

// One way to run a job, and the progress that it is expected to make in this way.
struct Configuration {
  int32_t pool = 0;
  int32_t devices = 0;
  int32_t nodes = 1;
  double rate = 0;  // steps of batch M0 per second
};

// What was learned from the jobs of one application. Only facts that a job reported itself are
// kept.
struct ApplicationModel {
  std::vector<TypeModel> types;  // by type: the one of the job that has run on most devices
  // Gradient noise last seen at a progress of about 2^(i/8) - 1 steps.
  std::vector<std::optional<GradientNoise>> noise;

  // Of the nearest progress seen, a later one rather than an earlier.
  std::optional<GradientNoise> noise_at(double progress) const;
};

class ApplicationModels {
 public:
  void learn(const JobView& job);
  const ApplicationModel* find(const std::string& application) const;

  // All of it as JSON. from_state() throws data_loss, beginning with `where`, for a damaged state.
  nlohmann::json state() const;
  static ApplicationModels from_state(const nlohmann::json& state, const std::string& where);

 private:
  // At most kMostApplications: a further one takes the place of all.
  std::unordered_map<std::string, ApplicationModel> models_;
};

// Every configuration the job may have in these pools, by pool, then devices. Rates come from the
// job's models, or from its application's where those have seen more devices; a job of which
// nothing is known has a nominal rate of one step per second and device, on its least number of
// devices. Sizes are limited to `growth` times the largest number of devices a model has seen (at
// least the job's least), a rigid job to what it asked for, a job with plans to the sizes that
// these have. `noise` is the gradient noise to assume, if it is known.
std::vector<Configuration> configurations(const JobView& job, const ApplicationModel* application,
                                          std::span<const Pool> pools,
                                          std::span<const int32_t> per_node, double growth,
                                          const std::optional<GradientNoise>& noise);

}  // namespace ductile::sched
