// A forward and backward pass of each built-in model: CPU seconds (the lowest and the median of
// ROUNDS) and a digest of losses and gradients, by which two builds can be compared:
// `models_bench [rounds [model]]`. One thread.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "ductile/nn/memory.h"
#include "ductile/nn/model.h"

namespace {

using namespace ductile;

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

uint64_t fnv(uint64_t h, const at::Tensor& t) {
  const at::Tensor c = t.contiguous();
  const auto* bytes = static_cast<const unsigned char*>(c.data_ptr());
  for (size_t i = 0; i < c.nbytes(); ++i) h = (h ^ bytes[i]) * 0x100000001B3u;
  return h;
}

void bench(std::string_view name, int rounds) {
  nn::ModelArgs args;
  args.options.name = name;
  args.options.hidden = {256, 256};
  args.options.layers = 2;
  args.options.heads = 4;
  args.options.dim = 128;
  const bool gpt = name == "gpt", large = name == "resnet18" || name == "resnet50";
  const int64_t side = large ? 64 : 32, batch = large ? 4 : 16;
  args.info = gpt ? nn::ModelInfo{0, 0, 0, 256, 64} : nn::ModelInfo{3, side, side, 10, 0};
  const auto model = nn::make_model(args);
  at::manual_seed(1);
  const at::Tensor x =
      gpt ? at::randint(256, {batch, 64}, at::kLong) : at::randn({batch, 3, side, side});
  const at::Tensor labels = gpt              ? at::randint(256, {batch, 64}, at::kLong)
                            : name == "unet" ? at::randint(10, {batch, side, side}, at::kLong)
                                             : at::randint(10, {batch}, at::kLong);
  std::vector<double> seconds;
  uint64_t digest = 0xCBF29CE484222325u;
  for (int i = 0; i < rounds + 2; ++i) {
    const double begin = cpu_seconds();
    const nn::LossOutput loss = model->loss(model->forward(x), labels, 0.1);
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
  fmt::print("{:16} {:9.3f} ms {:9.3f} ms  {:016x}\n", name, 1e3 * seconds.front(),
             1e3 * seconds[seconds.size() / 2], digest);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const std::string only = argc > 2 ? argv[2] : "";
  at::set_num_threads(1);
  nn::keep_freed_memory();
  for (const nn::ModelEntry& entry : nn::model_table()) {
    if (only.empty() || only == entry.name) bench(entry.name, rounds);
  }
  return 0;
}
