#pragma once

#include <functional>
#include <memory>

#include "ductile/data/dataset.h"
#include "ductile/nn/model.h"
#include "ductile/optim/optimizer.h"
#include "ductile/optim/rate_control.h"
#include "ductile/spec/job.h"
#include "ductile/train/step_method.h"
#include "ductile/train/task.h"

namespace ductile::train {

// The parts that a job is made of. Each part is made from the job file, or handed in by a program
// that has its own, such as a test. A part that is handed in has to be a function of the job alone
// and the same on every worker; otherwise results depend on the workers.
//
// A program that trains with parts of its own gives a Recipe to train_here() (workers.h):
//
//   const Recipe recipe = [job] {
//     Ingredients given;
//     given.train_set = std::make_shared<MyData>(...);
//     given.test_set = std::make_shared<MyData>(...);
//     return complete(std::move(given), job);
//   };
//   const auto folder = run::RunFolder::create("runs", "mine", OptionSet(job).to_toml());
//   const run::RunLock lock(folder.path(), run::RunLock::kLocal);
//   train_here(lock, {.folder = folder, .job = job, .recipe = recipe});
struct Ingredients {
  std::shared_ptr<const data::Dataset> train_set, test_set;
  // A job that brings its own model, data and loss has a task, and no data sets.
  std::shared_ptr<Task> task;
  spec::AugmentOptions augment;  // complete() resolves the job's against the training set; unused
                                 // for tokens
  std::unique_ptr<nn::Model> model;
  // For passes that only look, where their precision is another one than the training's.
  std::unique_ptr<nn::Model> look_model;
  // Makes it again, with the same first values; empty where nobody knows how.
  std::function<std::unique_ptr<nn::Model>()> make_model;
  std::function<std::unique_ptr<optim::Optimizer>(const optim::ParamLayout&)> make_optimizer;
  std::unique_ptr<optim::RateControl> rate_control;
  std::unique_ptr<StepMethod> method;  // complete() adds the probes that rate_control asks for
  double flops_per_sample = 0;         // of the model's forward pass; 0: not known

  const data::DatasetInfo& train_info() const {
    return task ? task->train_info() : train_set->info();
  }
  const data::DatasetInfo& test_info() const { return task ? task->test_info() : test_set->info(); }
};

// Makes all parts that `given` leaves empty. Throws if a part cannot be made, or (invalid_argument)
// if two parts do not fit together.
Ingredients complete(Ingredients given, const spec::JobOptions& job);

// Whether the job's images lie in memory with the channels last.
bool lies_channels_last(const spec::JobOptions& job, nn::Model& model);

// Makes the same ingredients again at each call, since a job that goes back to its first state
// begins with fresh ones.
using Recipe = std::function<Ingredients()>;

// All parts from the job file.
Recipe recipe_of(const spec::JobOptions& job);

// With a model whose weights are blank, where the state lies by stage and they can be made later.
// Exact pipelines compare gradients of the whole model before they begin, and those with numbers of
// replicas by stage look at what all operators make of samples: of zeros they would see nothing. A
// library's model may draw in a way of its own, or read what it has made. Elsewhere the model has
// its first weights.
Ingredients blank_ingredients(const spec::JobOptions& job, const Recipe& recipe);

}  // namespace ductile::train
