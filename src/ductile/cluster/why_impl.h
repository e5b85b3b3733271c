#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ductile/cluster/records.h"

namespace ductile::cluster {

// What a service is just doing with a job, beyond what the store says.
struct LiveState {
  enum class Moment : uint8_t { waiting, starting, running, saving, resting };
  Moment moment = Moment::waiting;
  std::string text;  // what the policy says of it, or why it is saved or rests; may be empty
  bool operator==(const LiveState&) const = default;
};

// What the service tells those who ask, on other threads. Thread-safe.
class LiveView {
 public:
  explicit LiveView(std::map<std::string, int64_t> quotas) : quotas_(std::move(quotas)) {}

  void set(JobId job, LiveState state);
  void forget(JobId job);

  std::optional<LiveState> of(JobId job) const;
  const std::map<std::string, int64_t>& quotas() const { return quotas_; }  // devices, by team

 private:
  const std::map<std::string, int64_t> quotas_;
  mutable std::mutex mutex_;
  std::map<JobId, LiveState> states_;
};

struct WhyFacts {
  JobRecord job;
  std::optional<LiveState> live;
  std::vector<NodeRecord> nodes;
  std::vector<Drain> drains;
  std::vector<Holder> holders;   // all that is held, by any job
  std::optional<int64_t> quota;  // of its team
};

// In a sentence: why the job waits, or is as it is, with what it asks for, what is free, who holds
// the rest, and what would have to happen.
std::string why(const WhyFacts& facts);

}  // namespace ductile::cluster
