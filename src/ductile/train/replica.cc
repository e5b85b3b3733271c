#include "ductile/train/replica.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/data/cursor.h"
#include "ductile/nn/threads.h"
#include "ductile/optim/batch_order.h"
#include "ductile/optim/elementwise.h"
#include "ductile/spec/changed_options.h"
#include "ductile/spec/live_options.h"
#include "ductile/spec/methods.h"
#include "ductile/train/data_form.h"
#include "ductile/train/noise.h"
#include "ductile/train/probing.h"
#include "ductile/train/same_job.h"
#include "ductile/train/staleness.h"
#include "ductile/train/statistics.h"
#include "ductile/train/task_method.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

// The extra part that counts the updates of train.tail_average.
constexpr const char* kTail = "tail_average";

// What may help a run that diverged; LRTuner reads neither the rate nor its warm-up, and a rate
// that is found while training is not that of the job.
std::string_view advice(const spec::JobOptions& job) {
  if (job.train.rate_control == "lrtuner")
    return "try optimizer.clip_norm, or another train.rate_control";
  if (job.tune.online && !job.tune.lr.empty())
    return "try a smaller largest learning rate in tune.lr, a longer schedule.warmup_epochs or "
           "optimizer.clip_norm";
  return "try a smaller optimizer.lr, a longer schedule.warmup_epochs or optimizer.clip_norm";
}

// The number of workers that hold each part of the state.
int copies_of(const spec::JobOptions& job) {
  return job.train.shard_optimizer ? static_cast<int>(job.train.shard_copies)
                                   : parallel::kEverywhere;
}

std::vector<std::string> figures_of(const StepMethod& method, const spec::JobOptions& job) {
  std::vector<std::string> names = method.figures();
  if (spec::batch_is_ordered(job)) names.emplace_back(optim::kBatchOrder);
  return names;
}

}  // namespace

Replica::Replica(const spec::JobOptions& job, const Recipe& recipe, bool may_be_blank)
    : job_(job),
      in_force_(job),
      ingredients_(may_be_blank ? blank_ingredients(job_, recipe) : recipe()),
      figures_(figures_of(*ingredients_.method, job_), ingredients_.method->num_shared()),
      state_(*ingredients_.model, job_, ingredients_.make_optimizer),
      runner_(in_force_, ingredients_, state_, figures_),
      shards_(*state_.optimizer, state_.flat.weights(), state_.average.span(), copies_of(job_)) {
  if (num_parameters() == 0) {
    fail(ErrorCode::invalid_argument, "the model has no parameters, so there is nothing to train");
  }
  if (job_.train.shard_optimizer && ingredients_.method->runs_stages()) {
    shards_.keep_where_read(runner_.blocks_read());
  }
  ingredients_.model->train(true);
  state_.hyper = state_.last_hyper = optim::Hyper::of(job_);
  if (job_.tune.online) {
    tuner_.emplace(job_, train_info().size, [this] { return epoch(); });
    tuner_->begin(state_);
  }
  choose_hyper();
  begin_step();
}

// ---- Where in the run the state is.

int64_t Replica::steps_per_epoch() const { return train_info().size / state_.hyper.batch_size; }

Progress Replica::progress() const {
  return progress_of(*ingredients_.method, state_, train_info().size, job_.train.epochs);
}

int64_t Replica::total_updates() const {
  const int64_t total = updates() + progress().left;
  return job_.train.max_steps > 0 ? std::min(total, std::max(job_.train.max_steps, updates()))
                                  : total;
}

int64_t Replica::num_epochs() const {
  const int64_t all = job_.train.epochs;
  if (job_.train.max_steps == 0 || all == 0) return all;
  const auto left = static_cast<double>(total_updates() - updates());
  const double passes = epoch_at(progress().position + left);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(passes)), 1, all);
}

Way Replica::way_with(int64_t batch) {
  const int64_t present = std::exchange(state_.hyper.batch_size, batch);
  const Way out = way();
  state_.hyper.batch_size = present;
  return out;
}

