#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/sched/hull.h"

namespace ductile::sched {

struct AllocatorOptions {
  // A round ends as soon as its relative distance from the optimum is proven to be at most this.
  double target_gap = 1e-3;
  // Evaluations of the dual in one search for prices.
  int max_evaluations = 400;
  // The number of partial solutions that the exact repair keeps; 0 turns it off. Its cost is this
  // times the number of jobs in question.
  int exact_labels = 256;
  // The most jobs that the exact repair reconsiders; if more are in question, the result is not
  // proven optimal.
  int exact_jobs = 128;
};

struct AllocatorResult {
  double objective = 0;  // total value of the choices made
  double bound = 0;      // proven: no choice of configurations within capacity is worth more
  int evaluations = 0;   // passes over all jobs made to find prices; 0: last round's were kept
  bool exact = false;    // the choices are proven optimal (bound equals objective)
  double gap() const { return bound > 0 ? (bound - objective) / bound : 0; }
};

// Decides which configuration each job gets: it maximises the sum of values, with at most one
// choice per job, within the number of accelerators of every type (Sia's integer programme, SOSP'23
// section 3.4, for any values). Solved without a solver:
//   - Lagrangian relaxation, one price per type; only the concave hulls of the jobs' choices
//   matter.
//     One type: bisection; several: the ellipsoid method with deep cuts. Any prices give a bound.
//   - repair to whole choices within capacity by least regret, then by best use of what is left;
//   - choices whose regret exceeds the gap cannot be part of an optimum; over the few that are left
//     a label-setting dynamic programme finds the best, or proves it, within a fixed effort.
// Prices, choices and the bound of unchanged jobs are kept between rounds, so a round in which few
// jobs changed costs little (result().evaluations is then 0). One thread. It takes about 40 bytes
// of memory per choice. The same calls give the same result on every machine.
class Allocator {
 public:
  static constexpr int kMaxTypes = 8;

  explicit Allocator(std::vector<int64_t> capacity, AllocatorOptions options = {});

  void set_capacity(std::vector<int64_t> capacity);
  // Replaces a job's choices; a job without choices is removed. Jobs are small dense indices, which
  // the caller assigns.
  void set_job(int job, std::span<const Option> choices);

  // Solves, and keeps prices and choices of the last round if the target gap allows it.
  const AllocatorResult& solve();
  // Solves from the start, with only the jobs kept.
  const AllocatorResult& solve_afresh();

  const AllocatorResult& result() const { return result_; }
  // The choice made for the job, as an index into the span that was set; -1: none.
  int chosen(int job) const {
    return job < num_jobs() ? jobs_[static_cast<size_t>(job)].chosen : -1;
  }
  // What one accelerator of each type is worth to the jobs at the margin.
  std::span<const double> prices() const { return prices_; }
  std::span<const int64_t> used() const { return used_; }
  std::span<const int64_t> capacity() const { return capacity_; }
  int num_jobs() const { return static_cast<int>(jobs_.size()); }
  std::span<const Option> choices(int job) const;
  // Choices, prices and what was chosen, as JSON: from_state() gives an allocator that goes on to
  // the bit. It throws data_loss, beginning with `where`, if the state is damaged.
  nlohmann::json state() const;
  static Allocator from_state(const nlohmann::json& state, const std::string& where,
                              AllocatorOptions options);
  // The best difference of value and price that the job can have at these prices; 0 if it should
  // wait.
  double surplus(int job) const { return jobs_[static_cast<size_t>(job)].surplus; }

 private:
  struct Job {
    uint32_t choice_begin = 0;
    uint16_t num_choices = 0;
    uint16_t room = 0;                           // choices there is place for in both pools
    std::array<uint16_t, kMaxTypes + 1> hull{};  // corners of type t: [hull[t], hull[t+1])
    std::array<uint16_t, kMaxTypes> cursor{};    // corners taken at the last prices tried
    int32_t chosen = -1;
    double surplus = 0;
    bool dirty = false;
  };
  struct Move;
  class ExactSearch;

  bool allowed(const Job& job, int choice) const;
  double value_of(const Job& job, int choice) const;
  double reduced_value(const Job& job, int choice, const double* prices) const;
  int best_response(Job& job, const double* prices, double& surplus) const;
  double evaluate(const double* prices, int64_t* used);
  double highest_price(int type);
  void find_prices(const double* centre, const double* radius, double tolerance);
  void take_prices(bool keep_choices);
  void refresh_dirty();
  void choose(Job& job, int choice);
  void repair();
  bool cut_overuse();
  bool use_what_is_left();
  void improve_exactly();
  void build_hulls(int job);
  void compact();
  void summarise();

  int num_types() const { return static_cast<int>(capacity_.size()); }

  AllocatorOptions options_;
  std::vector<int64_t> capacity_;
  std::vector<int64_t> used_;
  std::vector<double> prices_;
  std::vector<Job> jobs_;
  std::vector<Option> choices_;  // pools: a job's slice is [choice_begin, + room)
  std::vector<HullPoint> hulls_;
  std::vector<HullPoint> scratch_;
  std::vector<int> dirty_;
  size_t waste_ = 0;
  bool prices_known_ = false;
  double fresh_gap_ = 0;  // that the last search from nothing left
  AllocatorResult result_;
};

}  // namespace ductile::sched
