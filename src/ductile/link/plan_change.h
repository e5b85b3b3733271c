#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ductile/base/json_value.h"
#include "ductile/run/folder.h"

namespace ductile::link {

// Another plan for a run that goes on: it becomes part of job.toml before any worker has seen it,
// and workers may refuse it, as they alone know the model. Until they have done a step by it, the
// job and the plan of before lie in the run's folder as former_plan.json, so that a refusal brings
// them back: in this process, or, where this one is killed, in the next one that goes on with the
// run. A plan that is accepted is told in events.jsonl, and one that is not leaves no word there.
// The caller holds the run's lock.
class PlanChange {
 public:
  // What goes into the folder.
  struct New {
    std::string job, plan;           // job.toml and plan.json
    nlohmann::json event = nullptr;  // for events.jsonl, with its `step`; null: none
    int64_t workers_before = 0;      // 0: the controller keeps its saved state (leave_state())
  };
  // The text of job.toml by which the run did its last step, where that in the folder is another
  // one: of before a change that nobody has accepted yet. A new plan is compared with that job, and
  // its event tells of the difference. Changes nothing; throws as left_open() does.
  static std::optional<std::string> job_before(const run::RunFolder& folder);
  // Writes them; what was there, or what an earlier change that nobody accepted had found there, is
  // kept. Throws unavailable.
  static PlanChange put(const run::RunFolder& folder, New now);
  // The change that an earlier process left open; nothing where there is none, or somebody has
  // written another job.toml since, or it was told already, or a checkpoint is there of a step by
  // the new plan, which accepts it. Throws data_loss for a damaged file, saying what is to be done.
  static std::optional<PlanChange> left_open(const run::RunFolder& folder);

  // A worker wrote this line: its second figure for steps, if larger than the first, accepts.
  void hear(std::string_view line);
  void accept();  // the plan stays
  void drop();    // neither it nor the one before is to be put in place any more
  // Whether take_back() would change nothing: the plan is accepted, as by a checkpoint of a later
  // step, which is looked for here.
  bool stays();
  // Job and plan are those of before. Returns false, and changes nothing, for a plan that stays.
  bool take_back();

  bool is_open() const { return open_; }
  const nlohmann::json& event() const { return now_.event; }
  // Of the run, while it ran by the plan of before; 0: as put() was told.
  int64_t workers_before() const { return now_.workers_before; }

 private:
  struct Texts {
    std::string job;
    std::optional<std::string> plan;
  };
  PlanChange(run::RunFolder folder, Texts before, New now)
      : folder_(std::move(folder)), before_(std::move(before)), now_(std::move(now)) {}
  static std::optional<PlanChange> read(const run::RunFolder& folder);
  void write(const Texts& texts) const;
  bool has_saved() const;
  bool is_told() const;

  run::RunFolder folder_;
  Texts before_;
  New now_;
  std::optional<int64_t> first_step_;
  bool open_ = true;
};

}  // namespace ductile::link
