#include "ductile/train/replica.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/core/Tensor.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/data/augment.h"
#include "ductile/nn/threads.h"
#include "ductile/optim/elementwise.h"
#include "ductile/optim/schedule.h"
#include "ductile/train/environment.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

// The tail of the vector that the virtual ranks sum.
constexpr int64_t kTailLoss = 0, kTailCorrect = 1, kTailPredictions = 2, kTailSize = 3;

nn::ModelInfo model_info(const spec::JobOptions& job, const data::DatasetInfo& data,
                         const spec::AugmentOptions& augment) {
  nn::ModelInfo info;
  info.num_classes = job.model.num_classes > 0 ? job.model.num_classes : data.num_classes;
  if (data.tokens) {
    info.sequence_length = data.sequence_length;
    if (job.model.vocab_size > 0) info.num_classes = job.model.vocab_size;
  } else {
    const Shape shape =
        data::Augmenter(augment, data, true, static_cast<uint64_t>(job.seed)).output_shape();
    info.channels = shape[0];
    info.height = shape[1];
    info.width = shape[2];
  }
  if (info.num_classes < data.num_classes) {
    fail(ErrorCode::invalid_argument, "the model has {} outputs but the data has {} classes",
         info.num_classes, data.num_classes);
  }
  return info;
}

Json json_of(const std::optional<Evaluation>& evaluation) {
  return evaluation ? evaluation->to_json() : Json();
}

std::optional<Evaluation> evaluation_from(const Json& value) {
  if (value.is_null()) return std::nullopt;
  return Evaluation::from_json(value);
}

}  // namespace

Json Window::to_json() const {
  return {{"loss", loss}, {"correct", correct}, {"predictions", predictions}, {"steps", steps}};
}

Window Window::from_json(const Json& j) {
  return {j.at("loss"), j.at("correct"), j.at("predictions"), j.at("steps")};
}

Replica::Replica(const spec::JobOptions& job)
    : job_(job), scaler_(job.train.precision == "fp16" ? job.train.loss_scale : 1.0) {
  train_set_ = data::open_dataset(job_.data, data::Split::train);
  test_set_ = data::open_dataset(job_.data, data::Split::test);
  const data::DatasetInfo& info = train_set_->info();
  if (!info.tokens) augment_ = data::resolve_augment(job_.augment, info);
  steps_per_epoch_ = info.size / job_.train.batch_size;
  if (steps_per_epoch_ == 0) {
    fail(ErrorCode::invalid_argument,
         "train.batch_size = {} is larger than the training set, which has {} samples",
         job_.train.batch_size, info.size);
  }
  total_steps_ = job_.train.epochs * steps_per_epoch_;
  if (job_.train.max_steps > 0) total_steps_ = std::min(total_steps_, job_.train.max_steps);

  model_ = nn::make_model(job_.model, model_info(job_, info, augment_), job_.train.precision,
                          static_cast<uint64_t>(job_.seed));
  model_->train(true);
  channels_last_ = job_.train.memory_format == "auto" ? model_->prefers_channels_last()
                                                      : job_.train.memory_format == "channels_last";
  flat_ = std::make_unique<FlatModel>(*model_, job_.optimizer);
  optimizer_ = optim::make_optimizer(job_.optimizer, flat_->layout());
  if (job_.train.ema_decay > 0) {
    average_ = AlignedArray<float>(flat_->layout().total_size());
    buffer_average_ = AlignedArray<float>(static_cast<int64_t>(flat_->buffer_values().size()));
    std::ranges::copy(flat_->weights(), average_.span().begin());
    std::ranges::copy(flat_->buffer_values(), buffer_average_.span().begin());
  }
  for (const FlatModel::Entry& buffer : flat_->buffers()) {
    num_batch_norms_ += buffer.name.ends_with("running_mean");
  }
  if (job_.train.bn_group > 1 && num_batch_norms_ == 0) {
    fail(ErrorCode::invalid_argument,
         "train.bn_group = {}, but model.name = \"{}\" has no batch norm; set it to 1",
         job_.train.bn_group, job_.model.name);
  }
  if (job_.train.shard_optimizer) {
    shards_.emplace(*optimizer_, flat_->weights(), average_.span(),
                    static_cast<int>(job_.train.shard_copies));
  }
  tree_ = std::make_unique<parallel::GradientTree>(vector_size());
}

int64_t Replica::vector_size() const {
  return flat_->layout().total_size() + static_cast<int64_t>(flat_->buffer_values().size()) +
         kTailSize;
}

double Replica::learning_rate() const {
  return optim::learning_rate(job_.schedule, job_.optimizer.lr, std::max<int64_t>(0, step_ - 1),
                              total_steps_, steps_per_epoch_);
}

