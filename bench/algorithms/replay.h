#pragma once

#include <string>
#include <vector>

#include "curve_file.h"
#include "ductile/tune/trial_policy.h"

// Runs tuning methods on recorded curves: where a policy runs a trial, its values are looked up.
namespace ductile::replay {

// A trial policy with its searcher, and options that differ from the defaults. The text is
// POLICY[+SEARCHER][:OPTION=VALUE...], for example "halving+tpe:halving.eta=4:least_budget=2". A
// list of values, eta=2|3|4, is so many methods of one group, which is named by what stands before
// the first colon.
struct Method {
  std::string name, group;
  std::string policy, searcher;
  std::vector<std::string> options;
  bool uses_total = false;  // it must be told the budget at which it is judged
};
std::vector<Method> parse_methods(const std::string& text);

// What a method had found after each unit of budget: regret[b] = best value so far - best of all,
// in units of Task::spread(); infinite before the first value.
struct Trajectory {
  std::vector<double> regret;  // total + 1 of them
  double spent = 0;
  int64_t trials = 0;
};
Trajectory replay(const Task& task, const Method& method, uint64_t seed, int64_t total);

// The policy that replay() drives.
std::unique_ptr<tune::TrialPolicy> make_method(const Task& task, const Method& method,
                                               uint64_t seed, double total);
// What the task says to a move: the values from the trial's last budget on.
tune::Result look_up(const Task& task, const tune::TrialPolicy& policy, const tune::Move& move);

// How many units full runs of random settings take, in the median of `shuffles`, until one of the
// best `share` of all runs (at least the best one) has been run.
int64_t random_needs(const Task& task, double share, int shuffles);

}  // namespace ductile::replay
