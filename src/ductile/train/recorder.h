#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/ckpt/writer.h"
#include "ductile/run/folder.h"
#include "ductile/run/meters.h"
#include "ductile/run/metrics.h"
#include "ductile/run/progress.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/replica.h"

namespace ductile::train {

// Writes the records of a run: metric lines, events, progress lines, the summary. An error of a
// file does not end the run; it becomes a warning (run/diary.h). One thread.
class Recorder {
 public:
  // `resumed`: the replica's state was restored, so lines of later steps no longer count.
  // Progress goes to `progress_fd` (-1: nowhere).
  // `generation`: that of a worker that may be replaced. `job_cost`: what the whole job has cost
  // until now, and in its wall_seconds the run's own clock; nothing where that is not known yet.
  // `folder` and `replica` must outlive this object.
  using JobCost = std::function<std::optional<run::Cost>()>;
  Recorder(const run::RunFolder& folder, const Replica& replica, bool resumed, int progress_fd,
           uint64_t generation, JobCost job_cost);

  // The recorder goes on in a later generation.
  void set_generation(uint64_t generation) { metrics_.set_generation(generation); }

  // The first event: "start" or "resume".
  void started(int64_t num_workers);
  // To be called after the replica has committed a step. Notes once which hyperparameters changed
  // for the next step, except the learning rate, which is in the metric lines.
  void committed();
  // A metric line for the steps of `window`, which end at the replica's present step.
  void log(const Window& window);
  // Logs what the recorder of a killed process did not log of the replica's present step: the
  // metric line that is due there, what controls told, and the evaluation. started() then notes
  // hyperparameters that the events do not have.
  void make_up();
  // Times `evaluate()`, and logs its result and, if it is reached, the target. When this returns,
  // the replica has recorded the result.
  Evaluation evaluate(Replica& replica);
  // How a save went. The event that tells of the checkpoint is the controller's, which makes it
  // count.
  void saved(const ckpt::SaveResult& report);
  void event(std::string_view kind, const nlohmann::json& fields);
  // Brings everything logged so far to stable storage, if the disk accepts it.
  void flush();

  // Draws the progress bar of whoever reads; show_now_and_then() at most ten times per second.
  void show(run::Phase phase, std::optional<double> phase_share = {});
  void show_now_and_then();

  // Of the whole job; of this process where no more is known.
  run::Cost cost() { return job_cost_().value_or(cost_.read()); }
  // The figures of the run up to now (docs/reference/run-folder.md, events "summary" and "end").
  nlohmann::json summary(std::string_view status);

 private:
  using Clock = std::chrono::steady_clock;
  void log_evaluation(const Evaluation& result);
  void tell_of_evaluation(const Evaluation& result, std::optional<double> seconds);
  void tell_of_target();
  void warn_of_trouble();
  void add_core_seconds(nlohmann::json& fields) const;
  void tell_of_controls(const std::set<std::string>& told_before = {});
  void note_bad_samples();
  void note_hyper();

  const run::RunFolder& folder_;
  const Replica& replica_;
  const int progress_fd_;
  const JobCost job_cost_;
  run::MetricsWriter metrics_;
  run::CostMeter cost_;
  const bool resumed_;
  optim::Hyper noted_hyper_;  // of the last event that notes a change; the job's before any
  int64_t begin_samples_;
  int64_t num_workers_ = 1;
  int64_t bad_samples_ = 0;  // of this worker's loader, that were noted
  int64_t window_begin_samples_;
  Clock::time_point begin_ = Clock::now(), window_begin_ = begin_, last_show_ = begin_;
  Clock::time_point left_begin_ = begin_;      // from where the time that is left is estimated,
  std::optional<int64_t> left_begin_updates_;  // and its updates; none while trials are under way
  double throughput_ = 0, eval_seconds_ = 0, save_seconds_ = 0;
  std::optional<double> shown_loss_, shown_accuracy_;
};

}  // namespace ductile::train