optim::Observed Replica::observed() {
  optim::Observed seen;
  const Way way = this->way();
  seen.position = way.done;
  seen.total = way.total;
  seen.way_with = [this](int64_t batch) {
    const Way with = way_with(batch);
    return std::pair(with.done, with.total);
  };
  seen.steps_per_epoch = train_info().size / job_.train.batch_size;
  seen.updates = updates();
  seen.last = state_.last_hyper;
  seen.loss = state_.loss;
  seen.figures = state_.figures;
  if (state_.last) {
    seen.eval_loss = state_.last->loss;
    seen.eval_accuracy = state_.last->accuracy;
  }
  seen.evaluated_at = state_.evaluated_at;
  seen.probe_loss = probe_loss(state_);
  seen.noise = noise();
  return seen;
}

// Once for each committed step, and once for the first state.
void Replica::choose_hyper() {
  optim::Hyper chosen =
      ingredients_.rate_control->next(observed(), state_.extra(std::string(kControlPart)).values);
  if (tuner_) chosen = tuner_->adjusted(state_, chosen, epoch());
  if (chosen.batch_size < 1 || chosen.batch_size % spec::batch_parts(job_) != 0 ||
      chosen.batch_size > train_info().size) {
    fail(ErrorCode::invalid_argument,
         "train.rate_control = \"{}\" chose a batch of {} samples; a batch is a multiple of its {} "
         "parts and at most the {} samples of the training set",
         job_.train.rate_control, chosen.batch_size, spec::batch_parts(job_), train_info().size);
  }
  if (chosen.staleness < 0 || chosen.staleness > spec::most_staleness(job_)) {
    fail(ErrorCode::invalid_argument,
         "train.rate_control = \"{}\" chose a staleness of {}; it is from 0 to {}, the largest of "
         "train.staleness and, with tune.online, tune.staleness",
         job_.train.rate_control, chosen.staleness, spec::most_staleness(job_));
  }
  if (!chosen.options.empty() && spec::is_pipelined(job_)) {
    fail(ErrorCode::invalid_argument,
         "train.rate_control = \"{}\" chose {}, and the stages of train.method = \"pipelined\" are "
         "made for the options of the job file; choose another method",
         job_.train.rate_control, chosen.options.begin()->first);
  }
  state_.hyper = std::move(chosen);
}

// Whoever reads live options computes with those of the present step from here on. Nobody else
// remembers them: they are part of the state.
void Replica::obey() {
  const std::map<std::string, double>& options = state_.hyper.options;
  if (options == obeyed_) return;
  in_force_ = spec::with_options(job_, options);
  state_.optimizer->set_options(in_force_.optimizer);
  ingredients_.method->set_options(in_force_);
  ingredients_.model->set_options(in_force_.model);
  obeyed_ = options;
}

void Replica::wish_batch(int64_t samples) {
  runner_.set_batch_order(optim::order_of(job_, state_.extra(std::string(kControlPart)).values,
                                          train_info().size, updates(), samples));
}

void Replica::begin_step() {
  obey();
  judgement_.reset();
  gathered_.reset();
  kind_ = ingredients_.method->next(state_);
  samples_ = ingredients_.method->samples(state_, kind_);
  state_.flat.set_epoch(epoch());
  DUCTILE_CHECK(kind_.gradient || !kind_.update, "an update needs a gradient");
}

void Replica::compute(int64_t count, std::span<float> out, const Ready& ready) {
  // Which a run may come to that nobody could refuse as it began (require_trained()).
  if (kind_.gradient && !state_.flat.is_trained())
    fail(ErrorCode::invalid_argument,
         "all parameters are frozen since epoch {:g} (by the model, or by optimizer.freeze), so "
         "nothing is trained any more; begin a run that trains one of them longer, or that ends "
         "before",
         epoch());
  runner_.compute(kind_, samples_ ? &*samples_ : nullptr, count, out, ready);
}

void Replica::state_changed() {
  runner_.state_changed();
  begin_step();
}

// ---- The update.

