// A forward and backward pass of each built-in model: CPU seconds (the lowest and the median of
// ROUNDS), a digest of losses and gradients, by which two builds can be compared, and what the
// interpreter takes of it beside its operators, which is what a model costs more than one whose
// forward calls the same functions itself: `models_bench [rounds [model]]`. One thread.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "ductile/nn/model.h"
#include "ductile/nn/operators.h"
#include "zoo.h"

namespace {

using namespace ductile;

uint64_t fnv(uint64_t h, const at::Tensor& t) {
  const at::Tensor c = t.contiguous();
  const auto* bytes = static_cast<const unsigned char*>(c.data_ptr());
  for (size_t i = 0; i < c.nbytes(); ++i) h = (h ^ bytes[i]) * 0x100000001B3u;
  return h;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Seconds of a forward pass that are spent in no operator; the least of `rounds`.
double interpreter_seconds(nn::Model& model, const nn::Tensors& x, int rounds) {
  double inside = 0;
  nn::OperatorGraph timed;
  const nn::OperatorGraph declared = nn::operators_of(model);
  for (nn::Operator op : declared.operators()) {
    op.run = [run = std::move(op.run), &inside](std::span<const at::Tensor> in) {
      const auto begin = std::chrono::steady_clock::now();
      nn::Tensors out = run(in);
      inside += seconds_since(begin);
      return out;
    };
    timed.add(std::move(op));
  }
  timed.set_results(declared.results());
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < rounds; ++i) {
    inside = 0;
    const auto begin = std::chrono::steady_clock::now();
    timed.run(x);
    least = std::min(least, seconds_since(begin) - inside);
  }
  return least;
}

void bench(std::string_view name, int rounds) {
  spec::ModelOptions options;
  options.name = name;
  options.hidden = {256, 256};
  options.layers = 2;
  options.heads = 4;
  options.dim = 128;
  const auto [model, x, labels] = make_zoo_case(options, is_large(name) ? 4 : 16);
  std::vector<double> seconds;
  uint64_t digest = 0xCBF29CE484222325u;
  for (int i = 0; i < rounds + 2; ++i) {
    const double begin = cpu_seconds();
    const nn::LossOutput loss = model->loss(nn::forward(*model, x), labels, 0.1);
    loss.losses.mean().backward();
    if (i >= 2) seconds.push_back(cpu_seconds() - begin);
    if (i < 2) digest = fnv(digest, loss.losses.detach());
    for (const nn::NamedTensor& p : model->parameters()) {
      at::Tensor handle = p.tensor;
      if (i < 2 && handle.grad().defined()) digest = fnv(digest, handle.grad());
      handle.mutable_grad() = at::Tensor();
    }
  }
  for (const nn::NamedTensor& b : model->buffers()) digest = fnv(digest, b.tensor);
  std::ranges::sort(seconds);
  const double beside = interpreter_seconds(*model, x, rounds);
  fmt::print("{:16} {:9.3f} ms {:9.3f} ms  {:016x}  interpreter {:6.1f} us, {:.3f} %\n", name,
             1e3 * seconds.front(), 1e3 * seconds[seconds.size() / 2], digest, 1e6 * beside,
             100 * beside / seconds.front());
}

}  // namespace

int main(int argc, char** argv) { return bench_zoo(argc, argv, bench); }
