#pragma once

#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/tune/space.h"

// Files of learning curves, one JSON object a line, .jsonl or .jsonl.zst: a run of one task with
// its hyperparameters and one list of numbers for each measure.
namespace ductile::replay {

// A task: its runs, as a space of which only they may be asked for. Values are lower-is-better.
struct Task {
  std::string name;
  std::string metric;
  bool higher_is_better = false;  // in the file; `curves` has the negated values then
  tune::Space space;              // listed()[i] is the setting of run i
  // Of each run, one value for each point. A run ends where its list ends; one that diverged ends
  // with NaN.
  std::vector<std::vector<double>> curves;

  size_t length() const;             // of the longest curve
  double best_of(size_t run) const;  // the least value on its curve; infinite where there is none
  double best() const;               // of all runs
  // What regrets are divided by: how far the best value of the median run is from the best of all.
  double spread() const;
};

// What is measured: a name, or empty for the file's own (a validation measure before a test one,
// anything but a loss before a loss), and the direction: "max", "min", or empty, to be told by the
// name.
struct Metric {
  std::string name, direction;
};
Metric parse_metric(const std::string& text);  // "validation/accuracy:max"

// The tasks in alphabetical order, those alone whose name contains `only`. In a curve null is what
// was not measured where numbers follow it (the value before holds), and divergence where none
// does. Runs without any value of the metric are left out; tasks with fewer than two runs, too.
// Throws not_found, invalid_argument or data_loss, naming the file and the line.
std::vector<Task> read_tasks(const fs::path& file, const Metric& metric, const std::string& only);
// The same from text; `source` is for messages.
std::vector<Task> parse_tasks(std::string_view text, const std::string& source,
                              const Metric& metric, const std::string& only);

}  // namespace ductile::replay
