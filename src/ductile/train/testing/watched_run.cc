#include "ductile/train/testing/watched_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include "ductile/base/error.h"
#include "ductile/train/wrapped_method.h"

namespace ductile::train::testing {
namespace {

class Watched final : public WrappedMethod {
 public:
  Watched(const spec::JobOptions& job, std::shared_ptr<Story> story)
      : WrappedMethod(make_step_method(job)), story_(std::move(story)) {}

  void commit(JobState& state, const StepKind& kind, const Outcome& outcome) const override {
    story_->steps.push_back({kind.update, outcome.samples->indices, state.last_hyper.lr});
    WrappedMethod::commit(state, kind, outcome);
  }

 private:
  std::shared_ptr<Story> story_;
};

std::vector<Indices> samples_of(const Story& story, bool update) {
  std::vector<Indices> out;
  for (const Story::Step& step : story.steps) {
    if (step.update == update) out.push_back(step.samples);
  }
  return out;
}

Ingredients plain_parts(spec::JobOptions job) {
  job.train.method = "plain";
  return recipe_of(job)();
}

std::vector<float> values_of(const at::Tensor& t) {
  return {t.data_ptr<float>(), t.data_ptr<float>() + t.numel()};
}

}  // namespace

spec::JobOptions selection_job(const std::string& method) {
  spec::JobOptions job;
  job.data.train_limit = 100;  // no multiple of the batch
  job.data.test_limit = 16;
  job.model.name = "mlp";
  job.model.hidden = {16};
  job.augment.pad = 1;
  job.loader.threads = 1;
  job.optimizer.lr = 0.05;
  job.schedule.name = "linear";
  job.train.method = method;
  job.train.epochs = 7;
  job.train.batch_size = 12;
  job.train.threads = 1;
  job.train.log_every = 1'000'000;
  return job;
}

std::vector<Indices> Story::trained() const { return samples_of(*this, true); }
std::vector<Indices> Story::looked_at() const { return samples_of(*this, false); }

WatchedRun::WatchedRun(const spec::JobOptions& job,
                       const std::function<void(Ingredients&)>& hand_in)
    : story(std::make_shared<Story>()), replica(job, [this, &job, &hand_in] {
        Ingredients given;
        if (hand_in) hand_in(given);
        given.method = std::make_unique<Watched>(job, story);
        return complete(std::move(given), job);
      }) {
  replica.host_all();
  sum.resize(static_cast<size_t>(replica.vector_size()));
}

void WatchedRun::step() {
  replica.compute(replica.num_ranks(), sum);
  replica.apply(sum);
  if (!replica.evaluation_due()) return;
  replica.record(replica.evaluate([](int64_t) {}));
  ++evaluations;
}

void WatchedRun::finish() {
  while (!replica.done()) step();
}

void run_to_end(Replica& replica) {
  replica.host_all();
  std::vector<float> sum(static_cast<size_t>(replica.vector_size()));
  while (!replica.done()) {
    if (replica.evaluation_due()) {
      replica.record(replica.evaluate([](int64_t) {}));
      continue;
    }
    replica.compute(replica.num_ranks(), sum);
    replica.apply(sum);
  }
}

Bench::Bench(const spec::JobOptions& of)
    : job(of), parts(plain_parts(of)), state(*parts.model, job, parts.make_optimizer) {
  data::LoaderTask task;
  task.seed = static_cast<uint64_t>(job.seed);
  task.batch_size = job.train.batch_size;
  task.channels_last = parts.model->prefers_channels_last();
  loader = std::make_unique<data::Loader>(parts.train_set, parts.augment, job.loader, task);
}

at::Tensor Bench::losses(const Indices& samples, int64_t epoch, bool training) {
  return losses(*loader->fetch(samples, epoch), training);
}

at::Tensor Bench::losses(const data::Batch& batch, bool training) {
  parts.model->train(training);
  const at::Tensor logits = parts.model->forward(input_of(batch).clone());
  at::Tensor out = parts.model->loss(logits, labels_of(batch).clone(), 0).losses;
  parts.model->train(true);
  return out;
}

std::vector<float> Bench::look(const Indices& samples, int64_t epoch) {
  const at::NoGradGuard no_grad;
  return samples.empty() ? std::vector<float>() : values_of(losses(samples, epoch, false));
}

std::vector<float> Bench::gradient(const at::Tensor& loss) {
  std::vector<float> out(state.flat.weights().size());
  state.flat.write_gradients(state.flat.gradients(loss), out);
  return out;
}

std::vector<float> Bench::train(const Indices& samples, int64_t epoch, double lr,
                                const std::vector<float>& weights) {
  at::Tensor each = losses(samples, epoch, true);
  const std::vector<float> out = values_of(each.detach());
  if (!weights.empty()) each = each.mul(at::tensor(weights));
  const std::vector<float> summed = gradient(each.mean());
  optim::StepInput in;
  in.weights = state.flat.weights();
  in.gradient = summed;
  in.hyper = optim::Hyper::of(job);
  in.hyper.lr = lr;
  state.optimizer->step(in);
  return out;
}

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void expect_same_weights(Replica& run, Bench& twin) {
  const auto got = run.state().flat.weights(), want = twin.state.flat.weights();
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i)
    worst = std::max<double>(worst, std::abs(got[i] - want[i]));
  EXPECT_LT(worst, 1e-4);
}

}  // namespace ductile::train::testing
