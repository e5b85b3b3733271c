#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ductile/base/json_value.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"

// What the command line, which links no torch, asks of a trained model.
namespace ductile::train {

struct Question {
  std::string what;                   // eval, predict
  std::string data;                   // a path; empty: the evaluation set of the job
  std::optional<int64_t> checkpoint;  // a step; none: the final weights
  int64_t top = 1;                    // predict: how many classes of each sample

  // Throws invalid_argument.
  static Question from_json(const nlohmann::json& value);
};

// Answers the question about the run. The answer of `eval` are its figures
// (docs/reference/commands.md says which); `predict` calls row() for each sample, in order, and
// answers how many there were. Throws errors of the run's files, of the data and of the question.
// `interrupted` is asked after each batch; the error is unavailable.
nlohmann::json answer(const Question& question, const run::RunFolder& folder,
                      const spec::JobOptions& job,
                      const std::function<void(const nlohmann::json&)>& row,
                      const std::function<bool()>& interrupted);

}  // namespace ductile::train
