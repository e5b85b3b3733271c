#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/minima/measure.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"

// What the command line, which links no torch, asks of a trained model.
namespace ductile::train {

struct Question {
  std::string what;                   // eval, predict, minima
  std::string data;                   // a path; empty: the evaluation set of the job
  std::optional<int64_t> checkpoint;  // a step; none: the final weights
  int64_t top = 1;                    // predict: how many classes of each sample
  minima::Options measure;            // minima: what is measured
  bool skip_bad = false;              // predict: leave out what cannot be read, as the job may say

  // Throws invalid_argument.
  static Question from_json(const nlohmann::json& value);
};

// Answers the question about the run. The answer of `eval` are its figures
// (docs/reference/commands.md says which); `predict` calls row() for each sample, in order, and
// answers how many there were; `minima` calls row() with the `share` that is done now and then, and
// answers a line of minima.jsonl without its time. Throws errors of the run's files, of the data
// and of the question. `interrupted` is asked after each batch, or each loss; the error is
// unavailable.
nlohmann::json answer(const Question& question, const run::RunFolder& folder,
                      const spec::JobOptions& job,
                      const std::function<void(const nlohmann::json&)>& row,
                      const std::function<bool()>& interrupted);

}  // namespace ductile::train
