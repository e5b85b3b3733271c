#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/json_value.h"
#include "ductile/run/folder.h"
#include "ductile/run/meters.h"

// A run directory that is read back, for `report.html` and the command line.
namespace ductile::run {

struct Point {
  int64_t step = 0;
  double epoch = 0;
  double seconds = 0;  // the run's own clock, see MetricsWriter::seconds()
  double value = 0;

  bool operator==(const Point&) const = default;
};

// Keeps at most `limit` points of an endless curve, in order. These are the smallest and the
// largest of each of several equal spans of points, and the first and the last point of all. So
// spikes stay, which an average or every n-th point would lose. Memory is bounded by `limit`.
class Decimator {
 public:
  explicit Decimator(size_t limit = 2000);  // at least 8

  void add(const Point& point);  // must be finite; points come in order of time
  std::vector<Point> points() const;

 private:
  struct Span {
    Point low, high;
    bool low_first;
    int64_t count;
  };
  static void widen(Span& span, const Span& later);

  size_t max_spans_;
  int64_t span_points_ = 1;  // a power of two
  std::vector<Span> spans_;
  std::optional<Point> first_, last_;
};

// One metric over the run. Values that are NaN or infinite are counted, not drawn.
struct Curve {
  std::string name;
  std::vector<Point> points;  // decimated
  int64_t count = 0;          // finite values in the file
  double mean = 0;            // of the lines
  double mean_rate = 0;  // of so many a second: over all steps, by the time they took; 0: unknown
  std::optional<Point> first, last, lowest, highest;  // of the finite ones, exact; ties: the first
  int64_t non_finite = 0;
  int64_t first_non_finite_step = 0;
};

// The status of the run, from its last event.
//   unfinished  no end was written: the run goes on, or was killed
//   done, target_reached, interrupted, failed: as its "end" event says
enum class Status : uint8_t { unfinished, done, target_reached, interrupted, failed };
std::string_view to_string(Status status);

struct TargetReached {
  std::string metric;
  double threshold = 0;
  double value = 0;
  int64_t step = 0;
  double seconds = 0;
  std::optional<int64_t> samples;
  std::optional<Cost> cost;
};

struct History {
  Status status = Status::unfinished;
  std::string error;          // of a failed run
  std::vector<Curve> curves;  // in order of first appearance; without TuningRecord::dropped
  std::vector<nlohmann::json> events;
  int64_t bad_lines = 0;  // the number of lines of both files that could not be read
  int64_t steps = 0;      // the highest step seen in metrics or in the end
  double epoch = 0;
  double seconds = 0;
  double begin_time = 0;  // seconds since 1970; 0 = nothing written yet
  double end_time = 0;
  std::optional<int64_t> samples;  // trained, by the last summary or end
  std::optional<Cost> cost;        // from the last event that has it
  std::optional<TargetReached> target;
  std::string digest;  // of the state at the end (ckpt::state_digest); empty: none was written
  nlohmann::json figures = nlohmann::json::object();  // of the last summary or end that has some
  nlohmann::json host;  // from the last start or resume; null if there is none

  const Curve* find(std::string_view name) const;  // nullptr if there is none
};

// Reads both files as far as they are readable; a new run gives an empty history. Memory is bounded
// by the number of metrics, the events and the larger file.
History read_history(const RunFolder& folder);

// The step of the checkpoint that the run noted last, if it noted any. (A controller whose own
// state is there need not ask.)
std::optional<int64_t> last_saved_step(const RunFolder& folder);

// How the run ended, if its last event says so; none: it goes on, or was killed. Throws as
// for_each_diary_line() does.
struct ToldEnd {
  Status status = Status::unfinished;
  int64_t step = 0;
  std::optional<int64_t> checkpoint;  // the newest; none: nothing was saved
  int64_t unsaved_steps = 0;          // done after it and lost, since it ended without saving
  std::string error;                  // of a failed run
};
std::optional<ToldEnd> told_end(const RunFolder& folder);

// Why the run's last controller ended its workers though it could not save its state, if the newest
// of its own lines say so: of what it writes at its end this is the first line, and the `end` may
// find no room. Throws as for_each_diary_line() does.
std::optional<std::string> told_unsaved(const RunFolder& folder);

// How a run that is done ended, by its last event; none: it is not, or has gone on since. Throws as
// for_each_diary_line() does.
struct DoneRun {
  int64_t steps = 0;
  bool target_reached = false;
};
std::optional<DoneRun> done_run(const RunFolder& folder);

// How many steps the run has to do, as its workers said when they began last; 0: not known. Throws
// as for_each_diary_line() does.
int64_t told_steps(const RunFolder& folder);

// The numbers of the history without its curves' points and events, for `--json` output.
nlohmann::json to_json(const History& history);

}  // namespace ductile::run