// With what the update needs of other workers; `exchange` as in ShardedUpdate.
void Replica::judge(std::span<const float> sum, parallel::Exchange* exchange) {
  Judgement out;
  out.sums = figures_.by_name(sum.last(static_cast<size_t>(figures_.size())));
  out.verdict = ingredients_.method->judge(state_, kind_, out.sums, num_ranks());
  if (out.verdict.update) {
    out.inverse_scale = inverse_scale(out.verdict);
    if (needs_norm()) {
      out.norm = shards_.gradient_norm(exchange, sum) * out.inverse_scale;
      out.overflow = job_.train.precision == "fp16" && !std::isfinite(out.norm);
    }
    if (!out.overflow) shards_.prepare(exchange, step_input(sum, out));
  }
  judgement_ = std::move(out);
}

optim::StepInput Replica::step_input(std::span<const float> sum, const Judgement& judgement) {
  optim::StepInput in;
  in.weights = state_.flat.weights();
  in.gradient = sum.first(in.weights.size());
  in.hyper = state_.hyper;
  in.loss = judgement.verdict.loss;
  in.epoch = epoch();
  const Way way = this->way();
  in.progress = way.done / way.total;
  in.gradient_scale = judgement.inverse_scale *
                      static_cast<float>(optim::clip_factor(judgement.norm, in.hyper.clip_norm));
  in.half_weights = state_.flat.half_weights();
  in.half = state_.flat.half_type();
  in.ema = state_.average.span();
  in.ema_decay = static_cast<float>(average_decay());
  return in;
}

// Of the next update. In the tail of the run the average becomes the mean over the updates of the
// tail; before it, it is the weights. What the tail has had is counted: a method that chooses its
// examples goes through the data in steps of several lengths.
double Replica::average_decay() const {
  if (job_.train.tail_average == 0) return job_.train.ema_decay;
  const double in_tail = steps_in_tail();
  if (in_tail < 0) return 0;
  const auto part = state_.extras().find(kTail);
  // A checkpoint of an older Ductile has no count.
  const double done =
      part == state_.extras().end() ? in_tail : part->second.values.value("updates", in_tail);
  return 1 - 1 / (done + 1);
}

// Of the way through the schedule; below 0 before the tail.
double Replica::steps_in_tail() const {
  const auto [done, total] = way();
  return done - (total - std::max(1.0, std::round(job_.train.tail_average * total)));
}

void Replica::count_tail(double decay) {
  if (job_.train.tail_average == 0) return;
  // The decay is 1 - 1 / (the updates before this one + 1).
  const double updates = steps_in_tail() < 0 ? 0 : std::round(1 / (1 - decay));
  state_.extra(kTail).values = {{"updates", updates}};
}

std::span<const float> Replica::reduce(parallel::Exchange& exchange) {
  const std::span<const float> sum = shards_.reduce(exchange, sum_begin());
  judge(sum, &exchange);
  return sum;
}

void Replica::apply(std::span<const float> sum) {
  if (!judgement_) judge(sum, nullptr);  // the sum was made without an exchange
  const Judgement& judgement = *judgement_;
  const Verdict& verdict = judgement.verdict;
  // To a tuner that is a result. Without one, fp16 may yet find a scale that suits.
  const bool is_result = tuner_ && tuner_->takes_divergence(state_);
  const bool has_diverged =
      verdict.update && !std::isfinite(verdict.loss) && (is_result || !judgement.overflow);
  if (has_diverged && !is_result) {
    fail(ErrorCode::conflict, "the loss is not finite at step {}: the run diverged; {}", step(),
         advice(job_));
  }
  if (verdict.update && !has_diverged) {
    update(sum, judgement);
    note_noise(sum, judgement);
  } else {
    shards_.skip();
  }
  state_.line.reset();  // of the step before
  Counters& counters = state_.counters;
  ++counters.step;
  const auto forward = judgement.sums.at(std::string(kSamplesForward));
  const auto backward = judgement.sums.at(std::string(kSamplesBackward));
  counters.samples_forward += std::llround(forward);
  counters.samples_backward += std::llround(backward);
  counters.flops += ingredients_.flops_per_sample * (kind_.forward_cost * forward + 2 * backward);
  const int64_t cursor = counters.cursor;
  if (samples_) {
    counters.cursor = samples_->next_cursor;
  } else if (kind_.update) {
    counters.cursor =
        data::samples_of_step(counters.cursor, state_.hyper.batch_size, train_info().size).next;
  }
  if (kind_.update) {
    ++counters.updates;
    state_.last_hyper = state_.hyper;
  }
  const auto tail = sum.last(static_cast<size_t>(figures_.size()));
  std::span<const float> gradient;
  if (kind_.gradient) gradient = sum.first(state_.flat.weights().size());
  ingredients_.method->commit(
      state_, kind_,
      {judgement.sums, figures_.shared(tail), gradient, samples_ ? &*samples_ : nullptr, cursor});
  if (tuner_) tell_tuner(has_diverged ? verdict.loss : state_.loss.value_or(0));
  choose_hyper();
  const Window& window = state_.window;
  if (window.updates > 0 &&
      (window.updates >= job_.train.log_every || updates() == total_updates()))
    state_.line = std::exchange(state_.window, {});
  begin_step();
}

