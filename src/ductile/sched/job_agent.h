#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/sched/job.h"
#include "ductile/sched/measurements.h"
#include "ductile/sched/policy_traits.h"

// What a job learns of itself while it runs (the agent of Pollux, section 4.1, and ours): how long
// its steps take and how noisy its gradients are, and from these the batch that is best on the
// devices that it holds, and all that a policy may know of it.
namespace ductile::sched {

// What is known of a job before it runs, on one device type.
struct AgentType {
  std::string name;  // jobs of one application share what they measure on types of one name
  int32_t unit = 1;  // devices of one replica (a pipeline's stages); 0: it cannot run there
  BatchLimits limits;
  double unit_rate = 0;  // samples per second of one unit at its largest batch; 0: not known
};

// What is known of a job before it runs.
struct AgentFacts {
  std::string application;  // empty: it shares nothing
  Scaling scaling = Scaling::adaptive;
  int32_t requested_replicas = 1;
  int32_t requested_batch = 1;   // whole batch
  int32_t pipeline_batch = 0;    // of a pipeline: samples per replica and step; 0: not a pipeline
  int32_t most_devices = 0;      // more are never of use; 0: none known
  std::vector<AgentType> types;  // by type id of the cluster
  // Readings of what was measured before are averaged, since each is off by something. Where a
  // policy measures (PolicyTraits::measures) they always are.
  bool averages = false;
  // If there are any, it runs by one of these alone, and its steps need not be measured.
  std::vector<JobPlan> plans;
};

// What a job holds, as far as its batch depends on it.
struct AgentShape {
  int32_t type = 0;
  int32_t nodes = 1;
  int32_t replicas = 1;
  int32_t max_local = 0;  // largest local batch of this placement; 0: that of the type's limits
  bool operator==(const AgentShape&) const = default;
};

// The agent of one job. It takes readings from the job's workers, real or simulated, and has no
// clock and no randomness: the same readings in the same order give the same answers, to the bit.
// Its memory is bounded (Measurements::kMostSamples per device type). A reading that cannot be true
// is refused and changes nothing but refused(). One thread at a time may use the agents that share
// measurements.
class JobAgent {
 public:
  // Obeys `traits`: uses, measures, scales_pipelines. `fits`, and `shared` (null: none), outlive
  // the agent; measurements are shared only if traits.measures.
  JobAgent(AgentFacts facts, const PolicyTraits& traits, FitCache& fits,
           SharedMeasurements* shared = nullptr);

  // The job ran steps on devices of type `type` (one micro-batch each, StepSample).
  Observed observe(int32_t type, const StepSample& steps);
  // A reading of the noise of its gradients, as NoiseEstimator gives it. Refused if it is negative,
  // not a number or above 1e30.
  Observed observe(const GradientNoise& noise);
  int64_t refused() const { return refused_; }

  // How to split the batch on what the job holds: the batch with the best modelled goodput if the
  // batch is free, or else the batch asked for. Local batches are at least 1.
  BatchChoice choose_batch(const AgentShape& shape);

  // The best plan for exactly these devices, as an index of facts().plans; -1: there is none.
  int32_t choose_plan(int32_t type, int32_t devices) const;

  // Writes what never changes: what the job asked for, its limits on each type.
  void describe(JobView& view) const;
  // Writes what was learned since: noise, TypeModel::perf, steps, max_profiled. The view must be a
  // described one.
  void models(JobView& view);
  const AgentFacts& facts() const { return facts_; }
  Scaling scaling() const { return scaling_; }  // of job and policy, the stricter one
  const std::optional<GradientNoise>& noise() const { return noise_; }

  // All that the agent has learned, as JSON, without what it shares. restore() makes an agent of
  // equal facts and traits behave the same to the bit. It throws data_loss, beginning with `where`,
  // for a damaged state or one of another number of types; then the agent is unchanged.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state, const std::string& where);

 private:
  // The logarithm of the noise scale: smoothed, its last reading and step; how jittery steps are.
  struct Smoothing {
    double level = 0, read = 0, step = 0, square = 0, product = 0;
  };

  bool is_pipeline() const { return facts_.pipeline_batch > 0; }
  bool learns() const { return traits_.uses == Scaling::adaptive; }
  void refresh(int32_t type);
  GradientNoise smooth(const GradientNoise& seen);
  BatchChoice search(const AgentShape& shape) const;
  int32_t requested_devices() const;
  uint32_t version() const;
  uint32_t speeds_version() const;  // of it, what was measured of its speed

  AgentFacts facts_;
  PolicyTraits traits_;
  FitCache& fits_;
  SharedMeasurements* shared_;  // null: it shares nothing
  Scaling scaling_;
  std::vector<std::shared_ptr<Measurements>> measured_;  // by type
  std::optional<GradientNoise> noise_;
  Smoothing smoothing_;
  uint32_t version_ = 0;
  int64_t refused_ = 0;
  // The last choice, and what it was made for.
  std::optional<BatchChoice> choice_;
  AgentShape chosen_for_;
  uint32_t chosen_version_ = 0;
};

}  // namespace ductile::sched
