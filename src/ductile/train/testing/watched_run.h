#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ductile/data/loader.h"
#include "ductile/train/ingredients.h"
#include "ductile/train/replica.h"
#include "ductile/train/state.h"

// Runs that are watched step by step, and a process to write loops out in full, for the tests of
// methods that choose their samples.
namespace ductile::train::testing {

using Indices = std::vector<int64_t>;

// A small net on 100 digits in batches of 12, seven epochs, with a linear schedule.
spec::JobOptions selection_job(const std::string& method);

// What a run did.
struct Story {
  struct Step {
    bool update = false;
    Indices samples;
    double lr = 0;  // of the last update
  };
  std::vector<Step> steps;

  std::vector<Indices> trained() const;
  std::vector<Indices> looked_at() const;
};

// A run of a job in this thread, alone.
struct WatchedRun {
  explicit WatchedRun(const spec::JobOptions& job,
                      const std::function<void(Ingredients&)>& hand_in = {});
  void step();
  void finish();

  std::shared_ptr<Story> story;
  Replica replica;
  std::vector<float> sum;
  int evaluations = 0;
};

// Trains a job in this thread, alone, to its end.
void run_to_end(Replica& replica);

// One process with the model of a job.
struct Bench {
  explicit Bench(const spec::JobOptions& job);

  at::Tensor losses(const Indices& samples, int64_t epoch, bool training);
  at::Tensor losses(const data::Batch& batch, bool training);
  // In evaluation mode.
  std::vector<float> look(const Indices& samples, int64_t epoch);
  std::vector<float> gradient(const at::Tensor& loss);
  // An update by the mean of the losses times their weights; returns the losses.
  std::vector<float> train(const Indices& samples, int64_t epoch, double lr,
                           const std::vector<float>& weights = {});

  spec::JobOptions job;
  Ingredients parts;
  JobState state;
  std::unique_ptr<data::Loader> loader;
};

// The text of the Error that body() throws, or "no error".
std::string refusal_of(const std::function<void()>& body);

// But for rounding.
void expect_same_weights(Replica& run, Bench& twin);

}  // namespace ductile::train::testing