void Replica::tell_tuner(double loss) {
  if (!kind_.update) {
    tuner_->passed(state_);
  } else if (tuner_->updated(state_, {loss, updates() >= total_updates()})) {
    runner_.state_changed();  // another branch
    obey();
  }
}

void Replica::update(std::span<const float> sum, const Judgement& judgement) {
  const optim::StepInput in = step_input(sum, judgement);
  if (job_.train.precision == "fp16") state_.scaler.update(judgement.overflow);  // may throw
  const double loss = judgement.verdict.loss;
  for (const auto& [name, value] : judgement.sums) {
    if (name != kSamplesForward && name != kSamplesBackward && name != kLoss &&
        name != kGradientSquare && name != optim::kBatchOrder)
      state_.window.sums[name] += value;
  }
  state_.window.sums[std::string(kLoss)] += loss;
  ++state_.window.updates;
  state_.loss = loss;
  state_.figures = judgement.sums;
  if (judgement.overflow) {
    shards_.skip();
    return;
  }
  const double decay = average_decay();
  shards_.apply(in);
  count_tail(decay);
  const auto ranks = static_cast<float>(num_averaged());
  const std::span<float> buffers = state_.flat.buffer_values();
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i] = sum[in.gradient.size() + i] / ranks;
  const std::span<float> average = state_.buffer_average.span();
  for (size_t i = 0; i < average.size(); ++i) {
    average[i] = in.ema_decay == 0 ? buffers[i]
                                   : average[i] + (1 - in.ema_decay) * (buffers[i] - average[i]);
  }
}

// The part of a rank is g_v divisor / V, g_v being its gradient as one of the V whose mean the
// update is made of.
void Replica::note_noise(std::span<const float> sum, const Judgement& judgement) {
  if (judgement.overflow) return;
  const double samples = judgement.sums.at(std::string(kSamplesBackward));
  const double scale = samples / static_cast<double>(job_.train.batch_size);
  if (measures_noise_by_pairs(state_, kind_, job_)) {
    const std::span<const float> gradient = sum.first(state_.flat.weights().size());
    return add_to_pair(state_, gradient, judgement.inverse_scale, scale);
  }
  if (!measures_noise(state_, kind_, job_)) return;
  // The ranks' parts of a batch that is not full are not equal, as the estimate takes them to be.
  if (samples != static_cast<double>(state_.hyper.batch_size)) return;
  const auto ranks = static_cast<double>(num_ranks());
  const double factor = ranks / judgement.verdict.divisor;
  noise::NoiseSample sample;
  sample.parts = static_cast<int32_t>(num_ranks());
  sample.scale = scale;
  sample.steps = kNoiseEvery;
  sample.mean_square_norm =
      factor * factor * judgement.sums.at(std::string(kGradientSquare)) / ranks;
  sample.square_norm_mean = judgement.norm * judgement.norm;
  add_noise(state_, sample);
}

std::optional<noise::GradientNoise> Replica::noise() const { return noise_of(state_); }

