// What the pipeline's executor costs beside autograd over the whole model, alternately in one run:
// CPU seconds (median of ROUNDS) of 4 micro-batches forward and backward by plain autograd, by one
// stage of all operators, the same with the backward pass split into inputs and weights, and the
// parts of the latter: `stages_bench [rounds [model]]`. One thread.
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "ductile/nn/compat.h"
#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"
#include "ductile/parallel/stage_executor.h"
#include "zoo.h"

namespace {

using namespace ductile;
using parallel::StageExecutor;

constexpr int kMicroBatches = 4;

double median(std::vector<double> v) {
  std::ranges::sort(v);
  return v[v.size() / 2];
}

struct Times {
  std::vector<double> all, forward, backward, weights;
};

void run_plain(nn::Model& model, const nn::Tensors& in, Times& times) {
  nn::Tensors leaves, sums;
  for (const nn::NamedTensor& p : model.parameters()) {
    if (p.tensor.requires_grad()) leaves.push_back(p.tensor);
  }
  double forward = 0, backward = 0;
  for (int m = 0; m < kMicroBatches; ++m) {
    double begin = cpu_seconds();
    const at::Tensor logits = nn::forward(model, std::span(in).first(in.size() - 1));
    const nn::LossOutput loss = model.loss(logits, in.back(), 0);
    const at::Tensor mean = loss.losses.mean();
    forward += cpu_seconds() - begin;
    begin = cpu_seconds();
    const nn::Tensors found =
        torch::autograd::grad({mean}, leaves, {}, nn::kNone, false, /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); ++i) {
      if (m == 0)
        sums.push_back(found[i].clone());
      else
        sums[i].add_(found[i]);
    }
    backward += cpu_seconds() - begin;
  }
  times.forward.push_back(forward);
  times.backward.push_back(backward);
  times.all.push_back(forward + backward);
}

void run_stage(StageExecutor& executor, const nn::Tensors& in, bool split, Times& times) {
  executor.clear();
  double forward = 0, backward = 0, weights = 0;
  for (int m = 0; m < kMicroBatches; ++m) {
    double begin = cpu_seconds();
    const nn::Tensors out = executor.forward(m, in);
    forward += cpu_seconds() - begin;
    begin = cpu_seconds();
    std::vector<std::vector<StageExecutor::Gradient>> gradients(out.size());
    gradients[0] = {{at::ones_like(out[0]).div(static_cast<double>(out[0].numel())), 1 << 20}};
    executor.backward(m, std::move(gradients));
    backward += cpu_seconds() - begin;
    begin = cpu_seconds();
    if (split) executor.backward_weights(m);
    weights += cpu_seconds() - begin;
  }
  times.forward.push_back(forward);
  times.backward.push_back(backward);
  times.weights.push_back(weights);
  times.all.push_back(forward + backward + weights);
}

void bench(std::string_view name, int rounds) {
  spec::ModelOptions options;
  options.name = name;
  options.hidden = {1024, 1024, 1024};
  options.layers = 4;
  options.heads = 4;
  options.dim = 256;
  const auto [model, inputs, labels] = make_zoo_case(options, name == "gpt" ? 8 : 32);
  nn::Tensors in = inputs;
  in.push_back(labels);
  const nn::OperatorGraph operators = nn::training_operators(*model, 0);
  std::vector<int> ops;
  for (size_t i = 0; i < operators.operators().size(); ++i) ops.push_back(static_cast<int>(i));
  StageExecutor joined(operators, ops, {}), split(operators, ops, {.split = true, .recompute = {}});
  Times warm, plain, whole, parts;
  for (int i = -1; i < rounds; ++i) {
    run_plain(*model, in, i < 0 ? warm : plain);
    run_stage(joined, in, false, i < 0 ? warm : whole);
    run_stage(split, in, true, i < 0 ? warm : parts);
  }
  const double b = median(parts.backward), w = median(parts.weights);
  fmt::print(
      "{:16} plain {:8.1f} ms, executor {:.3f}x, split {:.3f}x; B + W {:.3f}x of one "
      "backward, B {:.2f} of them\n",
      name, 1e3 * median(plain.all), median(whole.all) / median(plain.all),
      median(parts.all) / median(plain.all), (b + w) / median(plain.backward), b / (b + w));
}

}  // namespace

int main(int argc, char** argv) { return bench_zoo(argc, argv, bench); }
