#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ductile/cluster/records.h"

namespace ductile::cluster {

// That a job held so many devices of a node for a time.
struct HeldSpan {
  JobId job = 0;
  std::string node;
  int64_t devices = 1;
  double from = 0;
  std::optional<double> to;  // none: it holds them still
  bool operator==(const HeldSpan&) const = default;
};

// Who held what, and for how long, from the events of a store. It takes the events in their order,
// each once, and remembers the last kMostSpans spans and a sum for each job. One thread at a time.
class Ledger {
 public:
  static constexpr size_t kMostSpans = 20000;

  // The number of the last event that was taken.
  Revision seen() const { return seen_; }
  // Events of other kinds, and damaged ones, change nothing.
  void add(const Event& event);

  // Those that reach beyond `since`, in the order of their ends; what is still held comes last.
  std::vector<HeldSpan> spans(double since) const;
  double device_seconds(JobId job, double now) const;
  // Sums of how many jobs it remembers. The store forgets jobs, and tells nobody: who keeps one
  // store's ledger for long lets it forget those that are not there any more.
  size_t sums() const { return sums_.size(); }
  void keep_only(const std::set<JobId>& jobs);

 private:
  void end_spans(JobId job, double time);

  Revision seen_ = 0;
  std::deque<HeldSpan> ended_;
  std::map<JobId, std::vector<HeldSpan>> held_;
  std::map<JobId, double> sums_;
};

}  // namespace ductile::cluster
