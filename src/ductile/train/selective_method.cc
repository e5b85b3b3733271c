#include <algorithm>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/spec/methods.h"
#include "ductile/train/selective_impl.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

constexpr const char* kSelectivePart = "selective";  // of the state's extra parts

// The samples that were kept and wait for their batch; all are of one epoch.
struct Queue {
  std::vector<int64_t> indices;
  int64_t epoch = 0;
};

const Json* values_of(const JobState& state) {
  const auto part = state.extras().find(kSelectivePart);
  return part == state.extras().end() || !part->second.values.contains("queue")
             ? nullptr
             : &part->second.values;
}

// (its length, its epoch), without a copy of it
std::pair<int64_t, int64_t> waiting(const JobState& state) {
  const Json* values = values_of(state);
  if (values == nullptr) return {0, 0};
  return {static_cast<int64_t>(values->at("queue").size()), values->at("epoch").get<int64_t>()};
}

Queue queue_of(const JobState& state) {
  const Json* values = values_of(state);
  if (values == nullptr) return {};
  return {values->at("queue").get<std::vector<int64_t>>(), values->at("epoch")};
}

void keep(JobState& state, const Queue& queue) {
  Json& values = state.extra(kSelectivePart).values;
  values["queue"] = queue.indices;
  values["epoch"] = queue.epoch;
}

}  // namespace

SelectiveMethod::SelectiveMethod(const spec::JobOptions& job)
    : options_(job.train.selective),
      name_(job.train.method),
      seed_(static_cast<uint64_t>(job.seed)),
      batch_size_(job.train.batch_size),
      num_ranks_(job.train.virtual_ranks),
      epochs_(job.train.epochs),
      max_steps_(job.train.max_steps),
      by_updates_(spec::counts_updates(job)) {}

void SelectiveMethod::prepare(const spec::JobOptions& job, Ingredients& ingredients) {
  order_ = StreamOrder::of(job, ingredients);
  require_sample_losses(job, ingredients);
  if (options_.half_resolution) look_cost_ = half_resolution_cost(job, ingredients);
}

// Of a run that looks at nothing and trains on everything.
int64_t SelectiveMethod::planned(const JobState& state) const {
  return epochs_ * (num_samples() / state.hyper.batch_size);
}

bool SelectiveMethod::trains_whole(const JobState& state, const data::StepSamples& step) const {
  if (step.epoch < options_.first_epochs) return true;
  if (options_.interrupt > 0 && (state.counters.updates + 1) % options_.interrupt == 0) return true;
  const auto done = static_cast<double>(by_updates_ ? state.counters.updates
                                                    : step.epoch * num_samples() + step.first);
  const auto all = static_cast<double>(by_updates_ ? planned(state) : epochs_ * num_samples());
  // A run that train.max_steps cuts short has its shares in its updates.
  const auto updates = static_cast<double>(state.counters.updates);
  const auto is_over = [&](double share) {
    return done >= share * all ||
           (max_steps_ > 0 && updates >= share * static_cast<double>(max_steps_));
  };
  return !is_over(options_.start) || is_over(options_.end);
}

SelectiveMethod::Turn SelectiveMethod::turn(const JobState& state) const {
  const auto [length, epoch] = waiting(state);
  if (length >= state.hyper.batch_size) return Turn::queue;
  const data::StepSamples step = order_.step(state.counters.cursor, state.hyper.batch_size);
  if (length > 0 && step.epoch > epoch) return Turn::queue;
  return trains_whole(state, step) ? Turn::whole : Turn::look;
}

StepKind SelectiveMethod::next(const JobState& state) const {
  if (const Json* values = values_of(state);
      values != nullptr && by_updates_ && values->at("passed") >= num_samples()) {
    fail(ErrorCode::conflict,
         "none of the last {} samples was kept for training, and the run is to last until it has "
         "trained on {} batches: their losses do not differ, or train.selective.beta = {} is too "
         "large; train.selective.length = \"epochs\" ends such a run",
         num_samples(), planned(state), options_.beta);
  }
  if (turn(state) != Turn::look) return {};
  return {.gradient = false, .update = false, .forward_cost = look_cost_};
}

