#include "ductile/train/trainer.h"

#include <chrono>
#include <csignal>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/ckpt/writer.h"
#include "ductile/run/history.h"
#include "ductile/run/meters.h"
#include "ductile/run/report.h"
#include "ductile/train/interrupt.h"
#include "ductile/train/recorder.h"
#include "ductile/train/replica.h"

namespace ductile::train {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

std::string name_of_signal(int number) {
  return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : std::to_string(number);
}

// One process that hosts all virtual ranks.
class Trainer {
 public:
  explicit Trainer(const RunInput& input);
  Ending run(Json& summary);
  // The run ends with this error; says so in its directory where that can still be written.
  void note_failure(const std::string& message) noexcept;

 private:
  void begin();
  void train_step();
  bool save_due() const;
  void save();
  void leave_report() const;
  void note_finished_saves();

  const RunInput& input_;
  Replica replica_;
  AlignedArray<float> sum_;  // of a step
  std::optional<Recorder> recorder_;
  std::unique_ptr<ckpt::CheckpointWriter> writer_;
  Clock::time_point last_save_;
};

Trainer::Trainer(const RunInput& input) : input_(input), replica_(input.job) {
  sum_ = AlignedArray<float>::uninitialized(replica_.vector_size());
  begin();
}

// Takes up the state of the newest good checkpoint, if the run is to be resumed and has one.
void Trainer::begin() {
  const fs::path checkpoints = input_.folder.checkpoints();
  std::optional<run::Cost> carried;
  Json refused = Json::array();
  if (input_.resume) {
    const ckpt::LatestResult latest = ckpt::open_latest(checkpoints);
    refused = latest.refused;
    if (latest.checkpoint) {
      replica_.restore(*latest.checkpoint);
      if (const Json& cost = latest.checkpoint->state().at("cost"); cost.is_object())
        carried = run::cost_from_json(cost);
    } else if (!refused.empty()) {
      fail(ErrorCode::data_loss,
           "{}: no checkpoint can be used; put back what is damaged and resume, or start a new "
           "run:\n  {}",
           checkpoints.string(), fmt::join(latest.refused, "\n  "));
    } else if (const auto step = run::last_saved_step(input_.folder)) {
      fail(
          ErrorCode::data_loss,
          "{}: the run had a checkpoint of step {}, and now there is none: put it back and resume, "
          "or start a new run",
          checkpoints.string(), *step);
    }
  } else if (!ckpt::list(checkpoints).empty()) {
    fail(ErrorCode::conflict,
         "{} holds checkpoints already; continue it with --resume, or start a run of its own",
         input_.folder.path().string());
  }
  writer_ = std::make_unique<ckpt::CheckpointWriter>(
      checkpoints,
      ckpt::WriterOptions{.keep = input_.job.checkpoint.keep, .resumed_step = replica_.step()});
  if (input_.job.checkpoint.every_seconds > 0 || input_.job.checkpoint.every_steps > 0) {
    writer_->prepare(replica_.state().tensors());
  }
  recorder_.emplace(input_.folder, replica_, input_.resume, carried, input_.progress_fd);
  recorder_->started(1, refused);
  replica_.host_all();
}

Ending Trainer::run(Json& summary) {
  last_save_ = Clock::now();
  Ending ending = Ending::finished;
  while (!replica_.done()) {
    if (pending_interrupt() != 0) {
      ending = Ending::interrupted;
      break;
    }
    if (!replica_.evaluation_due()) train_step();
    if (replica_.evaluation_due()) recorder_->evaluate(replica_);
    if (!replica_.done() && save_due()) save();
  }
  if (ending == Ending::finished && replica_.target_reached()) ending = Ending::target_reached;
  if (ending == Ending::interrupted || input_.job.checkpoint.at_end) save();
  writer_->wait();
  note_finished_saves();
  if (ending != Ending::interrupted) {
    replica_.write_model(input_.folder.path() / "model.safetensors");
  }
  summary = recorder_->summary(to_string(ending));
  if (ending == Ending::interrupted) {
    recorder_->event("signal",
                     {{"step", replica_.step()}, {"signal", name_of_signal(pending_interrupt())}});
  }
  recorder_->event("end", summary);
  recorder_->flush();
  recorder_->show(run::Phase::train);
  leave_report();
  return ending;
}

void Trainer::train_step() {
  replica_.compute(replica_.num_ranks(), sum_.span());
  replica_.apply(sum_.span());
  if (replica_.window_due()) recorder_->log(replica_.take_window());
  recorder_->show_now_and_then();
}

bool Trainer::save_due() const {
  const spec::CheckpointOptions& options = input_.job.checkpoint;
  const std::chrono::duration<double> since = Clock::now() - last_save_;
  return (options.every_seconds > 0 && since.count() >= options.every_seconds) ||
         (options.every_steps > 0 && replica_.step() % options.every_steps == 0);
}

void Trainer::save() {
  note_finished_saves();
  recorder_->show(run::Phase::checkpoint);
  recorder_->flush();  // what the checkpoint covers is on disk before it
  Json state = replica_.values();
  state["cost"] = run::to_json(recorder_->cost());
  writer_->save(replica_.step(), state, replica_.state().tensors());
  last_save_ = Clock::now();
}

// Writing goes on beside the training; what became of it is noted when it is over. A save that
// failed (disk full) ends nothing: the checkpoint before it is still good, and the next may work.
void Trainer::note_finished_saves() {
  while (const auto report = writer_->take_result()) recorder_->checkpoint(*report);
}

void Trainer::leave_report() const {
  if (const std::string text = run::leave_report(input_.folder); !text.empty())
    run::write_line(input_.progress_fd, run::Message{"warning", text});
}

void Trainer::note_failure(const std::string& message) noexcept try {
  writer_->wait();
  note_finished_saves();
  recorder_->event("end", {{"status", "failed"}, {"step", replica_.step()}, {"message", message}});
  leave_report();
} catch (const std::exception&) {  // a full disk, most likely; the caller throws what came first
}

}  // namespace

std::string_view to_string(Ending ending) {
  switch (ending) {
    case Ending::finished:
      return "done";
    case Ending::target_reached:
      return "target_reached";
    case Ending::interrupted:
      return "interrupted";
  }
  return "done";
}

Ending train(const RunInput& input, nlohmann::json& summary) {
  Trainer trainer(input);
  try {
    return trainer.run(summary);
  } catch (const std::exception& e) {
    trainer.note_failure(e.what());
    throw;
  }
}

}  // namespace ductile::train