void Replica::host(const parallel::ExchangeLayout& layout, int rank, parallel::Exchange* exchange) {
  const auto r = static_cast<size_t>(rank);
  hosted_ = {layout.cut[r], layout.cut[r + 1]};
  batches_.clear();
  contributions_.clear();
  if (hosted_.size() == 0) {  // it only hands over what it has
    loader_ = nullptr;
    return;
  }
  data::LoaderPlan plan;
  plan.seed = static_cast<uint64_t>(job_.seed);
  plan.batch_size = job_.train.batch_size;
  plan.parts = num_ranks();
  plan.first_part = hosted_.begin;
  plan.num_parts = hosted_.size();
  plan.channels_last = channels_last_;
  plan.start_epoch = step_ / steps_per_epoch_;
  plan.start_step = step_ % steps_per_epoch_;
  loader_ = std::make_unique<data::Loader>(train_set_, augment_, job_.loader, plan);
  groups_ = std::make_unique<parallel::BatchGroups>(job_.train.bn_group, layout, rank, exchange);
  parts_ = groups_->parts();
  next_part_ = 0;
  next_rank_ = hosted_.begin;
}

void Replica::compute(int64_t count, std::span<float> out, const Ready& ready) {
  tree_->sum_into(out);
  for (int64_t i = 0; i < count; ++i) {
    if (ready && i + 1 == count && job_.train.bn_group == 1) {
      run_part(next_part_++, [&](int64_t, const Forward& forward) {
        const std::span<float> leaf = tree_->leaf();
        write_tail(flat_->buffer_values(), forward.figures, leaf);
        int64_t end = vector_size();
        flat_->backward(forward.loss, leaf.first(static_cast<size_t>(layout().total_size())),
                        [&](int64_t begin) {
                          tree_->finish_part(begin, end);
                          end = begin;
                          ready(begin);
                        });
      });
    } else {
      while (!contributions_.contains(next_rank_)) {
        run_part(next_part_++, [&](int64_t rank, const Forward& forward) {
          contributions_[rank] = {flat_->gradients(forward.loss), nullptr, forward.figures};
        });
      }
      write(contributions_.extract(next_rank_).mapped(), tree_->leaf());
      tree_->push();
    }
    if (++next_rank_ == hosted_.end) {
      next_rank_ = hosted_.begin;
      next_part_ = 0;
    }
  }
  tree_->finish();
}

// The hosted members of one batch norm group, all computed from the state before the step, which
// stays as it was.
void Replica::run_part(size_t part, const Backward& backward) {
  const comm::LeafRange& ranks = parts_[part];
  while (!batches_.contains(ranks.end - 1)) {
    auto batch = loader_->next();
    const int64_t rank = batch->part;
    batches_.emplace(rank, std::move(batch));
  }
  const std::span<float> buffers = flat_->buffer_values();
  buffers_before_.assign(buffers.begin(), buffers.end());
  try {
    groups_->run(part, [&](int64_t rank) {
      backward(rank, forward(*batches_.extract(rank).mapped(), rank));
    });
  } catch (...) {
    std::ranges::copy(buffers_before_, buffers.begin());
    throw;
  }
  const auto after = std::make_shared<const std::vector<float>>(buffers.begin(), buffers.end());
  for (auto& [rank, contribution] : contributions_) {
    if (rank >= ranks.begin && rank < ranks.end) contribution.buffers = after;
  }
  std::ranges::copy(buffers_before_, buffers.begin());
}

Replica::Forward Replica::forward(const data::Batch& batch, int64_t virtual_rank) {
  prepare_thread();  // it may be new
  nn::seed_step(mix(mix(static_cast<uint64_t>(job_.seed), static_cast<uint64_t>(step_)),
                    static_cast<uint64_t>(virtual_rank)));
  const at::Tensor labels = labels_of(batch);
  const at::Tensor logits = model_->forward(input_of(batch));
  const nn::BatchGroup* group = nn::current_batch_group();
  if (group != nullptr && group->num_sums() < num_batch_norms_) {
    fail(ErrorCode::invalid_argument,
         "train.bn_group = {}: {} of the model's {} batch norm layers normalise by themselves; "
         "make them of nn::ops::conv_bn_act (nn::LayerModel does), not torch::nn::BatchNorm2d, or "
         "set train.bn_group = 1",
         job_.train.bn_group, num_batch_norms_ - group->num_sums(), num_batch_norms_);
  }
  const nn::LossOutput loss = model_->loss(logits, labels, job_.train.label_smoothing);
  at::Tensor mean;
  {
    const nn::OneThread alone;  // libtorch cuts the sum of a large batch by the number of threads
    mean = loss.losses.mean();
  }
  return {
      scaler_.scale() == 1 ? mean : mean.mul(scaler_.scale()),
      {mean.item<float>(), static_cast<float>(loss.correct), static_cast<float>(loss.predictions)}};
}

