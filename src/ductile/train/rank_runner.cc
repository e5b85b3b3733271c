#include "ductile/train/rank_runner.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/avg_pool2d.h>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/nn/threads.h"
#include "ductile/optim/batch_order.h"
#include "ductile/optim/elementwise.h"
#include "ductile/train/environment.h"
#include "ductile/train/evaluate.h"
#include "ductile/train/noise.h"
#include "ductile/train/stage_trace.h"

namespace ductile::train {
namespace {

// Running statistics that are as they were at the end of the scope, whatever happens in it.
class StatisticsStay {
 public:
  // `before` is the memory in which they wait.
  StatisticsStay(std::span<float> values, std::vector<float>& before)
      : values_(values), before_(before) {
    before_.assign(values_.begin(), values_.end());
  }
  StatisticsStay(const StatisticsStay&) = delete;
  StatisticsStay& operator=(const StatisticsStay&) = delete;
  ~StatisticsStay() { std::ranges::copy(before_, values_.begin()); }

 private:
  std::span<float> values_;
  std::vector<float>& before_;
};

}  // namespace

class RankRunner::Context final : public RankContext {
 public:
  Context(RankRunner& runner, int64_t rank)
      : runner_(runner), rank_(rank), figures_(static_cast<size_t>(runner.figures_.size())) {
    if (rank == 0 && runner.batch_order_ > 0)
      figure(optim::kBatchOrder, static_cast<double>(runner.batch_order_));
  }

  const spec::JobOptions& job() const override { return runner_.job_; }
  const JobState& state() const override { return runner_.state_; }
  const StepKind& kind() const override { return runner_.kind_; }
  int64_t rank() const override { return rank_; }
  uint64_t seed() const override { return mix(runner_.step_seed(), static_cast<uint64_t>(rank_)); }
  int64_t train_size() const override { return runner_.ingredients_.train_info().size; }
  nn::Model& model() override { return *runner_.ingredients_.model; }
  const data::Batch& batch() override { return runner_.batch_of(rank_); }
  int64_t first() const override {
    const int64_t per_rank = runner_.samples_ != nullptr
                                 ? runner_.samples_->per_rank
                                 : state().hyper.batch_size / job().train.virtual_ranks;
    return rank_ * per_rank;
  }
  const Samples* samples() const override { return runner_.samples_; }

  std::shared_ptr<const data::Batch> fetch(std::span<const int64_t> indices,
                                           int64_t epoch) override {
    return runner_.loader_->fetch(indices, epoch);
  }

  nn::LossOutput forward(const data::Batch& batch) override {
    figures_[runner_.figures_.place(kSamplesForward)] += static_cast<float>(batch.num_samples);
    const at::Tensor labels = labels_of(batch);
    const at::Tensor logits = train::forward(model(), batch);
    const nn::BatchGroup* group = nn::current_batch_group();
    if (group != nullptr && group->num_sums() < runner_.num_batch_norms_) {
      fail(ErrorCode::invalid_argument,
           "train.bn_group = {}: {} of the model's {} batch norm layers normalise by themselves; "
           "make them of nn::ops::conv_bn_act (nn::LayerModel does), not torch::nn::BatchNorm2d, "
           "or set train.bn_group = 1",
           job().train.bn_group, runner_.num_batch_norms_ - group->num_sums(),
           runner_.num_batch_norms_);
    }
    return model().loss(logits, labels, job().train.label_smoothing);
  }

  nn::LossOutput look(const data::Batch& batch, bool half) override {
    figures_[runner_.figures_.place(kSamplesForward)] += static_cast<float>(batch.num_samples);
    const at::NoGradGuard no_grad;
    nn::Model& model = runner_.model_for_looks();
    const EvaluationMode mode(model);
    const at::Tensor logits =
        half ? model.forward(at::avg_pool2d(input_of(batch), 2)) : train::forward(model, batch);
    return model.loss(logits, labels_of(batch), job().train.label_smoothing);
  }

  at::Tensor mean(const at::Tensor& losses) override {
    const nn::OneThread alone;  // libtorch cuts the sum of a large batch by the number of threads
    return losses.mean();
  }

  void figure(std::string_view name, double value) override {
    figures_[runner_.figures_.place(name)] = static_cast<float>(value);
  }

  std::span<float> shared() override {
    return std::span(figures_).last(static_cast<size_t>(runner_.figures_.num_shared()));
  }

  std::vector<float> take_figures() { return std::move(figures_); }

