#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/run/tensorboard.h"

// What a trainer writes into its run directory during a run. docs/reference/run-folder.md documents
// the schemas of both files.
namespace ductile::run {

// Names that the report and the command line know; metrics of other names are drawn too. Shares
// (accuracy) lie in [0, 1].
inline constexpr std::string_view kTrainLoss = "train/loss";
inline constexpr std::string_view kTrainAccuracy = "train/accuracy";
inline constexpr std::string_view kEvalLoss = "eval/loss";
inline constexpr std::string_view kEvalAccuracy = "eval/accuracy";
inline constexpr std::string_view kEvalPerplexity = "eval/perplexity";
inline constexpr std::string_view kEvalCalibrationError = "eval/calibration_error";
inline constexpr std::string_view kLearningRate = "lr";
inline constexpr std::string_view kBatchSize = "batch_size";
inline constexpr std::string_view kNoiseScale = "noise_scale";  // of the gradients, in samples
inline constexpr std::string_view kSamplesPerSecond = "samples_per_second";

struct Metric {
  std::string_view name;
  double value;
};

// Writes metrics.jsonl, events.jsonl and the TensorBoard files of one run. Every line is in the
// kernel's hands when the call returns, so a killed process loses nothing that it logged; flush()
// brings it to stable storage. Calls may come from any thread. A disk that is full or refuses to
// write ends nothing: lines wait for it (run/diary.h), and take_trouble() says so.
class MetricsWriter {
 public:
  // `resume_step`: the run continues from its state after that step. Metric lines of later steps no
  // longer count, also in TensorBoard, because these steps are done again and must count once.
  // Events are history, and all of them stay. `generation`: that of the writer, if it may be
  // replaced without knowing; 0: there is only one writer. `clock`: the run's own clock in seconds,
  // if another process keeps it; without it, or if it says nothing, the clock goes on from the last
  // line.
  using Clock = std::function<std::optional<double>()>;
  explicit MetricsWriter(const RunFolder& folder, std::optional<int64_t> resume_step = {},
                         uint64_t generation = 0, Clock clock = nullptr);

  // The same writer, in a later generation.
  void set_generation(uint64_t generation);

  // Writes one line {"step", "epoch", "time", "seconds", name: value ...}: after `step` steps and
  // `epoch` passes over the data (3.25 is a quarter into the fourth). Values may be NaN or
  // infinite. Throws invalid_argument if a metric has the name of a field that lines already have.
  void log(int64_t step, double epoch, std::span<const Metric> values);
  void log(int64_t step, double epoch, std::initializer_list<Metric> values) {
    log(step, epoch, std::span(values.begin(), values.size()));
  }

  // Writes one line {"time", "seconds", "kind", ... the fields}.
  void event(std::string_view kind, const nlohmann::json& fields);
  void event(std::string_view kind);

  // To be called with each checkpoint: a machine that dies then loses no line that it covers.
  void flush();

  // What went wrong with the files since the last call, for people; empty if nothing did.
  std::string take_trouble();

  // Seconds of training over all resumes, including work that was lost, but without pauses. They
  // never decrease.
  double seconds() const;

 private:
  TensorBoardWriter* tensorboard();

  std::mutex mutex_;
  Diary metrics_, events_;
  uint64_t generation_;
  const Clock clock_;
  double seconds_before_ = 0;
  mutable std::atomic<double> latest_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const fs::path tensorboard_folder_;
  const int64_t resume_step_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::string trouble_;  // of TensorBoard's file
};

}  // namespace ductile::run
