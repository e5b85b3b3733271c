#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/options.h"
#include "ductile/spec/job.h"
#include "ductile/tune/space.h"

// What a tuner is told: which options of a job it may choose, and how it is to search.
namespace ductile::trials {

// Where the first value of a trial stands for the loss before any training (tune/progress.h).
inline constexpr int kValuesOfASlope = 2;
// Of two values a smaller second one has no noise at all: so many are compared, where a quarter of
// a run has them.
inline constexpr int kValuesOfATrial = 5;

struct Setup {
  std::string metric = "accuracy";  // of the evaluations; accuracy, loss or perplexity
  std::string policy = "freeze_thaw";
  std::string searcher = "curves";
  double budget = 0;    // epochs of all trials together before `finish`; 0: ten full runs
  int64_t at_once = 0;  // trials that run side by side; 0: one per core
  int64_t seed = 1;
  bool finish = true;  // the best trial is run to its last epoch

  bool operator==(const Setup&) const = default;
};
void describe(Describer& d, Setup& o);

// What a session tunes, and how.
struct Tuning {
  Setup setup;
  tune::Space space;
};

// Reads a tuning file:
//
//   budget = 60
//   [space."optimizer.lr"]
//   low = 1e-4
//   high = 1.0
//   scale = "log"
//
// The dimensions of the space are options of `job`. Throws invalid_argument, which names `source`
// and the key, for anything that cannot be tuned: an option that does not exist or is of another
// type, a bound that the option does not allow, and options that would change what is measured (the
// data, the length of the run, the seed).
Tuning read_tuning(std::string_view toml, std::string_view source, const spec::JobOptions& job);

// Without a file: the learning rate, and what else the optimiser of the job is most sensitive to.
Tuning default_tuning(const spec::JobOptions& job);

// Sets an option of the tuner, as --tune takes it: "budget=40". Throws invalid_argument, which for
// an option of a job says how such an option is tuned.
void set_option(Setup& setup, const std::string& assignment);

// Epochs of a trial's first run, for policies that begin with short ones.
double first_run(const Setup& setup, const spec::JobOptions& job);
// What is to be said where that is a whole run, or more than a policy with rungs can begin with, so
// that no trial is ended early; empty: nothing.
std::string no_short_runs(const Setup& setup, const spec::JobOptions& job);

// Throws invalid_argument if the job's evaluations do not have what trials are to be judged by.
void check_metric(const Setup& setup, const spec::JobOptions& job);
// Throws invalid_argument where the policy cannot do with the searcher, or with so few evaluations.
void check_search(const Setup& setup, const spec::JobOptions& job);
// Throws invalid_argument for a budget that ends before the first evaluation.
void check_budget(const Setup& setup, const spec::JobOptions& job);

// A sentence for each option of the space that trials with some of the choices do not read.
std::vector<std::string> read_by_some(const tune::Space& space, const spec::JobOptions& job);

// Every built-in model has the same bits with any number of threads (spec/models.h).
bool has_built_in_model(const spec::JobOptions& job);

// The job's own setting, by the options of the space. Nothing where a value of the job is not in
// it.
std::optional<tune::Setting> setting_of(const tune::Space& space, const spec::JobOptions& job);

// "optimizer.lr=0.1", one for each dimension, as --set takes it.
std::vector<std::string> assignments(const tune::Space& space, const tune::Setting& setting);
// The same for people: six digits of a real number.
std::vector<std::string> shown(const tune::Space& space, const tune::Setting& setting);

}  // namespace ductile::trials
