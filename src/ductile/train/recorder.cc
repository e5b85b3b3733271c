#include "ductile/train/recorder.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/data/augment.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/run/diary.h"
#include "ductile/run/json_lines.h"
#include "ductile/train/environment.h"
#include "ductile/train/online_tuner.h"
#include "ductile/train/probing.h"
#include "ductile/train/staleness.h"
#include "ductile/train/task_method.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

template <class TimePoint>
double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(TimePoint::clock::now() - begin).count();
}

// With each class that has samples.
Json final_figures(const Evaluation& result, std::span<const std::string> class_names) {
  Json out = result.describe(class_names);
  if (!result.classes) return out;
  Json& classes = out["classes"] = Json::array();
  for (size_t c = 0; c < result.classes->samples.size(); ++c) {
    if (result.classes->samples[c] > 0)
      classes.push_back(describe_class(*result.classes, static_cast<int64_t>(c), class_names));
  }
  return out;
}

}  // namespace

Recorder::Recorder(const run::RunFolder& folder, const Replica& replica, bool resumed,
                   int progress_fd, uint64_t generation, JobCost job_cost)
    : folder_(folder),
      replica_(replica),
      progress_fd_(progress_fd),
      job_cost_(std::move(job_cost)),
      metrics_(folder, resumed ? std::optional(replica.step()) : std::nullopt, generation,
               [this]() -> std::optional<double> {
                 const std::optional<run::Cost> told = job_cost_();
                 return told ? std::optional(told->wall_seconds) : std::nullopt;
               }),
      resumed_(resumed),
      noted_hyper_(optim::Hyper::of(replica.job())),
      begin_samples_(replica.state().counters.samples_backward),
      window_begin_samples_(begin_samples_) {}

void Recorder::started(int64_t num_workers) {
  num_workers_ = num_workers;
  Json fields = {{"step", replica_.step()},
                 {"steps", replica_.total_updates()},
                 {"workers", num_workers},
                 {"host", describe_environment()},
                 {"parameters", replica_.num_parameters()},
                 {"train_samples", replica_.train_info().size},
                 {"test_samples", replica_.test_info().size}};
  if (replica_.job().tune.online) add_core_seconds(fields);  // a trial may be under way
  event(resumed_ ? "resume" : "start", fields);
  if (!resumed_ && replica_.step() == 0) {
    if (const std::string text = replica_.search_warning(); !text.empty())
      run::offer_line(progress_fd_, run::Message{"warning", text});
    const std::string sizes = data::size_warning(replica_.job().augment, replica_.train_info());
    if (!sizes.empty()) run::offer_line(progress_fd_, run::Message{"warning", sizes});
    tell_of_controls();
  }
  note_hyper();
  begin_ = window_begin_ = left_begin_ = Clock::now();
  begin_samples_ = window_begin_samples_ = replica_.state().counters.samples_backward;
  eval_seconds_ = 0;
  left_begin_updates_ = replica_.updates();
}

void Recorder::event(std::string_view kind, const Json& fields) {
  metrics_.event(kind, fields);
  warn_of_trouble();
}

void Recorder::flush() {
  metrics_.flush();
  warn_of_trouble();
}

void Recorder::warn_of_trouble() {
  if (const std::string text = metrics_.take_trouble(); !text.empty())
    run::offer_line(progress_fd_, run::Message{"warning", text});
}

void Recorder::log(const Window& window) {
  const int64_t samples = replica_.state().counters.samples_backward - window_begin_samples_;
  throughput_ = static_cast<double>(samples) / std::max(seconds_since(window_begin_), 1e-9);
  const auto updates = static_cast<double>(window.updates);
  shown_loss_ = window.sum("loss") / updates;
  shown_accuracy_.reset();
  if (window.sum("predictions") > 0)
    shown_accuracy_ = window.sum("correct") / window.sum("predictions");
  std::vector<run::Metric> scalars = {{run::kTrainLoss, *shown_loss_},
                                      {run::kLearningRate, replica_.hyper().lr}};
  if (shown_accuracy_) scalars.push_back({run::kTrainAccuracy, *shown_accuracy_});
  const spec::TrainOptions& options = replica_.job().train;
  if (options.rate_control != "schedule")
    scalars.push_back({run::kBatchSize, static_cast<double>(replica_.hyper().batch_size)});
  if (const auto noise = replica_.noise()) {
    const double scale = noise::noise_scale(*noise, static_cast<double>(options.batch_size));
    if (std::isfinite(scale)) scalars.push_back({run::kNoiseScale, scale});
  }
  std::vector<std::string> names;  // of the figures that the step method adds, per update
  std::vector<double> values;
  for (const auto& [name, sum] : window.sums) {
    if (name == kLoss || name == kCorrect || name == kPredictions || name.starts_with(kRatioOf))
      continue;
    const bool is_ratio = name.starts_with(kRatioSum);
    const std::string metric = is_ratio ? name.substr(kRatioSum.size()) : name;
    const double of = is_ratio ? window.sum(std::string(kRatioOf) + metric) : updates;
    if (of == 0 || (is_ratio && metric == "accuracy")) continue;  // it is there already
    names.push_back("train/" + metric);
    values.push_back(sum / of);
  }
  for (size_t i = 0; i < names.size(); ++i) scalars.push_back({names[i], values[i]});
  if (samples > 0) scalars.push_back({run::kSamplesPerSecond, throughput_});
  metrics_.log(replica_.step(), replica_.epoch(), scalars);
  warn_of_trouble();
  note_bad_samples();
  window_begin_samples_ = replica_.state().counters.samples_backward;
  window_begin_ = Clock::now();
}

