#pragma once

#include <map>
#include <string>
#include <vector>

#include "curve_file.h"
#include "replay.h"

// Methods against each other on the tasks of one file.
namespace ductile::replay {

struct Request {
  std::string file, only, ours = "ductile";
  std::string methods = "random,tpe,gp,one_epoch,halving,hyperband,asha,bohb,mltuner,ductile";
  Metric metric;
  int seeds = 50;
  size_t least_runs = 2;  // tasks with fewer are left out
  size_t tuned = 0;       // so many tasks, the first ones, chose the settings; 0: all of them
  std::string apart;      // or those whose names do not contain this; empty: `tuned` says how many
  double share = 0.01, until = 0.5;
};

// Where methods are judged: parts of the budget that random full runs need.
inline constexpr double kShares[] = {0.1, 0.25, 0.5};

// The regrets of one method on one task at one share, one for each seed.
using Regrets = std::vector<double>;

struct MethodResult {
  Method method;
  // regrets[task][share]
  std::vector<std::vector<Regrets>> regrets;
  // [task]: the median regret over the seeds at kCurvePoints places from 0 to the end
  std::vector<std::vector<double>> curves;
};
inline constexpr int kCurvePoints = 100;

struct Comparison {
  Request request;
  std::vector<Task> tasks;
  size_t left_out = 0;         // tasks with fewer runs than asked for
  std::vector<int64_t> needs;  // of each task
  std::vector<double> shares;  // those of kShares within `until`
  std::vector<MethodResult> results;

  // The methods' groups in the order in which they came.
  std::vector<std::string> groups() const;
  // Of a group the method with the least mean regret at that share: over the first `tuned` tasks,
  // or over all of them where that is 0.
  const MethodResult& chosen(const std::string& group, size_t share) const;
  bool has(const std::string& group) const;
};

// Throws invalid_argument where no task has so many runs, or none is kept apart that was to be, or
// all are.
Comparison compare(const Request& request);

// The share of (task, seed) pairs where `a` has the lower regret; ties count as a half.
double win_rate(const MethodResult& a, const MethodResult& b, size_t share,
                const std::vector<size_t>& tasks);

std::string to_json(const Comparison& comparison);
std::string to_markdown(const Comparison& comparison);
std::string to_page(const Comparison& comparison);

}  // namespace ductile::replay