std::optional<Samples> SelectiveMethod::samples(const JobState& state, const StepKind&) const {
  const int64_t batch_size = state.hyper.batch_size;
  if (batch_size > batch_size_) {
    fail(ErrorCode::invalid_argument,
         "a batch of {} samples; with train.method = \"{}\" train.batch_size = {} is the most",
         batch_size, name_, batch_size_);
  }
  const Turn turn = this->turn(state);
  Samples out;
  out.per_rank = per_rank(state);
  if (turn == Turn::queue) {
    Queue queue = queue_of(state);
    if (static_cast<int64_t>(queue.indices.size()) > batch_size)
      queue.indices.resize(static_cast<size_t>(batch_size));
    out.indices = std::move(queue.indices);
    out.epoch = queue.epoch;
    out.next_cursor = state.counters.cursor;
    return out;
  }
  const data::StepSamples step = order_.step(state.counters.cursor, batch_size);
  out.indices = order_.indices(step.epoch, step.first, batch_size);
  out.epoch = step.epoch;
  out.next_cursor = step.next;
  if (turn == Turn::look) {
    out.indices = to_look_at(state, std::move(out.indices));
    const auto size = static_cast<int64_t>(out.indices.size());
    out.per_rank = (size + num_ranks_ - 1) / num_ranks_;
  }
  out.of_stream = static_cast<int64_t>(out.indices.size()) == batch_size;
  return out;
}

Progress SelectiveMethod::progress(const JobState& state, const Progress& by_stream) const {
  const int64_t total = planned(state);
  if (by_updates_) {
    const int64_t updates = state.counters.updates;
    return {static_cast<double>(updates), std::max<int64_t>(0, total - updates)};
  }
  Progress out{by_stream.position, by_stream.left};
  if (const auto [length, epoch] = waiting(state); length > 0) {
    // An epoch is over when its last sample is trained.
    const int64_t most = (epoch + 1) * (total / epochs_) - 1;
    out.position = std::min(out.position, static_cast<double>(most));
    out.left = std::max(out.left, total - most);
  }
  return out;
}

at::Tensor SelectiveMethod::contribute(RankContext& rank) {
  if (rank.kind().gradient) return train_on(rank, per_rank(rank.state()));
  const data::Batch& batch = rank.batch();
  if (batch.num_samples > 0) share_losses(rank, rank.look(batch, options_.half_resolution).losses);
  return {};
}

Verdict SelectiveMethod::judge(const JobState& state, const StepKind& kind,
                               const std::map<std::string, double>& sums, int64_t) const {
  if (!kind.update) return {.update = false};
  // The mean over the samples: a batch that is not full has fewer than the ranks have room for.
  const auto parts = static_cast<float>(sums.at(std::string(kSamplesBackward)) /
                                        static_cast<double>(per_rank(state)));
  return {true, parts, static_cast<float>(sums.at(std::string(kLoss))) / parts};
}

void SelectiveMethod::commit(JobState& state, const StepKind& kind, const Outcome& outcome) const {
  const Samples& samples = *outcome.samples;
  const std::span<const float> losses = outcome.shared.first(samples.indices.size());
  if (!kind.gradient) {
    const int64_t size = state.hyper.batch_size;
    const auto indices =
        order_.indices(samples.epoch, order_.step(outcome.cursor, size).first, size);
    select(state, samples.epoch, indices, losses_of(state, indices, samples.indices, losses));
    return;
  }
  trained(state, samples.indices, losses, samples.of_stream);
  if (samples.of_stream) {
    LossHistory(state, kSelectivePart, options_.history).add(losses);
    return;
  }
  Queue queue = queue_of(state);
  queue.indices.erase(queue.indices.begin(),
                      queue.indices.begin() + static_cast<ptrdiff_t>(samples.indices.size()));
  keep(state, queue);
}

void SelectiveMethod::select(JobState& state, int64_t epoch, std::span<const int64_t> indices,
                             std::span<const float> losses) const {
  LossHistory history(state, kSelectivePart, options_.history);
  history.add(losses);
  const std::vector<float> sorted = history.sorted();
  Queue queue = queue_of(state);
  queue.epoch = epoch;
  const size_t before = queue.indices.size();
  for (size_t i = 0; i < indices.size(); ++i) {
    const double probability = keep_probability(sorted, losses[i], options_.beta);
    if (draw_of(seed_, epoch, indices[i]) < probability) queue.indices.push_back(indices[i]);
  }
  const size_t kept = queue.indices.size() - before;
  keep(state, queue);
  Json& passed = state.extra(kSelectivePart).values["passed"];  // since the last one that was kept
  passed = kept > 0 ? 0
                    : (passed.is_null() ? 0 : passed.get<int64_t>()) +
                          static_cast<int64_t>(indices.size());
  state.window.sums["examined"] += static_cast<double>(indices.size());
  state.window.sums["selected"] += static_cast<double>(kept);
}

std::unique_ptr<StepMethod> make_selective_method(const spec::JobOptions& job) {
  return std::make_unique<SelectiveMethod>(job);
}

}  // namespace ductile::train