// With data.on_bad_sample = "skip": those that this worker left out since it last said so.
void Recorder::note_bad_samples() {
  const data::LoaderStats loader = replica_.loader_stats();
  if (loader.bad_samples <= bad_samples_) return;
  bad_samples_ = loader.bad_samples;
  Json items = Json::array();
  for (const data::BadItem& item : loader.bad_items)
    items.push_back({{"where", item.where}, {"what", item.what}});
  event("bad_samples", {{"step", replica_.step()}, {"count", bad_samples_}, {"items", items}});
}

// Against what the diary has, and not against the last step: a step that is no update leaves the
// hyperparameters as they were, and a killed leader may not have noted those of its last step.
void Recorder::note_hyper() {
  const optim::Hyper now = replica_.state().hyper;
  noted_hyper_.lr = now.lr;  // in every metric line
  if (now == noted_hyper_ || replica_.done()) return;
  noted_hyper_ = now;
  event("hyper", {{"step", replica_.step()}, {"hyper", to_json(now)}});
}

void Recorder::committed() {
  note_hyper();
  tell_of_controls();
}

// What all workers have used over the life of the run, where that is known.
void Recorder::add_core_seconds(Json& fields) const {
  if (const std::optional<run::Cost> told = job_cost_())
    fields["core_seconds"] = told->core_seconds;
}

// What a rate control or a tuner did with the last step, where it has something to tell. Events of
// the kinds in `told_before` have told it already.
void Recorder::tell_of_controls(const std::set<std::string>& told_before) {
  for (const auto& [part, kind] : {std::pair{kControlPart, "rate_control"}, {kTunerPart, "tune"}}) {
    if (told_before.contains(kind)) continue;
    const auto found = replica_.state().extras().find(std::string(part));
    if (found == replica_.state().extras().end()) continue;
    const auto told = found->second.values.find("event");
    if (told == found->second.values.end() || told->is_null()) continue;
    Json fields = *told;
    fields["step"] = replica_.step();
    if (part == kTunerPart) {  // from these it is known what each trial cost
      fields["samples"] = replica_.state().counters.samples_backward;
      add_core_seconds(fields);
    }
    event(kind, fields);
  }
}

Evaluation Recorder::evaluate(Replica& replica) {
  const Clock::time_point begin = Clock::now();
  show(run::Phase::eval, 0);
  const Evaluation result = replica.evaluate([&](int64_t done) {
    if (seconds_since(last_show_) < 0.1) return;
    show(run::Phase::eval,
         static_cast<double>(done) / static_cast<double>(replica.test_info().size));
  });
  replica.record(result);
  const double took = seconds_since(begin);
  eval_seconds_ += took;
  log_evaluation(result);
  tell_of_evaluation(result, took);
  tell_of_target();
  window_begin_ += Clock::now() - begin;  // throughput speaks of training alone
  return result;
}

void Recorder::log_evaluation(const Evaluation& result) {
  std::vector<run::Metric> scalars = {{run::kEvalLoss, result.loss}};
  if (!std::isnan(result.accuracy)) scalars.push_back({run::kEvalAccuracy, result.accuracy});
  std::vector<std::string> names;
  for (const auto& [name, value] : result.metrics) names.push_back("eval/" + name);
  auto name = names.begin();
  for (const auto& metric : result.metrics) scalars.push_back({*name++, metric.second});
  if (result.classes)
    scalars.push_back({run::kEvalCalibrationError, result.classes->calibration_error});
  if (replica_.train_info().tokens) scalars.push_back({run::kEvalPerplexity, result.perplexity()});
  metrics_.log(replica_.step(), replica_.epoch(), scalars);
  warn_of_trouble();
}

void Recorder::tell_of_evaluation(const Evaluation& result, std::optional<double> seconds) {
  Json fields = result.describe(replica_.class_names());
  fields.update({{"step", replica_.step()}, {"epoch", replica_.epoch()}});
  if (seconds) fields["duration"] = *seconds;
  if (replica_.train_info().tokens) fields["perplexity"] = run::json_number(result.perplexity());
  event("evaluation", fields);
}

void Recorder::tell_of_target() {
  if (!replica_.target_reached()) return;
  const spec::TargetOptions& target = replica_.job().target;
  event("target", {{"step", replica_.step()},
                   {"epoch", replica_.epoch()},
                   {"samples", replica_.state().counters.samples_backward},
                   {"samples_forward", replica_.state().counters.samples_forward},
                   {"metric", target.metric},
                   {"threshold", target.value},
                   {"value", replica_.target_value()},
                   {"cost", run::to_json(cost())}});
}