 private:
  RankRunner& runner_;
  const int64_t rank_;
  std::vector<float> figures_;
};

RankRunner::RankRunner(const spec::JobOptions& job, Ingredients& ingredients, JobState& state,
                       const FigureList& figures)
    : job_(job),
      ingredients_(ingredients),
      state_(state),
      figures_(figures),
      channels_last_(lies_channels_last(job, *ingredients.model)),
      tree_(vector_size()) {
  if (ingredients_.method->runs_stages()) {
    stages_ = std::make_unique<StageRunner>(job_, ingredients_, state_.flat);
  }
  if (ingredients_.look_model) look_model_.emplace(*ingredients_.look_model);
  for (const FlatModel::Entry& buffer : state_.flat.buffers()) {
    num_batch_norms_ += buffer.name.ends_with("running_mean");
  }
  if (job_.train.bn_group > 1 && num_batch_norms_ == 0) {
    fail(ErrorCode::invalid_argument,
         "train.bn_group = {}, but model.name = \"{}\" has no batch norm; set it to 1",
         job_.train.bn_group, job_.model.name);
  }
}

int64_t RankRunner::figures_begin() const {
  return state_.flat.layout().total_size() +
         static_cast<int64_t>(state_.flat.buffer_values().size());
}

int64_t RankRunner::vector_size() const { return figures_begin() + figures_.size(); }

std::vector<StageRunner::Blocks> RankRunner::blocks_read() const {
  return stages_ ? stages_->blocks_read() : std::vector<StageRunner::Blocks>();
}

nn::OperatorGraph RankRunner::forward_operators() const {
  return stages_ ? stages_->forward_operators() : nn::operators_of(*ingredients_.model);
}

std::vector<int> RankRunner::ranks_of_operators() const {
  return stages_ ? stages_->ranks() : std::vector<int>();
}

// All have running statistics and figures.
std::vector<std::vector<parallel::FloatRange>> RankRunner::contributions() const {
  std::vector<std::vector<parallel::FloatRange>> out;
  if (!stages_) return out;
  const int64_t size = state_.flat.layout().total_size();
  for (const StageRunner::Blocks& blocks : stages_->blocks_summed()) {
    std::vector<parallel::FloatRange> ranges = {{size, vector_size()}};
    for (const parallel::BlockRange& b : blocks) {
      ranges.push_back(
          {b.begin * optim::kBlockFloats, std::min(size, b.end * optim::kBlockFloats)});
    }
    out.push_back(parallel::united(std::move(ranges)));
  }
  return out;
}

void RankRunner::host(const parallel::ExchangeLayout& layout, int rank,
                      parallel::Exchange* exchange) {
  const auto r = static_cast<size_t>(rank);
  layout_ = layout;
  hosted_ = {layout.cut[r], layout.cut[r + 1]};
  batches_.clear();
  contributions_.clear();
  loaded_cursor_ = -1;
  trace_.clear();  // of a step that was given up
  traced_step_ = -1;
  // All members for the first time here, whether they host a stage or not.
  if (stages_ && exchange != nullptr) exchange->messages();
  if (hosted_.size() == 0) {  // it only hands over what it has
    loader_ = nullptr;
    return;
  }
  if (stages_) stages_->host(layout, rank, exchange);
  groups_ = std::make_unique<parallel::BatchGroups>(job_.train.bn_group, layout, rank, exchange);
  parts_ = groups_->parts();
  next_part_ = 0;
  next_rank_ = hosted_.begin;
  if (ingredients_.task) return ingredients_.task->host(hosted_);
  data::LoaderTask plan;
  plan.seed = static_cast<uint64_t>(job_.seed);
  plan.batch_size = state_.hyper.batch_size;
  plan.parts = spec::batch_parts(job_);
  const comm::LeafRange own = stages_ ? stages_->parts() : hosted_;
  plan.first_part = own.begin;
  plan.num_parts = own.size();
  plan.channels_last = channels_last_;
  plan.start = state_.counters.cursor;
  if (own.size() == 0) {
    loader_ = nullptr;
  } else {
    loader_ = std::make_unique<data::Loader>(ingredients_.train_set, ingredients_.augment,
                                             job_.loader, plan);
  }
}

// A step that is none of training leaves the stream's batches to the next one.
void RankRunner::begin_step() {
  if (!loader_) return;  // a task has its own data, and not every stage reads samples
  if (fetches()) {
    batches_.clear();
    loaded_cursor_ = -1;
    return;
  }
  const Counters& counters = state_.counters;
  const int64_t batch_size = state_.hyper.batch_size;
  if (loaded_cursor_ == counters.cursor && loaded_batch_size_ == batch_size) return;
  loaded_cursor_ = counters.cursor;
  loaded_batch_size_ = batch_size;
  batches_.clear();
  loader_->restart(counters.cursor, batch_size);
}

void RankRunner::compute(const StepKind& kind, const Samples* samples, int64_t count,
                         std::span<float> out, const Ready& ready) {
  kind_ = kind;
  samples_ = samples;
  looked_ = false;
  begin_step();
  if (kind_.gradient) {
    compute_gradients(count, out, ready);
  } else {
    compute_figures(count, out);
  }
}

void RankRunner::repeat(const StepKind& kind, const Samples* samples, int64_t rank,
                        std::span<float> out) {
  DUCTILE_CHECK(ingredients_.task != nullptr, "a rank is repeated of a job with a task only");
  kind_ = kind;
  samples_ = samples;
  const std::span<float> buffers = state_.flat.buffer_values();
  const StatisticsStay stay(buffers, buffers_before_);
  const auto gradient_size = static_cast<size_t>(state_.flat.layout().total_size());
  run_rank(rank, [&](int64_t, const at::Tensor& loss, const std::vector<float>& figures) {
    if (loss.defined()) {
      state_.flat.write_gradients(state_.flat.gradients(loss), out.first(gradient_size));
    } else {  // it has no sample
      std::ranges::fill(out.first(gradient_size), 0.0F);
    }
    std::ranges::copy(figures, out.last(figures.size()).begin());
  });
  std::ranges::copy(buffers, out.begin() + static_cast<ptrdiff_t>(gradient_size));
}

void RankRunner::compute_gradients(int64_t count, std::span<float> out, const Ready& ready) {
  const auto gradient_size = static_cast<size_t>(state_.flat.layout().total_size());
  const auto write_tail = [&](std::span<const float> buffers, std::span<const float> figures,
                              std::span<float> leaf) {
    std::ranges::copy(buffers, leaf.begin() + static_cast<ptrdiff_t>(gradient_size));
    std::ranges::copy(figures, leaf.last(figures.size()).begin());
  };
  const bool measured = measures_noise(state_, kind_, job_);
  // Of a leaf that has its gradient. The scale of the loss is no part of it.
  const auto measure = [&](std::span<float> leaf) {
    if (!measured) return;
    const double norm = optim::gradient_norm(leaf.first(gradient_size)) / state_.scaler.scale();
    leaf[static_cast<size_t>(figures_begin()) + figures_.place(kGradientSquare)] =
        static_cast<float>(norm * norm);
  };
  const bool everywhere = layout_.contributions.empty();
  std::vector<parallel::FloatRange> filled = {{0, vector_size()}};
  if (!everywhere) filled = layout_.filled({next_rank_, next_rank_ + count});
  tree_.restrict_to(filled);
  tree_.sum_into(out);
  for (int64_t i = 0; i < count; ++i) {
    if (ready && i + 1 == count && job_.train.bn_group == 1 && !stages_) {
      run_part(next_part_, [&](int64_t, const at::Tensor& loss, std::vector<float> figures) {
        const std::span<float> leaf = tree_.leaf();
        write_tail(state_.flat.buffer_values(), figures, leaf);
        int64_t end = figures_begin();
        const auto finished = [&](int64_t begin) {
          if (begin == 0) {
            measure(leaf);
            tree_.finish_part(figures_begin(), vector_size());
          }
          tree_.finish_part(begin, end);
          end = begin;
          ready(begin);
        };
        if (loss.defined()) {
          state_.flat.backward(loss, leaf.first(gradient_size), finished);
        } else {
          std::ranges::fill(leaf.first(gradient_size), 0.0F);
          finished(0);
        }
      });
      ++next_part_;
    } else {
      const Contribution own = next_contribution();
      const std::span<float> leaf = tree_.leaf();
      if (everywhere) {
        state_.flat.write_gradients(own.gradients, leaf.first(gradient_size));
      } else {
        state_.flat.write_gradients(own.gradients, filled, leaf);
      }
      write_tail(*own.buffers, own.figures, leaf);
      measure(leaf);
      tree_.push();
    }
    advance();
  }
  tree_.finish();
}

// Of a step without gradient; what precedes the figures stays as it was.
void RankRunner::compute_figures(int64_t count, std::span<float> out) {
  const std::span<float> tail = out.last(static_cast<size_t>(figures_.size()));
  parallel::GradientTree tree(figures_.size());
  tree.sum_into(tail);
  for (int64_t i = 0; i < count; ++i) {
    std::ranges::copy(next_contribution().figures, tree.leaf().begin());
    tree.push();
    advance();
  }
  tree.finish();
}

// Runs parts until that of the next rank is there. A step without gradient has no loss to go back
// from.
RankRunner::Contribution RankRunner::next_contribution() {
  if (stages_ && !contributions_.contains(next_rank_)) {
    run_stages(next_rank_ / spec::pipeline_ranks(job_));
  }
  while (!contributions_.contains(next_rank_)) {
    run_part(next_part_, [&](int64_t rank, const at::Tensor& loss, std::vector<float> figures) {
      std::vector<at::Tensor> gradients(state_.flat.parameters().size());
      if (loss.defined()) gradients = state_.flat.gradients(loss);
      contributions_[rank] = {std::move(gradients), nullptr, std::move(figures)};
    });
    ++next_part_;
  }
  return contributions_.extract(next_rank_).mapped();
}

uint64_t RankRunner::step_seed() const {
  return mix(static_cast<uint64_t>(job_.seed), static_cast<uint64_t>(state_.counters.step));
}

const parallel::Trace& RankRunner::trace_of(int64_t step) const {
  static const parallel::Trace kNone;
  return traced_step_ == step ? trace_ : kNone;
}

// The hosted ranks of one pipeline together, which take turns.
void RankRunner::run_stages(int64_t pipeline) {
  prepare_thread();
  const std::span<float> buffers = state_.flat.buffer_values();
  const StatisticsStay stay(buffers, buffers_before_);
  const comm::LeafRange own = stages_->parts();
  const int64_t count = job_.train.pipelined.micro_batches, first = pipeline * count;
  std::vector<const data::Batch*> micro_batches(static_cast<size_t>(count));
  for (int64_t m = std::max(first, own.begin); m < std::min(first + count, own.end); ++m) {
    micro_batches[static_cast<size_t>(m - first)] = &batch_of(m);
  }
  if (traced_step_ != state_.counters.step) trace_.clear();
  traced_step_ = state_.counters.step;
  parallel::Trace* const trace = is_traced(job_, traced_step_) ? &trace_ : nullptr;
  for (auto& [rank, part] :
       stages_->run(pipeline, micro_batches, figures_, step_seed(), state_.scaler.scale(), trace)) {
    contributions_[rank] = {std::move(part.gradients),
                            std::make_shared<const std::vector<float>>(std::move(part.buffers)),
                            std::move(part.figures)};
  }
  batches_.erase(batches_.begin(), batches_.lower_bound(first + count));
}

void RankRunner::advance() {
  if (++next_rank_ < hosted_.end) return;
  next_rank_ = hosted_.begin;
  next_part_ = 0;
}

nn::Model& RankRunner::model_for_looks() {
  if (!look_model_) return *ingredients_.model;
  if (!looked_) look_model_->take_over(state_.flat);
  looked_ = true;
  return look_model_->model();
}

const data::Batch& RankRunner::batch_of(int64_t rank) {
  if (fetches()) {
    std::shared_ptr<const data::Batch>& batch = batches_[rank];
    if (!batch) {
      const auto size = static_cast<int64_t>(samples_->indices.size());
      const int64_t first = std::min(rank * samples_->per_rank, size);
      const int64_t count = std::min(samples_->per_rank, size - first);
      batch = loader_->fetch(std::span(samples_->indices)
                                 .subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                             samples_->epoch);
    }
    return *batch;
  }
  while (!batches_.contains(rank)) {
    auto batch = loader_->next();
    const int64_t part = batch->part;
    batches_.emplace(part, std::move(batch));
  }
  return *batches_.at(rank);
}

// The hosted members of one batch norm group, all computed from the state before the step, which
// stays as it was.
void RankRunner::run_part(size_t part, const Backward& backward) {
  const comm::LeafRange& ranks = parts_[part];
  std::span<float> other;
  if (kind_.displaced) {
    other_weights_.need(state_.flat.layout().total_size());
    other = other_weights_.span();
    ingredients_.method->weights(state_, kind_, ranks.begin, other);
  }
  const WeightsSwap swap(state_.flat, other, {});
  const std::span<float> buffers = state_.flat.buffer_values();
  const StatisticsStay stay(buffers, buffers_before_);
  // Members of a group run in threads of their own, one at a time; the loader has one consumer.
  if (ranks.size() > 1 && kind_.update) {
    for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) batch_of(rank);
  }
  groups_->run(part, [&](int64_t rank) { run_rank(rank, backward); });
  const auto after = std::make_shared<const std::vector<float>>(buffers.begin(), buffers.end());
  for (auto& [rank, contribution] : contributions_) {
    if (rank >= ranks.begin && rank < ranks.end) contribution.buffers = after;
  }
}

void RankRunner::run_rank(int64_t rank, const Backward& backward) {
  prepare_thread();  // it may be new
  Context context(*this, rank);
  nn::seed_step(context.seed());
  const at::AutoGradMode differentiates(kind_.gradient);
  at::Tensor loss = ingredients_.method->contribute(context);
  if (!kind_.gradient) loss = at::Tensor();
  const double scale = state_.scaler.scale();
  if (loss.defined() && scale != 1) loss = loss.mul(scale);
  backward(rank, loss, context.take_figures());
  if (kind_.update || fetches()) batches_.erase(rank);
}

}  // namespace ductile::train