bool Replica::needs_norm() const {
  return job_.train.precision == "fp16" || state_.hyper.clip_norm > 0 ||
         measures_noise(state_, kind_, job_);
}

// ---- Parts.

// ---- Evaluation.

JobState::EvaluationWeights Replica::take_gathered() {
  return gathered_ ? *std::exchange(gathered_, std::nullopt) : state_.evaluation_weights();
}

void Replica::add_statistics(JobState::EvaluationWeights& evaluated) {
  // A run that needs them is refused as it begins; one of an earlier version has those of training.
  if (ingredients_.task) return;
  train::add_statistics(state_, evaluated, *ingredients_.model, job_, ingredients_.augment,
                        [&] { return ingredients_.train_set; });
}

Evaluation Replica::evaluate(const std::function<void(int64_t)>& each) {
  if (Task* const task = ingredients_.task.get()) {
    const JobState::EvaluationWeights other = take_gathered();
    const WeightsSwap swap(state_.flat, other.weights, other.buffers);
    carry_in(*task, state_);
    return task->evaluate(each);
  }
  data::LoaderTask plan;
  plan.batch_size =
      job_.train.eval_batch_size > 0 ? job_.train.eval_batch_size : job_.train.batch_size;
  plan.training = false;
  plan.channels_last = runner_.channels_last();
  const DataForm form = DataForm::of(job_, train_info(), ingredients_.augment);
  plan.height = form.model.height;
  plan.width = form.model.width;
  data::Loader loader(ingredients_.test_set, form.augment_for_others(), job_.loader, plan);
  JobState::EvaluationWeights other = take_gathered();
  if (!by_stages_) add_statistics(other);
  const WeightsSwap swap(state_.flat, other.weights, other.buffers, evaluated_ranges());
  ClassScores scores;
  Forward forward;
  if (by_stages_) forward = [this](const nn::Tensors& x) { return by_stages_->forward(x); };
  return train::evaluate(*ingredients_.model, loader, job_.eval, scores, each, forward);
}

void Replica::record(const Evaluation& result) {
  // fp16 skips the updates of a run that has diverged. A tuner sees it at the next update.
  const bool is_result = tuner_ && tuner_->takes_divergence(state_);
  if (!std::isfinite(result.loss) && !is_result) {
    fail(ErrorCode::conflict,
         "the loss of the evaluation after update {} is not finite: the run diverged; {}",
         updates(), advice(job_));
  }
  state_.last = result;
  if (!state_.best || result.better_than(*state_.best)) state_.best = result;
  state_.evaluated_at = updates();
  state_.evaluated_step = step();
  state_.evaluated_epoch = epoch();
}

bool Replica::last_evaluation_due() const {
  return evaluation_due() && (updates() >= total_updates() || !job_.target.metric.empty()) &&
         state_.optimizer->holds_all() && !shards_.kept_where_read();
}

bool Replica::evaluation_due() const {
  if (updates() == 0 || evaluated()) return false;
  if (updates() >= total_updates()) return true;
  if (job_.train.eval_every_epochs <= 0) return false;
  const auto every = std::max<int64_t>(
      1, std::llround(job_.train.eval_every_epochs * static_cast<double>(steps_per_epoch())));
  const double since = std::max(0.0, state_.evaluated_epoch);
  return std::llround((epoch() - since) * static_cast<double>(steps_per_epoch())) >= every;
}

double Replica::target_value() const {
  if (job_.target.metric == "accuracy") return last()->accuracy;
  return job_.target.metric == "loss" ? last()->loss : last()->perplexity();
}

bool Replica::target_reached() const {
  if (job_.target.metric.empty() || !last()) return false;
  return job_.target.metric == "accuracy" ? target_value() >= job_.target.value
                                          : target_value() <= job_.target.value;
}

bool Replica::done() const {
  return !evaluation_due() && (updates() >= total_updates() || (evaluated() && target_reached()));
}

// ---- Saved, restored, sent.

Json Replica::values() const {
  spec::JobOptions job = job_;
  Json out = state_.values();
  out["job"] = OptionSet(job).to_json();
  return out;
}