void Recorder::make_up() {
  bool has_window = false, has_evaluation = false;
  std::set<std::string> told;
  try {
    run::for_each_diary_line(folder_.metrics_file(), [&](const Json& line) {
      const auto step = line.find("step");
      if (step == line.end() || *step != replica_.step()) return;
      has_window |= line.contains(run::kTrainLoss);
      has_evaluation |= line.contains(run::kEvalLoss);
    });
    run::for_each_diary_line(folder_.events_file(), [&](const Json& line) {
      const Json kind = line.value("kind", Json());
      if (kind.is_string() && line.value("step", Json()) == replica_.step())
        told.insert(kind.get<std::string>());
      if (kind != "hyper") return;
      Json hyper = line.value("hyper", Json());
      add_staleness(hyper, replica_.job());
      noted_hyper_ = optim::hyper_from_json(hyper);
    });
  } catch (const Error& e) {  // a line too many is better than one too few
    run::offer_line(progress_fd_, run::Message{"warning", e.what()});
  }
  if (replica_.line() && !has_window) log(*replica_.line());
  tell_of_controls(told);
  if (!replica_.evaluated_here()) return;
  if (!has_evaluation) log_evaluation(*replica_.last());
  if (!told.contains("evaluation")) tell_of_evaluation(*replica_.last(), std::nullopt);
  if (!told.contains("target")) tell_of_target();
}

void Recorder::saved(const ckpt::SaveResult& report) {
  if (!report.error.empty() || !report.warning.empty()) {
    const std::string text = report.error.empty()
                                 ? report.warning
                                 : fmt::format("the checkpoint of step {} was not written: {}",
                                               report.step, report.error);
    event("error", {{"step", report.step}, {"message", text}});
    run::offer_line(progress_fd_, run::Message{"warning", text});
  }
  save_seconds_ += report.wait_seconds + report.copy_seconds;
}

void Recorder::show_now_and_then() {
  const std::optional<double> searching = replica_.search_share();
  if (searching) {  // its updates say nothing of the time that is left
    left_begin_ = Clock::now();
    left_begin_updates_.reset();
  } else if (!left_begin_updates_) {
    left_begin_updates_ = replica_.updates();
  }
  if (seconds_since(last_show_) > 0.1)
    show(searching ? run::Phase::tune : run::Phase::train, searching);
}

void Recorder::show(run::Phase phase, std::optional<double> phase_share) {
  last_show_ = Clock::now();
  run::Progress p;
  p.phase = phase;
  p.step = replica_.updates();
  p.total_steps = replica_.total_updates();
  p.epoch = replica_.epoch();
  p.epochs = replica_.num_epochs();
  p.phase_share = phase_share;
  p.loss = shown_loss_;
  p.accuracy = shown_accuracy_;
  p.workers = num_workers_;
  if (replica_.last() && !std::isnan(replica_.last()->accuracy))
    p.eval_accuracy = replica_.last()->accuracy;
  if (throughput_ > 0) {
    p.samples_per_second = throughput_;
    const int64_t done = left_begin_updates_ ? replica_.updates() - *left_begin_updates_ : 0;
    if (done > 0) {
      p.eta_seconds = seconds_since(left_begin_) / static_cast<double>(done) *
                      static_cast<double>(replica_.total_updates() - replica_.updates());
    }
  }
  run::offer_line(progress_fd_, p);
}

Json Recorder::summary(std::string_view status) {
  const Counters& counters = replica_.state().counters;
  const int64_t samples = counters.samples_backward - begin_samples_;
  const double training = seconds_since(begin_) - eval_seconds_;
  const data::LoaderStats loader = replica_.loader_stats();
  Json out = {{"status", status},
              {"step", replica_.step()},
              {"epoch", replica_.epoch()},
              {"updates", counters.updates},
              {"samples", counters.samples_backward},
              {"samples_forward", counters.samples_forward},
              {"flops", counters.flops},
              {"parameters", replica_.num_parameters()},
              {"cost", run::to_json(cost_.read())},
              {"checkpoint_blocking_seconds", save_seconds_},
              {"loader_wait_seconds", loader.wait_seconds},
              {"bad_samples", loader.bad_samples},
              {"skipped_steps", replica_.skipped_steps()}};
  // Of a run that had nothing left to do there is no speed.
  if (samples > 0 && training > 0)
    out["samples_per_second"] = static_cast<double>(samples) / training;
  if (const auto noise = replica_.noise()) {
    const int64_t batch = replica_.job().train.batch_size;
    const double scale = noise::noise_scale(*noise, static_cast<double>(batch));
    out["noise"] = {{"scale", run::json_number(scale)},
                    {"square", noise->sqr},
                    {"variance", noise->var},
                    {"batch_size", batch}};
  }
  if (replica_.last()) out["final"] = final_figures(*replica_.last(), replica_.class_names());
  if (replica_.best()) out["best"] = replica_.best()->describe(replica_.class_names());
  return out;
}

}  // namespace ductile::train