void Replica::write(const Contribution& contribution, std::span<float> leaf) const {
  flat_->write_gradients(contribution.gradients, leaf.first(flat_->layout().total_size()));
  write_tail(*contribution.buffers, contribution.figures, leaf);
}

void Replica::write_tail(std::span<const float> buffers, const Figures& figures,
                         std::span<float> leaf) const {
  std::ranges::copy(buffers, leaf.begin() + flat_->layout().total_size());
  const std::span<float> tail = leaf.last(kTailSize);
  tail[kTailLoss] = figures.loss;
  tail[kTailCorrect] = figures.correct;
  tail[kTailPredictions] = figures.predictions;
}

// The norm of the gradient as the optimiser sees it, before clipping.
bool Replica::overflows(double norm) const {
  return job_.train.precision == "fp16" && !std::isfinite(norm);
}

optim::StepInput Replica::step_input(std::span<const float> sum, double norm) {
  optim::StepInput in;
  in.weights = flat_->weights();
  in.gradient = sum.first(in.weights.size());
  in.lr =
      optim::learning_rate(job_.schedule, job_.optimizer.lr, step_, total_steps_, steps_per_epoch_);
  in.gradient_scale =
      inverse_scale() * static_cast<float>(optim::clip_factor(norm, job_.optimizer.clip_norm));
  in.half_weights = flat_->half_weights();
  in.half = flat_->half_type();
  in.ema = average_.span();
  in.ema_decay = static_cast<float>(job_.train.ema_decay);
  return in;
}

std::span<const float> Replica::reduce(parallel::Exchange& exchange) {
  const std::span<const float> sum = shards_->reduce(exchange);
  double norm = needs_norm() ? shards_->gradient_norm(exchange, sum) * inverse_scale() : 0;
  if (!overflows(norm)) shards_->prepare(exchange, step_input(sum, norm));
  norm_ = norm;
  return sum;
}

void Replica::gather_weights(parallel::Exchange& exchange) {
  shards_->gather_weights(exchange);
  flat_->refresh_half_weights();
}

void Replica::gather(parallel::Exchange& exchange) {
  gather_weights(exchange);
  if (!average_.span().empty()) shards_->gather_average(exchange);
}

std::vector<std::span<std::byte>> Replica::fed_tensors() {
  if (!job_.train.shard_optimizer) return snapshot().writable();
  return {std::as_writable_bytes(flat_->buffer_values()),
          std::as_writable_bytes(buffer_average_.span())};
}

void Replica::send_state(parallel::Exchange& exchange, int to) {
  const std::string state = dump_json(this->state());
  const uint64_t size = state.size();
  exchange.send(to, std::as_bytes(std::span(&size, 1)));
  exchange.send(to, std::as_bytes(std::span(state)));
  for (const std::span<const std::byte> tensor : fed_tensors()) {
    if (!tensor.empty()) exchange.send(to, tensor);
  }
}

void Replica::receive_state(parallel::Exchange& exchange, int from, int64_t step) {
  uint64_t size = 0;
  exchange.receive(from, std::as_writable_bytes(std::span(&size, 1)));
  std::string state(size, '\0');
  exchange.receive(from, std::as_writable_bytes(std::span(state)));
  const Json fed = parse_json(state, "the state that a worker sent", ErrorCode::data_loss);
  check_same_job(fed.at("job"));
  for (const std::span<std::byte> tensor : fed_tensors()) {
    if (!tensor.empty()) exchange.receive(from, tensor);
  }
  restore(step, fed);
}

void Replica::apply(std::span<const float> sum) {
  const auto ranks = static_cast<float>(num_ranks());
  const std::span<const float> gradient = sum.first(flat_->layout().total_size());
  const std::span<float> buffers = flat_->buffer_values();
  const std::span<const float> tail = sum.last(kTailSize);
  const double loss = tail[kTailLoss] / ranks;

  double norm = 0;
  if (norm_) {
    norm = *norm_;
  } else if (needs_norm()) {
    norm = optim::gradient_norm(gradient) * inverse_scale();
  }
  const bool overflow = overflows(norm);
  if (!overflow && !std::isfinite(loss)) {
    fail(ErrorCode::conflict,
         "the loss is not finite at step {}: the run diverged; try a smaller optimizer.lr, a "
         "longer schedule.warmup_epochs or optimizer.clip_norm",
         step_);
  }
  window_.loss += loss;
  window_.correct += tail[kTailCorrect];
  window_.predictions += tail[kTailPredictions];
  ++window_.steps;
  const optim::StepInput in = step_input(sum, norm);
  if (job_.train.precision == "fp16") scaler_.update(overflow);
  if (overflow) {
    if (norm_) shards_->skip();
  } else {
    if (norm_) {
      shards_->apply(in);
    } else {
      optimizer_->step(in);
    }
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i] = sum[gradient.size() + i] / ranks;
    const std::span<float> average = buffer_average_.span();
    for (size_t i = 0; i < average.size(); ++i) {
      average[i] += (1 - in.ema_decay) * (buffers[i] - average[i]);
    }
  }
  norm_.reset();
  ++step_;
}