JobState::Deployed Replica::deployed() {
  JobState::EvaluationWeights evaluated = state_.evaluation_weights();
  add_statistics(evaluated);
  JobState::Deployed out = state_.deployed(std::move(evaluated));
  if (Task* const task = ingredients_.task.get()) {
    carry_in(*task, state_);
    for (ckpt::TensorView& view : task->carried()) out.views.push_back(std::move(view));
  }
  return out;
}

std::map<std::string, std::string> Replica::about_model(const std::string& weights_digest) const {
  std::map<std::string, std::string> about = {{"format", "pt"},
                                              {"job", job_.name},
                                              {"step", std::to_string(step())},
                                              {kWeightsDigestKey, weights_digest}};
  if (!ingredients_.task) {  // a task alone knows what its samples are
    const DataForm form = DataForm::of(job_, train_info(), ingredients_.augment);
    about[kDataFormKey] = dump_json(form.to_json());
  }
  return about;
}

void Replica::write_model(const fs::path& file, const JobState::Deployed& model) const {
  ckpt::write_safetensors(file, model.views, about_model(ckpt::tensors_digest(model.views)));
}

void Replica::check_same_job(const Json& saved) const {
  spec::JobOptions job = job_;
  train::check_same_job(spec::upgraded_job(saved, "the checkpoint's job"), OptionSet(job).to_json(),
                        nn::thread_invariant(job.model));
}

// The values of earlier versions: their hyperparameters had no staleness. Before that their
// evaluations were counted in updates, and before that their state held no counters, since every
// step was an update with the job's hyperparameters.
Json Replica::upgraded(const ckpt::Checkpoint& checkpoint) const {
  Json values = checkpoint.state();
  const int64_t steps = checkpoint.step(), batch_size = job_.train.batch_size;
  const int64_t samples = steps * batch_size, size = train_info().size;
  add_staleness_to_state(values, job_);
  if (!values.contains("evaluation")) {
    const auto evaluated_at =
        values.at(values.contains("counters") ? "evaluated_at" : "evaluated_step").get<int64_t>();
    const double epoch = static_cast<double>(std::max<int64_t>(0, evaluated_at)) /
                         static_cast<double>(size / batch_size);
    values["evaluation"] = {{"step", evaluated_at}, {"epoch", epoch}};
  }
  if (values.contains("counters")) return values;
  values["counters"] = {
      {"updates", steps},
      {"cursor", data::cursor_after(steps, batch_size, size)},
      {"samples_forward", samples},
      {"samples_backward", samples},
      {"flops", ingredients_.flops_per_sample * 3 * static_cast<double>(samples)}};
  const auto hyper_at = [&](int64_t step) {
    optim::Observed seen;
    seen.updates = step;
    seen.position = static_cast<double>(step);
    seen.total = static_cast<double>(total_updates());
    seen.steps_per_epoch = size / batch_size;
    Json memory = Json::object();
    return to_json(ingredients_.rate_control->next(seen, memory));
  };
  values["hyper"] = hyper_at(steps);
  values["last_hyper"] = hyper_at(std::max<int64_t>(0, steps - 1));
  values["evaluated_at"] = values.at("evaluated_step");
  values["loss"] = nullptr;
  values["figures"] = values["extra"] = Json::object();
  return values;
}

void Replica::restore(const ckpt::Checkpoint& checkpoint, const Blocks& blocks) {
  check_same_job(checkpoint.state().at("job"));
  state_.restore(checkpoint, upgraded(checkpoint), blocks);
  state_changed();
}

void Replica::send_state(parallel::Exchange& exchange, int to) {
  spec::JobOptions job = job_;
  state_.send(exchange, to, OptionSet(job).to_json());
}

void Replica::receive_state(parallel::Exchange& exchange, int from, int64_t step) {
  state_.receive(exchange, from, step, [this](const Json& job) { check_same_job(job); });
  state_changed();
}

void Replica::take(const StateImage& image) {
  state_.take(image);
  state_changed();
}

}  // namespace ductile::train
