#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ductile/run/folder.h"

// The recorded steps of a pipeline (train.pipelined.trace_steps): trace.jsonl in the run directory,
// one line a step, and trace.json, the same for Perfetto and chrome://tracing.
namespace ductile::run {

inline fs::path trace_file(const RunFolder& folder) { return folder.path() / "trace.jsonl"; }
inline fs::path chrome_trace_file(const RunFolder& folder) { return folder.path() / "trace.json"; }
// The plan by which the run began, as `ductile plan --json` wrote it.
inline fs::path plan_file(const RunFolder& folder) { return folder.path() / "plan.json"; }

// What one stage did: forward, backward, weights, transfer or wait.
struct StageInterval {
  std::string kind;
  int stage = 0;
  int worker = -1;  // that hosted it; -1: it is a prediction
  int64_t micro_batch = 0;
  double begin = 0, end = 0;  // seconds since the step's first
  int to = -1;                // of a predicted transfer: the stage that receives

  bool operator==(const StageInterval&) const = default;
};

struct StageTimeline {
  int64_t step = 0;
  double time = 0;  // seconds since 1970, when the first interval begins
  std::vector<StageInterval> intervals;
  // By stage: the most bytes that it takes at one time beside weights, their gradients and the
  // optimiser's state, as libtorch's allocator counts them or as the plan does; what is not known
  // is not there.
  std::map<int, double> memory;

  double seconds() const;  // until the last one ends
  int num_stages() const;
};

// Throws unavailable that names the file (disk full).
void append_trace(const RunFolder& folder, const StageTimeline& step);
// In order of steps. Of a step that was done again, the last one. Lines that cannot be read are
// left out, and so is a whole file above 256 MiB, which no page could show.
std::vector<StageTimeline> read_trace(const RunFolder& folder);
// What the plan of the run predicts for one step; without intervals where plan.json is not there or
// has no timeline.
StageTimeline predicted_timeline(const RunFolder& folder);

// Writes trace.json, in the Trace Event Format (process 1 the recorded steps, process 2 the
// prediction, from the first recorded step's beginning on; a thread is a stage). Does nothing where
// no step was recorded. Throws unavailable.
void write_chrome_trace(const RunFolder& folder);

}  // namespace ductile::run
