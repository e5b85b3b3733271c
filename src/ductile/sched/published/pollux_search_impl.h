#pragma once

#include <cstdint>
#include <span>
#include <vector>

// The genetic search of PolluxSched (Qiao et al., OSDI'21, section 4.2.1), apart from jobs and
// clusters: NSGA-II (Deb et al. 2002) over matrices of device counts, jobs x nodes.
namespace ductile::sched {

struct PolluxJob {
  int32_t min_replicas = 1;  // fewer are none
  int32_t max_replicas = 1;
  double restart_factor = 1;  // on the speedup where the row differs from the base
  // Speedup against a fair share on `nodes` nodes and `replicas` devices, at
  // [nodes * (most_replicas + 1) + replicas]; both from 0.
  std::vector<float> speedup;
};

struct PolluxProblem {
  std::vector<PolluxJob> jobs;   // in order of service: earlier ones keep what both want
  std::vector<int8_t> capacity;  // of each node
  std::vector<int8_t> base;      // what is held now: jobs x nodes, row-major
  int32_t most_replicas = 0;     // columns of the speedup tables, less one
  int32_t most_nodes_per_job = 16;
  uint64_t seed = 0;
  int32_t population = 100;
  int32_t generations = 100;
};

using PolluxState = std::vector<int8_t>;

struct PolluxFront {
  std::vector<PolluxState> states;  // not dominated by one another
  size_t best = 0;                  // the one of the highest fitness
  double fitness = 0, utility = 0;  // its own
};

// Fitness: harmonic mean of the jobs' speedups, scaled so that a node's worth is 1.
// Utility: sum of speedups over the devices of the nodes in use. `seeds` may be empty.
PolluxFront search(const PolluxProblem& problem, std::vector<PolluxState> seeds);

// Of one state, for tests and the policy's report.
double pollux_fitness(const PolluxProblem& problem, std::span<const int8_t> state);
double pollux_utility(const PolluxProblem& problem, std::span<const int8_t> state);
// Makes a state obey: one job of several nodes a node, min_replicas and
// max_replicas, node capacities.
void pollux_repair(const PolluxProblem& problem, uint64_t seed, PolluxState& state);

}  // namespace ductile::sched
