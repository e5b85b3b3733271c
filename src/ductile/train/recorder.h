#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
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

// Writes what a run says of itself: metric lines, events, progress lines, the summary. No error of
// a file ends a run: it becomes a warning (run/diary.h). One thread.
class Recorder {
 public:
  // `resumed`: the replica's state was restored; lines of later steps count no more. `carried`:
  // what earlier parts of the run cost. Progress goes to `progress_fd` (-1: nowhere). `generation`:
  // of a worker that may be replaced; 0: there is one process. `folder` and `replica` outlive it.
  Recorder(const run::RunFolder& folder, const Replica& replica, bool resumed,
           std::optional<run::Cost> carried, int progress_fd, uint64_t generation = 0);

  // It goes on in a later generation.
  void set_generation(uint64_t generation) { metrics_.set_generation(generation); }

  // The first event: "start" or "resume". `refused` names checkpoints that were skipped.
  void started(int64_t num_workers, const nlohmann::json& refused);
  // The replica has committed a step: notes what changed for the next one but for the learning
  // rate, which stands in the metric lines.
  void committed();
  // A metric line for the steps of `window`, which end at the replica's present step.
  void log(const Window& window);
  // Logs what the recorder of a killed process left unsaid of the replica's present step: the steps
  // of `window`, where one ended there, and its evaluation.
  void make_up(const std::optional<Window>& window);
  // Times `evaluate()`, logs its result and, where it is reached, the target. The replica has
  // recorded it when this returns.
  Evaluation evaluate(Replica& replica);
  void checkpoint(const ckpt::SaveResult& report);
  void event(std::string_view kind, const nlohmann::json& fields);
  // Everything logged so far is on stable storage, where the disk takes it.
  void flush();

  // Draws the progress bar of whoever reads; show_now_and_then() at most ten times per second.
  void show(run::Phase phase, std::optional<double> phase_share = {});
  void show_now_and_then();

  run::Cost cost() { return cost_.read(); }
  // The figures of the run up to now (docs/reference/run-folder.md, events "summary" and "end").
  nlohmann::json summary(std::string_view status);

 private:
  using Clock = std::chrono::steady_clock;
  void log_evaluation(const Evaluation& result, std::optional<double> seconds);
  void warn_of_trouble();
  void note_bad_samples();

  const run::RunFolder& folder_;
  const Replica& replica_;
  const int progress_fd_;
  run::MetricsWriter metrics_;
  run::CostMeter cost_;
  const bool resumed_;
  const int64_t begin_updates_, begin_samples_;
  int64_t num_workers_ = 1;
  int64_t bad_samples_ = 0;  // of this worker's loader, that were noted
  int64_t window_begin_samples_;
  Clock::time_point begin_ = Clock::now(), window_begin_ = begin_, last_show_ = begin_;
  double throughput_ = 0, eval_seconds_ = 0, save_seconds_ = 0;
  std::optional<double> shown_loss_, shown_accuracy_;
};

}  // namespace ductile::train
