#include "ductile/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/core/Tensor.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/ckpt/writer.h"
#include "ductile/data/augment.h"
#include "ductile/data/loader.h"
#include "ductile/nn/model.h"
#include "ductile/optim/elementwise.h"
#include "ductile/optim/loss_scaler.h"
#include "ductile/optim/optimizer.h"
#include "ductile/optim/schedule.h"
#include "ductile/parallel/gradient_tree.h"
#include "ductile/run/meters.h"
#include "ductile/run/metrics.h"
#include "ductile/run/progress.h"
#include "ductile/run/report.h"
#include "ductile/train/environment.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/flat_model.h"
#include "ductile/train/interrupt.h"
#include "ductile/train/snapshot.h"

namespace ductile::train {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

std::string name_of_signal(int number) {
  return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : std::to_string(number);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Training figures between two metric lines. Part of the checkpoint, so that the lines of a resumed
// run equal those of an undisturbed one.
struct Window {
  double loss = 0;  // sum over steps
  double correct = 0, predictions = 0;
  int64_t steps = 0;

  Json to_json() const {
    return {{"loss", loss}, {"correct", correct}, {"predictions", predictions}, {"steps", steps}};
  }
  static Window from_json(const Json& j) {
    return {j.at("loss"), j.at("correct"), j.at("predictions"), j.at("steps")};
  }
};

// The tail of the vector that the virtual ranks sum: [gradient | buffers | these].
constexpr int64_t kTailLoss = 0, kTailCorrect = 1, kTailSize = 2;

class Trainer {
 public:
  explicit Trainer(const RunInput& input);
  Ending run(Json& summary);
  // The run ends with this error; says so in its directory where that can still be written.
  void note_failure(const std::string& message) noexcept;

 private:
  void restore();
  void train_step();
  void forward_backward(const data::Batch& batch, int64_t virtual_rank, std::span<float> leaf);
  void apply(std::span<const float> sum);
  void log_window();
  void evaluate_now();
  void save_checkpoint();
  void note_finished_saves();
  void show(run::Phase phase, std::optional<double> phase_share = {});
  Json summarize(Ending ending);

  double epoch() const {
    return static_cast<double>(step_) / static_cast<double>(steps_per_epoch_);
  }
  double target_value() const;
  bool target_reached() const;
  bool due(double every_epochs) const;

  const RunInput& input_;
  const spec::JobOptions& job_;
  const int64_t num_ranks_;

  std::shared_ptr<const data::Dataset> train_set_, test_set_;
  spec::AugmentOptions augment_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<FlatModel> flat_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LossScaler scaler_;
  AlignedArray<float> average_, buffer_average_;
  std::unique_ptr<Snapshot> snapshot_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<parallel::GradientTree> tree_;

  int64_t steps_per_epoch_ = 0, total_steps_ = 0;
  int64_t step_ = 0;  // steps done
  Window window_;
  std::optional<Evaluation> last_, best_;
  std::vector<float> buffers_before_;  // the state of step t, while its virtual ranks run
  bool channels_last_ = true;

  std::unique_ptr<run::MetricsWriter> metrics_;
  std::unique_ptr<run::CostMeter> cost_;
  std::unique_ptr<ckpt::CheckpointWriter> writer_;
  Clock::time_point last_save_, last_show_, window_begin_, begin_;
  int64_t begin_step_ = 0;
  int64_t window_samples_ = 0;
  double throughput_ = 0, eval_seconds_ = 0, save_seconds_ = 0;
  std::optional<double> shown_loss_, shown_accuracy_;
};

Trainer::Trainer(const RunInput& input)
    : input_(input),
      job_(input.job),
      num_ranks_(input.job.train.virtual_ranks),
      scaler_(input.job.train.precision == "fp16" ? input.job.train.loss_scale : 1.0) {
  train_set_ = data::open_dataset(job_.data, data::Split::train);
  test_set_ = data::open_dataset(job_.data, data::Split::test);
  const data::DatasetInfo& info = train_set_->info();
  if (!info.tokens) augment_ = data::resolve_augment(job_.augment, info);

  data::LoaderPlan plan;
  plan.seed = static_cast<uint64_t>(job_.seed);
  plan.batch_size = job_.train.batch_size;
  plan.parts = num_ranks_;
  plan.num_parts = num_ranks_;
  steps_per_epoch_ = info.size / plan.batch_size;
  if (steps_per_epoch_ == 0) {
    fail(ErrorCode::invalid_argument,
         "train.batch_size = {} is larger than the training set, which has {} samples",
         plan.batch_size, info.size);
  }
  total_steps_ = job_.train.epochs * steps_per_epoch_;
  if (job_.train.max_steps > 0) total_steps_ = std::min(total_steps_, job_.train.max_steps);

  nn::ModelInfo model_info;
  model_info.num_classes = job_.model.num_classes > 0 ? job_.model.num_classes : info.num_classes;
  if (info.tokens) {
    model_info.sequence_length = info.sequence_length;
    if (job_.model.vocab_size > 0) model_info.num_classes = job_.model.vocab_size;
  } else {
    const Shape shape = data::Augmenter(augment_, info, true, plan.seed).output_shape();
    model_info.channels = shape[0];
    model_info.height = shape[1];
    model_info.width = shape[2];
  }
  if (model_info.num_classes < info.num_classes) {
    fail(ErrorCode::invalid_argument, "the model has {} outputs but the data has {} classes",
         model_info.num_classes, info.num_classes);
  }
  model_ = nn::make_model(job_.model, model_info, job_.train.precision, plan.seed);
  model_->train(true);
  flat_ = std::make_unique<FlatModel>(*model_, job_.optimizer);
  optimizer_ = optim::make_optimizer(job_.optimizer, flat_->layout());
  if (job_.train.ema_decay > 0) {
    average_ = AlignedArray<float>(flat_->layout().total_size());
    buffer_average_ = AlignedArray<float>(static_cast<int64_t>(flat_->buffer_values().size()));
    std::ranges::copy(flat_->weights(), average_.span().begin());
    std::ranges::copy(flat_->buffer_values(), buffer_average_.span().begin());
  }
  snapshot_ =
      std::make_unique<Snapshot>(*flat_, *optimizer_, average_.span(), buffer_average_.span());
  tree_ = std::make_unique<parallel::GradientTree>(
      flat_->layout().total_size() + static_cast<int64_t>(flat_->buffer_values().size()) +
      kTailSize);

  restore();
  channels_last_ = job_.train.memory_format == "auto" ? model_->prefers_channels_last()
                                                      : job_.train.memory_format == "channels_last";
  plan.channels_last = channels_last_;
  plan.start_epoch = step_ / steps_per_epoch_;
  plan.start_step = step_ % steps_per_epoch_;
  loader_ = std::make_unique<data::Loader>(train_set_, augment_, job_.loader, plan);
}

// Takes up the state of the newest good checkpoint, if the run is to be resumed and has one.
void Trainer::restore() {
  std::optional<run::Cost> carried;
  Json refused = Json::array();
  if (input_.resume) {
    ckpt::LatestResult latest = ckpt::open_latest(input_.folder.checkpoints());
    for (const std::string& text : latest.refused) refused.push_back(text);
    if (latest.checkpoint) {
      const Json& state = latest.checkpoint->state();
      spec::JobOptions job = job_;
      check_same_job(state.at("job"), OptionSet(job).to_json());
      snapshot_->restore(*latest.checkpoint);
      flat_->refresh_half_weights();
      step_ = latest.checkpoint->step();
      optimizer_->set_num_steps(state.at("optimizer_steps"));
      const Json& scaler = state.at("loss_scaler");
      scaler_ = optim::LossScaler(optim::LossScaler::State{
          scaler.at("scale"), scaler.at("good_steps"), scaler.at("skipped")});
      window_ = Window::from_json(state.at("window"));
      if (!state.at("best").is_null()) best_ = Evaluation::from_json(state.at("best"));
      if (!state.at("last").is_null()) last_ = Evaluation::from_json(state.at("last"));
      carried = run::cost_from_json(state.at("cost"));
    } else if (!refused.empty()) {
      std::string text;
      for (const std::string& r : latest.refused) text += "\n  " + r;
      fail(ErrorCode::data_loss, "{}: no checkpoint can be used:{}",
           input_.folder.checkpoints().string(), text);
    }
  }
  if (!input_.resume && !ckpt::list(input_.folder.checkpoints()).empty()) {
    fail(ErrorCode::conflict,
         "{} holds checkpoints already; continue it with --resume, or start a "
         "run of its own",
         input_.folder.path().string());
  }
  writer_ = std::make_unique<ckpt::CheckpointWriter>(
      input_.folder.checkpoints(),
      ckpt::WriterOptions{.keep = job_.checkpoint.keep, .resumed_step = step_});
  cost_ = std::make_unique<run::CostMeter>(carried);
  metrics_ = std::make_unique<run::MetricsWriter>(
      input_.folder, input_.resume ? std::optional(step_) : std::nullopt);
  begin_step_ = step_;
  Json fields = {{"step", step_},
                 {"steps", total_steps_},
                 {"workers", 1},
                 {"host", describe_environment()},
                 {"parameters", flat_->layout().num_parameters()},
                 {"train_samples", train_set_->info().size},
                 {"test_samples", test_set_->info().size}};
  if (!refused.empty()) fields["refused_checkpoints"] = refused;
  metrics_->event(input_.resume ? "resume" : "start", fields);
}

Ending Trainer::run(Json& summary) {
  begin_ = last_save_ = window_begin_ = Clock::now();
  Ending ending = Ending::finished;
  while (step_ < total_steps_) {
    if (pending_interrupt() != 0) {
      ending = Ending::interrupted;
      break;
    }
    train_step();
    if (window_.steps == job_.train.log_every || step_ == total_steps_) log_window();
    if (seconds_since(last_show_) > 0.1) show(run::Phase::train);
    if (due(job_.train.eval_every_epochs) || step_ == total_steps_) {
      evaluate_now();
      if (target_reached()) {
        ending = Ending::target_reached;
        break;
      }
    }
    const bool by_time = job_.checkpoint.every_seconds > 0 &&
                         seconds_since(last_save_) >= job_.checkpoint.every_seconds;
    const bool by_steps =
        job_.checkpoint.every_steps > 0 && step_ % job_.checkpoint.every_steps == 0;
    if ((by_time || by_steps) && step_ < total_steps_) save_checkpoint();
  }
  if (ending == Ending::interrupted || job_.checkpoint.at_end) save_checkpoint();
  writer_->wait();
  note_finished_saves();
  if (ending != Ending::interrupted) {
    ckpt::write_safetensors(
        input_.folder.path() / "model.safetensors", snapshot_->model_views(),
        {{"format", "pt"}, {"job", job_.name}, {"step", std::to_string(step_)}});
  }
  summary = summarize(ending);
  if (ending == Ending::interrupted) {
    metrics_->event("signal", {{"step", step_}, {"signal", name_of_signal(pending_interrupt())}});
  }
  metrics_->event("end", summary);
  metrics_->flush();
  show(run::Phase::train);
  run::write_report(input_.folder);
  return ending;
}

void Trainer::train_step() {
  for (int64_t v = 0; v < num_ranks_; ++v) {
    const auto batch = loader_->next();
    forward_backward(*batch, v, tree_->leaf());
    tree_->push();
  }
  apply(tree_->finish());
  ++step_;
  ++window_.steps;
  window_samples_ += job_.train.batch_size;
}

// One virtual rank's part of the step: gradient, running statistics and figures, all computed from
// the state of step t, whatever other ranks ran before it in this process.
void Trainer::forward_backward(const data::Batch& batch, int64_t virtual_rank,
                               std::span<float> leaf) {
  const std::span<float> buffers = flat_->buffer_values();
  if (num_ranks_ > 1) {
    if (virtual_rank == 0) {
      buffers_before_.assign(buffers.begin(), buffers.end());
    } else {
      std::ranges::copy(buffers_before_, buffers.begin());
    }
  }
  nn::seed_step(mix(mix(static_cast<uint64_t>(job_.seed), static_cast<uint64_t>(step_)),
                    static_cast<uint64_t>(virtual_rank)));
  const at::Tensor labels = labels_of(batch);
  const nn::LossOutput loss =
      model_->loss(model_->forward(input_of(batch)), labels, job_.train.label_smoothing);
  const at::Tensor mean = loss.losses.mean();
  (scaler_.scale() == 1 ? mean : mean.mul(scaler_.scale())).backward();

  const int64_t num_gradients = flat_->layout().total_size();
  flat_->take_gradients(leaf.first(num_gradients));
  std::ranges::copy(buffers, leaf.begin() + num_gradients);
  const std::span<float> tail = leaf.last(kTailSize);
  tail[kTailLoss] = mean.item<float>();
  tail[kTailCorrect] = static_cast<float>(loss.correct);
  window_.predictions += static_cast<double>(loss.predictions);
}

// The update of step t from the sum over virtual ranks.
void Trainer::apply(std::span<const float> sum) {
  const auto ranks = static_cast<float>(num_ranks_);
  const std::span<const float> gradient = sum.first(flat_->layout().total_size());
  const std::span<float> buffers = flat_->buffer_values();
  const std::span<const float> tail = sum.last(kTailSize);
  const double loss = tail[kTailLoss] / ranks;
  window_.loss += loss;
  window_.correct += tail[kTailCorrect];

  const bool scaled = job_.train.precision == "fp16";
  float scale = 1.0f / (ranks * static_cast<float>(scaler_.scale()));
  if (scaled || job_.optimizer.clip_norm > 0) {
    const double norm = optim::gradient_norm(gradient) * scale;
    if (scaled && !scaler_.update(!std::isfinite(norm))) return;  // overflow: this step is left out
    scale *= static_cast<float>(optim::clip_factor(norm, job_.optimizer.clip_norm));
  }
  if (!std::isfinite(loss)) {
    fail(ErrorCode::conflict,
         "the loss is not finite at step {}: the run diverged; try a smaller optimizer.lr, a "
         "longer schedule.warmup_epochs or optimizer.clip_norm",
         step_);
  }
  optim::StepInput in;
  in.weights = flat_->weights();
  in.gradient = gradient;
  in.lr =
      optim::learning_rate(job_.schedule, job_.optimizer.lr, step_, total_steps_, steps_per_epoch_);
  in.gradient_scale = scale;
  in.half_weights = flat_->half_weights();
  in.half = flat_->half_type();
  in.ema = average_.span();
  in.ema_decay = static_cast<float>(job_.train.ema_decay);
  optimizer_->step(in);

  for (size_t i = 0; i < buffers.size(); ++i) buffers[i] = sum[gradient.size() + i] / ranks;
  const std::span<float> average = buffer_average_.span();
  for (size_t i = 0; i < average.size(); ++i) {
    average[i] += (1 - in.ema_decay) * (buffers[i] - average[i]);
  }
}

bool Trainer::due(double every_epochs) const {
  if (every_epochs <= 0) return false;
  const auto every =
      std::max<int64_t>(1, std::llround(every_epochs * static_cast<double>(steps_per_epoch_)));
  return step_ % every == 0;
}

// The last evaluation in the metric of the target.
double Trainer::target_value() const {
  if (job_.target.metric == "accuracy") return last_->accuracy;
  return job_.target.metric == "loss" ? last_->loss : last_->perplexity();
}

bool Trainer::target_reached() const {
  if (job_.target.metric.empty() || !last_) return false;
  return job_.target.metric == "accuracy" ? target_value() >= job_.target.value
                                          : target_value() <= job_.target.value;
}

void Trainer::log_window() {
  const double elapsed = seconds_since(window_begin_);
  throughput_ = static_cast<double>(window_samples_) / std::max(elapsed, 1e-9);
  shown_loss_ = window_.loss / static_cast<double>(window_.steps);
  shown_accuracy_ = window_.correct / window_.predictions;
  const double lr = optim::learning_rate(job_.schedule, job_.optimizer.lr, step_ - 1, total_steps_,
                                         steps_per_epoch_);
  metrics_->log(step_, epoch(),
                {{run::kTrainLoss, *shown_loss_},
                 {run::kTrainAccuracy, *shown_accuracy_},
                 {run::kLearningRate, lr},
                 {run::kSamplesPerSecond, throughput_}});
  window_ = {};
  window_samples_ = 0;
  window_begin_ = Clock::now();
}

void Trainer::evaluate_now() {
  const Clock::time_point begin = Clock::now();
  show(run::Phase::eval, 0);
  data::LoaderPlan plan;
  plan.batch_size =
      job_.train.eval_batch_size > 0 ? job_.train.eval_batch_size : job_.train.batch_size;
  plan.training = false;
  plan.channels_last = channels_last_;
  data::Loader loader(test_set_, augment_, job_.loader, plan);
  {
    const WeightsSwap swap(*flat_, average_.span(), buffer_average_.span());
    last_ = evaluate(*model_, loader, [&](int64_t done) {
      if (seconds_since(last_show_) < 0.1) return;
      show(run::Phase::eval,
           static_cast<double>(done) / static_cast<double>(test_set_->info().size));
    });
  }
  if (!best_ || last_->accuracy > best_->accuracy) best_ = last_;
  const bool tokens = train_set_->info().tokens;
  std::vector<run::Metric> scalars = {{run::kEvalLoss, last_->loss},
                                      {run::kEvalAccuracy, last_->accuracy}};
  if (tokens) scalars.push_back({run::kEvalPerplexity, last_->perplexity()});
  metrics_->log(step_, epoch(), scalars);
  const double took = seconds_since(begin);
  eval_seconds_ += took;
  Json fields = last_->to_json();
  fields.update({{"step", step_}, {"epoch", epoch()}, {"duration", took}});
  if (tokens) fields["perplexity"] = run::json_number(last_->perplexity());
  metrics_->event("evaluation", fields);
  if (target_reached()) {
    metrics_->event("target", {{"step", step_},
                               {"epoch", epoch()},
                               {"samples", step_ * job_.train.batch_size},
                               {"metric", job_.target.metric},
                               {"threshold", job_.target.value},
                               {"value", target_value()},
                               {"cost", run::to_json(cost_->read())}});
  }
  window_begin_ += Clock::now() - begin;  // throughput speaks of training alone
}

void Trainer::save_checkpoint() {
  note_finished_saves();
  const Clock::time_point begin = Clock::now();
  show(run::Phase::checkpoint);
  metrics_->flush();  // what the checkpoint covers is on disk before it
  spec::JobOptions job = job_;
  const optim::LossScaler::State& scaler = scaler_.state();
  const Json state = {
      {"job", OptionSet(job).to_json()},
      {"optimizer_steps", optimizer_->num_steps()},
      {"loss_scaler",
       {{"scale", scaler.scale}, {"good_steps", scaler.good_steps}, {"skipped", scaler.skipped}}},
      {"window", window_.to_json()},
      {"best", best_ ? best_->to_json() : Json()},
      {"last", last_ ? last_->to_json() : Json()},
      {"cost", run::to_json(cost_->read())}};
  writer_->save(step_, state, snapshot_->views());
  last_save_ = Clock::now();
  save_seconds_ += seconds_since(begin);
}

// Writing goes on beside the training; what became of it is noted when it is over. A save that
// failed (disk full) ends nothing: the checkpoint before it is still good, and the next may work.
void Trainer::note_finished_saves() {
  while (const auto report = writer_->take_report()) {
    if (!report->error.empty() || !report->warning.empty()) {
      const std::string text = report->error.empty()
                                   ? report->warning
                                   : fmt::format("the checkpoint of step {} was not written: {}",
                                                 report->step, report->error);
      metrics_->event("error", {{"step", report->step}, {"message", text}});
      run::write_line(input_.progress_fd, run::Message{"warning", text});
    }
    if (!report->error.empty()) continue;
    metrics_->event("checkpoint",
                    {{"step", report->step},
                     {"bytes", report->total_bytes},
                     {"bytes_written", report->new_bytes},
                     {"blocking_ms", 1e3 * (report->wait_seconds + report->copy_seconds)},
                     {"write_seconds", report->write_seconds}});
  }
}

void Trainer::show(run::Phase phase, std::optional<double> phase_share) {
  last_show_ = Clock::now();
  run::Progress p;
  p.phase = phase;
  p.step = step_;
  p.total_steps = total_steps_;
  p.epoch = epoch();
  p.epochs = job_.train.epochs;
  p.phase_share = phase_share;
  p.loss = shown_loss_;
  p.accuracy = shown_accuracy_;
  if (last_) p.eval_accuracy = last_->accuracy;
  if (throughput_ > 0) {
    p.samples_per_second = throughput_;
    const int64_t done = step_ - begin_step_;
    if (done > 0) {
      p.eta_seconds = seconds_since(begin_) / static_cast<double>(done) *
                      static_cast<double>(total_steps_ - step_);
    }
  }
  run::write_line(input_.progress_fd, p);
}

void Trainer::note_failure(const std::string& message) noexcept try {
  writer_->wait();
  note_finished_saves();
  metrics_->event("end", {{"status", "failed"}, {"step", step_}, {"message", message}});
  run::write_report(input_.folder);
} catch (const std::exception&) {  // a full disk, most likely; the caller throws what came first
}

Json Trainer::summarize(Ending ending) {
  const run::Cost cost = cost_->read();
  const int64_t samples = (step_ - begin_step_) * job_.train.batch_size;
  const double training = seconds_since(begin_) - eval_seconds_;
  Json out = {{"status", to_string(ending)},
              {"step", step_},
              {"epoch", epoch()},
              {"samples", step_ * job_.train.batch_size},
              {"parameters", flat_->layout().num_parameters()},
              {"cost", run::to_json(cost)},
              {"samples_per_second", training > 0 ? static_cast<double>(samples) / training : 0},
              {"checkpoint_blocking_seconds", save_seconds_},
              {"loader_wait_seconds", loader_->stats().wait_seconds},
              {"bad_samples", loader_->stats().bad_samples},
              {"skipped_steps", scaler_.state().skipped}};
  if (last_) out["final"] = last_->to_json();
  if (best_) out["best"] = best_->to_json();
  return out;
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
