#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ductile/run/folder.h"

namespace ductile::cli {

// Another plan for a run that goes on: it becomes part of job.toml before any worker has seen it,
// and workers may refuse it, as they alone know the model. Until they have done a step by it, the
// job and the plan of before lie in the run's folder as former_plan.json, so that a refusal brings
// them back: in this process, or, where this one is killed, in the next one that goes on with the
// run. The caller holds the run's lock.
class PlanChange {
 public:
  // Writes `job` (job.toml) and `plan` into the folder; what was there, or what an earlier change
  // that nobody accepted had found there, is kept. Throws unavailable.
  static PlanChange put(const run::RunFolder& folder, const std::string& job,
                        const std::string& plan);
  // The change that an earlier process left open; nothing where there is none, or somebody has
  // written another job.toml since. Throws data_loss for a damaged file, saying what is to be done.
  static std::optional<PlanChange> left_open(const run::RunFolder& folder);

  // A worker wrote this line: its second figure for steps, if larger than the first, accepts.
  void hear(std::string_view line);
  void accept();  // the plan stays
  // Job and plan are those of before. Returns false, and changes nothing, for an accepted plan.
  bool take_back();

 private:
  struct Texts {
    std::string job;
    std::optional<std::string> plan;
  };
  PlanChange(run::RunFolder folder, Texts before, Texts now)
      : folder_(std::move(folder)), before_(std::move(before)), now_(std::move(now)) {}
  static std::optional<PlanChange> read(const run::RunFolder& folder);
  void write(const Texts& texts) const;

  run::RunFolder folder_;
  Texts before_, now_;
  std::optional<int64_t> first_step_;
  bool open_ = true;
};

}  // namespace ductile::cli