Evaluation Replica::evaluate(const std::function<void(int64_t)>& each) {
  data::LoaderPlan plan;
  plan.batch_size =
      job_.train.eval_batch_size > 0 ? job_.train.eval_batch_size : job_.train.batch_size;
  plan.training = false;
  plan.channels_last = channels_last_;
  data::Loader loader(test_set_, augment_, job_.loader, plan);
  const WeightsSwap swap(*flat_, average_.span(), buffer_average_.span());
  return train::evaluate(*model_, loader, each);
}

void Replica::record(const Evaluation& result) {
  last_ = result;
  if (!best_ || result.accuracy > best_->accuracy) best_ = result;
  evaluated_step_ = step_;
}

bool Replica::evaluation_due() const {
  if (step_ == 0 || evaluated_step_ == step_) return false;
  if (step_ == total_steps_) return true;
  if (job_.train.eval_every_epochs <= 0) return false;
  const auto every = std::max<int64_t>(
      1, std::llround(job_.train.eval_every_epochs * static_cast<double>(steps_per_epoch_)));
  return step_ % every == 0;
}

double Replica::target_value() const {
  if (job_.target.metric == "accuracy") return last_->accuracy;
  return job_.target.metric == "loss" ? last_->loss : last_->perplexity();
}

bool Replica::target_reached() const {
  if (job_.target.metric.empty() || !last_) return false;
  return job_.target.metric == "accuracy" ? target_value() >= job_.target.value
                                          : target_value() <= job_.target.value;
}

bool Replica::done() const {
  return !evaluation_due() &&
         (step_ >= total_steps_ || (evaluated_step_ == step_ && target_reached()));
}

Json Replica::state() const {
  spec::JobOptions job = job_;
  const optim::LossScaler::State& scaler = scaler_.state();
  return {
      {"job", OptionSet(job).to_json()},
      {"optimizer_steps", optimizer_->num_steps()},
      {"loss_scaler",
       {{"scale", scaler.scale}, {"good_steps", scaler.good_steps}, {"skipped", scaler.skipped}}},
      {"window", window_.to_json()},
      {"evaluated_step", evaluated_step_},
      {"best", json_of(best_)},
      {"last", json_of(last_)}};
}

std::vector<ckpt::TensorView> Replica::tensors() {
  DUCTILE_CHECK(optimizer_->holds_all(), "the state of all blocks is asked for, some are held");
  return snapshot().views();
}

void Replica::write_model(const fs::path& file) {
  ckpt::write_safetensors(file, snapshot().model_views(),
                          {{"format", "pt"}, {"job", job_.name}, {"step", std::to_string(step_)}});
}

void Replica::check_same_job(const Json& saved) const {
  spec::JobOptions job = job_, then;
  OptionSet earlier(then);
  earlier.read_json(saved, "the checkpoint's job", Moved::follow);
  train::check_same_job(earlier.to_json(), OptionSet(job).to_json(),
                        nn::thread_invariant(job.model));
}

void Replica::restore(const ckpt::Checkpoint& checkpoint) {
  check_same_job(checkpoint.state().at("job"));
  optimizer_->hold({{0, optimizer_->num_blocks()}});
  snapshot().restore(checkpoint);
  restore(checkpoint.step(), checkpoint.state());
}

void Replica::restore(int64_t step, const Json& state) {
  flat_->refresh_half_weights();
  step_ = step;
  norm_.reset();
  optimizer_->set_num_steps(state.at("optimizer_steps"));
  const Json& scaler = state.at("loss_scaler");
  scaler_ = optim::LossScaler(
      optim::LossScaler::State{scaler.at("scale"), scaler.at("good_steps"), scaler.at("skipped")});
  window_ = Window::from_json(state.at("window"));
  evaluated_step_ = state.at("evaluated_step");
  best_ = evaluation_from(state.at("best"));
  last_ = evaluation_from(state.at("last"));
}

}  // namespace ductile::train
