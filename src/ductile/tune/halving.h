#pragma once

#include <vector>

#include "ductile/tune/trial_policy.h"

// The arithmetic of brackets (Li et al., "Hyperband: a novel bandit-based approach to
// hyperparameter optimization", JMLR 18, 2018, algorithm 1), with R = full_budget and the smallest
// first run least_budget.
namespace ductile::tune {

struct Rung {
  int64_t trials = 0;
  double budget = 0;  // up to which each of them is run
};

// s_max + 1: from the least budget to the full one by factors of eta.
int64_t most_rungs(const PolicyOptions& options);

// Rung i of a bracket with s + 1 = num_rungs has floor(n eta^-i) trials, at least one, of budget
// R eta^(i - s).
std::vector<Rung> bracket_rungs(const PolicyOptions& options, int64_t num_rungs, int64_t settings);

// n = ceil((s_max + 1) eta^s / (s + 1)) settings of Hyperband's bracket s.
int64_t hyperband_settings(const PolicyOptions& options, int64_t s);

}  // namespace ductile::tune
