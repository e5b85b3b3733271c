#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/sched/perf_fit.h"
#include "ductile/sched/step_model.h"

// Step times that jobs have measured, and the models made of them.
namespace ductile::sched {

// What became of an observation.
enum class Observed : uint8_t {
  fresh,    // the first of its configuration
  known,    // another reading of a configuration that was measured before
  refused,  // it cannot be true (not a number, not above 0, a step of more than 1e6 s); no effect
};

// fit_perf() with a memory: jobs that have measured the same share one fit. The memory is bounded
// and changes no result.
class FitCache {
 public:
  explicit FitCache(double least_gain = 0) : least_gain_(least_gain) {}
  PerfParams fit(std::span<const StepSample> samples);

 private:
  double least_gain_;  // of fit_perf()
  std::unordered_map<uint64_t, PerfParams> known_;
};

// The measurements on one device type: of one job, or of all jobs of an application if the workers
// measure (PolicyTraits::measures). A configuration is the nodes, replicas and local batch of a
// StepSample. At most kMostSamples of them are kept: a further one replaces the oldest. A plain
// value; one thread at a time may use it.
class Measurements {
 public:
  static constexpr size_t kMostSamples = 1024;

  // Whether a worker could have measured this: whole numbers of at least 1, and times from 1e-9 to
  // 1e6 s of which the gradient's is not the larger one.
  static bool is_possible(const StepSample& sample);

  // With `averages`, further readings of a configuration are averaged (their logarithms), except
  // that stragglers are left out; without it, they change nothing, as published for Pollux.
  Observed add(const StepSample& sample, bool averages);
  // Makes perf() from the samples, if there are new ones. With `corrects`, it is fitted only after
  // new shapes (nodes, replicas), and steps() is made from all samples.
  void refresh(FitCache& fits, bool corrects);

  std::span<const StepSample> samples() const { return samples_; }
  std::span<const int32_t> readings() const { return readings_; }  // each sample is the mean of
  const std::optional<PerfParams>& perf() const { return perf_; }  // none before refresh()
  const std::shared_ptr<const StepModel>& steps() const { return steps_; }  // null: not corrected
  int32_t most_replicas() const { return most_replicas_; }  // of the largest run so far; 0: none
  uint32_t version() const { return version_; }             // rises with every change

  // All of it as JSON. from_state() gives a value that behaves the same to the bit; it throws
  // data_loss, beginning with `where`, if the state is damaged.
  nlohmann::json state() const;
  static Measurements from_state(const nlohmann::json& state, const std::string& where);

 private:
  Observed read_again(size_t sample, const StepSample& reading);

  std::vector<StepSample> samples_;  // oldest first
  std::vector<int32_t> readings_;
  bool dirty_ = false;      // there are changes since refresh()
  bool new_shape_ = false;  // since perf_ was fitted
  std::optional<PerfParams> perf_;
  std::shared_ptr<const StepModel> steps_;
  int32_t most_replicas_ = 0;
  uint32_t version_ = 0;
};

// The measurements of all applications, by device type. What was measured is kept, of kMostKinds
// pairs of these, and of more only while somebody holds them: for a further one those go that were
// used least recently. Nobody has to be asked for what nothing was measured of, as of a command.
class SharedMeasurements {
 public:
  static constexpr size_t kMostKinds = 1024;

  SharedMeasurements() = default;
  SharedMeasurements(SharedMeasurements&&) = default;  // its parts refer to one another

  // One and the same for all that ask while somebody holds it. To ask keeps nothing.
  std::shared_ptr<Measurements> of(const std::string& application, const std::string& type);
  // What somebody holds of these was measured, or is used again: from now on it is kept.
  void keep(const std::string& application, const std::string& type);
  // Of the applications that have measured, as many as were used last, by name.
  std::vector<std::string> newest(size_t most) const;
  Measurements* find(const std::string& application, const std::string& type) const;  // null: none
  uint64_t forgotten() const { return forgotten_; }  // rises when measurements go, or all change

  // The least recently used come first.
  nlohmann::json state() const;
  // Replaces the measurements in place, so that agents which hold them see the new ones. Throws
  // data_loss, and then nothing has changed.
  void restore(const nlohmann::json& state, const std::string& where);

 private:
  using Key = std::pair<std::string, std::string>;
  struct Entry {
    std::shared_ptr<Measurements> measurements;
    uint64_t used = 0;                      // of uses_
    std::list<const Key*>::iterator place;  // in queue_
  };
  void forget_oldest();
  void forget_released();

  std::map<Key, Entry> known_;
  // Keys of known_, those that may go first in front.
  std::list<const Key*> queue_;
  // What is held and not kept, or was lately.
  std::map<Key, std::weak_ptr<Measurements>> held_;
  size_t most_held_ = 0;  // when there are more, those that were released are looked for
  uint64_t uses_ = 0, forgotten_ = 0;
};

}  // namespace ductile::sched
