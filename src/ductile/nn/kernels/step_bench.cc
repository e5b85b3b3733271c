// Forward and backward passes of whole networks and of single layers, our operators and ATen's
// alternately in one run: `ductile_nn_bench [threads [rounds [batch]]]`. Times are the median of
// the process's CPU seconds, so that other programs on the machine disturb them little.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "ductile/nn/memory.h"
#include "ductile/nn/ops.h"

namespace {

using at::Tensor;
namespace ops = ductile::nn::ops;

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Layer {
  Tensor w;
  ops::BatchNorm bn;
};

Layer layer(int64_t in, int64_t out, int64_t kernel) {
  Layer l;
  l.w = (at::randn({out, in, kernel, kernel}) * std::sqrt(2.0 / (in * kernel * kernel)))
            .requires_grad_();
  l.bn = {at::ones({out}).requires_grad_(),
          at::zeros({out}).requires_grad_(),
          at::zeros({out}),
          at::ones({out}),
          0.1,
          1e-5};
  return l;
}

// One set of operators: ours, or what python3-torch would call.
struct Face {
  const char* name;
  bool ours;
  at::ScalarType type;

  Tensor conv_bn(const Tensor& x, const Layer& l, int64_t stride, const Tensor& residual,
                 bool relu) const {
    const int64_t padding = l.w.size(2) / 2;
    if (ours)
      return ops::conv_bn_act(x, l.w.to(type), stride, padding, l.bn, residual,
                              relu ? ops::Activation::relu : ops::Activation::none, true);
    Tensor y = at::conv2d(x, l.w.to(type), {}, {stride, stride}, {padding, padding});
    y = at::batch_norm(y, l.bn.weight, l.bn.bias, l.bn.running_mean, l.bn.running_var, true, 0.1,
                       1e-5, true);
    if (residual.defined()) y = y + residual;
    return relu ? at::relu_(y) : y;
  }
  Tensor pool(const Tensor& x) const {
    return ours ? ops::max_pool2d(x, 2, 2, 0) : at::max_pool2d(x, {2, 2}, {2, 2});
  }
  Tensor average(const Tensor& x) const {
    return ours ? ops::global_avg_pool(x) : at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
  }
  Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) const {
    return ours ? ops::linear(x, w, b) : at::linear(x, w.to(type), b.to(type));
  }
  Tensor loss(const Tensor& logits, const Tensor& labels) const {
    return ours ? ops::cross_entropy(logits, labels, 0).mean()
                : at::cross_entropy_loss(logits.to(at::kFloat), labels);
  }
};

struct ResNet20 {
  Layer stem = layer(3, 16, 3);
  std::vector<Layer> first, second;
  Tensor w = (at::randn({10, 64}) * 0.1).requires_grad_(), b = at::zeros({10}).requires_grad_();

  ResNet20() {
    int64_t in = 16;
    for (int64_t out : {16, 32, 64})
      for (int block = 0; block < 3; ++block) {
        first.push_back(layer(in, out, 3));
        second.push_back(layer(out, out, 3));
        in = out;
      }
  }

  Tensor forward(const Face& face, const Tensor& images, const Tensor& labels) const {
    Tensor x = face.conv_bn(images, stem, 1, {}, true);
    for (size_t i = 0; i < first.size(); ++i) {
      const int64_t in = x.size(1), out = first[i].w.size(0), stride = in == out ? 1 : 2;
      Tensor shortcut = x;
      if (stride == 2) {
        shortcut = at::constant_pad_nd(x.slice(2, 0, INT64_MAX, 2).slice(3, 0, INT64_MAX, 2),
                                       {0, 0, 0, 0, in / 2, in / 2})
                       .contiguous(at::MemoryFormat::ChannelsLast);
      }
      const Tensor y = face.conv_bn(x, first[i], stride, {}, true);
      x = face.conv_bn(y, second[i], 1, shortcut, true);
    }
    return face.loss(face.linear(face.average(x), w, b), labels);
  }

  std::vector<Tensor> parameters() const {
    std::vector<Tensor> all{w, b};
    const auto add = [&](const Layer& l) { all.insert(all.end(), {l.w, l.bn.weight, l.bn.bias}); };
    add(stem);
    for (const Layer& l : first) add(l);
    for (const Layer& l : second) add(l);
    return all;
  }
};

struct Cnn {
  Layer a = layer(1, 16, 3), b = layer(16, 32, 3);
  Tensor w1 = (at::randn({64, 1568}) * 0.03).requires_grad_(),
         b1 = at::zeros({64}).requires_grad_();
  Tensor w2 = (at::randn({10, 64}) * 0.1).requires_grad_(), b2 = at::zeros({10}).requires_grad_();

  Tensor forward(const Face& face, const Tensor& images, const Tensor& labels) const {
    Tensor x = face.pool(face.conv_bn(images, a, 1, {}, true));
    x = face.pool(face.conv_bn(x, b, 1, {}, true));
    x = at::relu(face.linear(x.flatten(1), w1, b1));
    return face.loss(face.linear(x, w2, b2), labels);
  }

  std::vector<Tensor> parameters() const {
    return {a.w, a.bn.weight, a.bn.bias, b.w, b.bn.weight, b.bn.bias, w1, b1, w2, b2};
  }
};

template <class Net>
void step(const Net& net, const Face& face, const Tensor& images, const Tensor& labels) {
  for (Tensor p : net.parameters()) p.mutable_grad() = Tensor();
  net.forward(face, images, labels).backward();
}

struct Case {
  std::string name;
  std::function<void()> ours, aten;
};

template <class Net>
Case network(const char* name, at::IntArrayRef shape, at::ScalarType ours, at::ScalarType aten) {
  auto net = std::make_shared<Net>();
  const Tensor images = at::randn(shape).contiguous(at::MemoryFormat::ChannelsLast);
  const Tensor labels = at::randint(10, {shape[0]}, at::kLong);
  const Tensor our_images = images.to(ours), aten_images = images.to(aten);
  return {name,
          [=] {
            step(*net, Face{"ours", true, ours}, our_images, labels);
          },
          [=] {
            step(*net, Face{"aten", false, aten}, aten_images, labels);
          }};
}

struct Shape {
  int64_t batch, in, out, size, kernel, stride;
  bool residual;
};

// Values are of `type` between the operators, on both sides.
Case single(const Shape& s, at::ScalarType type) {
  const Layer l = layer(s.in, s.out, s.kernel);
  const int64_t out_size = (s.size - 1) / s.stride + 1;
  const auto random = [&](int64_t channels, int64_t side) {
    return at::randn({s.batch, channels, side, side})
        .to(type)
        .contiguous(at::MemoryFormat::ChannelsLast);
  };
  const Tensor x = random(s.in, s.size).requires_grad_(s.in > 3), dz = random(s.out, out_size);
  const Tensor r = s.residual ? random(s.out, out_size).requires_grad_() : Tensor();
  const auto run = [=](const Face& face) {
    l.w.mutable_grad() = Tensor();
    x.mutable_grad() = Tensor();
    if (r.defined()) r.mutable_grad() = Tensor();
    face.conv_bn(x, l, s.stride, r, true).backward(dz);
  };
  return {fmt::format("{}x{}, batch {}: conv {}x{}/{} {}->{} +BN{}+ReLU{}", s.size, s.size, s.batch,
                      s.kernel, s.kernel, s.stride, s.in, s.out, s.residual ? "+add" : "",
                      type == at::kFloat ? "" : " bf16"),
          [=] {
            run({"ours", true, type});
          },
          [=] {
            run({"aten", false, type});
          }};
}

struct LinearShape {
  int64_t rows, in, out;
};

Case linear(const LinearShape& s) {
  const Tensor x = at::randn({s.rows, s.in}).requires_grad_(), dy = at::randn({s.rows, s.out});
  const Tensor w = (at::randn({s.out, s.in}) / std::sqrt(s.in)).requires_grad_();
  const Tensor b = at::zeros({s.out}).requires_grad_();
  const auto run = [=](const Face& face) {
    for (const Tensor& t : {x, w, b}) t.mutable_grad() = Tensor();
    face.linear(x, w, b).backward(dy);
  };
  return {fmt::format("{} rows: linear {}->{}", s.rows, s.in, s.out),
          [=] {
            run({"ours", true, at::kFloat});
          },
          [=] {
            run({"aten", false, at::kFloat});
          }};
}

// Scores q k' and their product with v, of `heads` heads over all samples.
Case attention(int64_t heads, int64_t tokens, int64_t width) {
  std::vector<Tensor> in;
  for (int i = 0; i < 3; ++i) in.push_back(at::randn({heads, tokens, width}).requires_grad_());
  const Tensor dy = at::randn({heads, tokens, width});
  const auto run = [=](Tensor (*product)(const Tensor&, const Tensor&)) {
    for (const Tensor& t : in) t.mutable_grad() = Tensor();
    product(product(in[0], in[1].transpose(1, 2)), in[2]).backward(dy);
  };
  return {fmt::format("{} heads: products of {} tokens, {} wide", heads, tokens, width),
          [=] { run(&ops::matmul); }, [=] { run(&at::matmul); }};
}

void add_layers(int64_t batch, std::vector<Case>* cases) {
  for (const Shape& shape : {Shape{batch, 3, 16, 32, 3, 1, false},
                             {batch, 16, 16, 32, 3, 1, false},
                             {batch, 16, 16, 32, 3, 1, true},
                             {batch, 16, 32, 32, 3, 2, false},
                             {batch, 32, 32, 16, 3, 1, false},
                             {batch, 32, 64, 16, 3, 2, false},
                             {batch, 64, 64, 8, 3, 1, false},
                             {batch, 64, 64, 8, 3, 1, true},
                             // ResNet-18 and -50 on 224-pixel images.
                             {8, 3, 64, 224, 7, 2, false},
                             {8, 64, 64, 56, 3, 1, false},
                             {8, 128, 128, 28, 3, 1, false},
                             {8, 256, 256, 14, 3, 1, false},
                             {8, 512, 512, 7, 3, 1, false},
                             {8, 64, 128, 56, 3, 2, false},
                             {8, 64, 256, 56, 1, 1, false},
                             {8, 64, 64, 56, 1, 1, false},

                             {8, 1024, 256, 14, 1, 1, false},
                             {8, 512, 2048, 7, 1, 1, false},
                             // airbench.
                             {batch, 24, 64, 31, 3, 1, false},
                             {batch, 64, 64, 15, 3, 1, false},
                             {batch, 64, 256, 15, 3, 1, false},
                             {batch, 256, 256, 7, 3, 1, false},
                             {batch, 256, 256, 3, 3, 1, false}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      cases->push_back(single(shape, type));
  // The heads and layers of the mlp, the cnn, ResNets and the GPT, for whole and divided batches.
  for (const LinearShape& shape : {LinearShape{batch, 784, 256},
                                   {batch / 8, 784, 256},
                                   {batch, 256, 10},
                                   {batch, 1568, 64},
                                   {batch, 64, 10},
                                   {8, 2048, 1000},
                                   {4096, 64, 192},
                                   {4096, 64, 256},
                                   {4096, 256, 64},
                                   {1024, 768, 3072},
                                   {512, 768, 50257}})
    cases->push_back(linear(shape));
  cases->push_back(attention(128, 128, 16));
  cases->push_back(attention(12, 1024, 64));
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const int64_t batch = argc > 3 ? std::atoi(argv[3]) : 128;
  at::set_num_threads(threads);
  // Its own threads spin between its calls, and would count as ours.
  if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))
    reinterpret_cast<void (*)(int)>(symbol)(threads);
  if (std::getenv("DUCTILE_BENCH_FREE") == nullptr) ductile::nn::keep_freed_memory();

  std::vector<Case> cases;
  cases.push_back(network<ResNet20>("resnet20 f32", {batch, 3, 32, 32}, at::kFloat, at::kFloat));
  cases.push_back(network<ResNet20>("resnet20 bf16 (ATen: f32)", {batch, 3, 32, 32}, at::kBFloat16,
                                    at::kFloat));
  cases.push_back(network<Cnn>("cnn f32", {batch, 1, 28, 28}, at::kFloat, at::kFloat));
  cases.push_back(
      network<Cnn>("cnn bf16 (ATen: f32)", {batch, 1, 28, 28}, at::kBFloat16, at::kFloat));
  add_layers(batch, &cases);

  std::printf("threads %d, batch %ld, %d rounds; CPU ms, median\n", threads,
              static_cast<long>(batch), rounds);
  std::printf("%-44s %9s %9s %7s\n", "", "ours", "ATen", "ratio");
  const bool ours_alone = argc > 5;
  const char* only = argc > 4 ? argv[4] : "";
  for (const Case& c : cases) {
    if (c.name.find(only) == std::string::npos) continue;
    std::vector<double> ours, aten;
    for (int i = -1; i < rounds; ++i) {
      const double t0 = cpu_seconds();
      c.ours();
      const double t1 = cpu_seconds();
      if (!ours_alone) c.aten();
      const double t2 = cpu_seconds();
      if (i < 0) continue;
      ours.push_back(1e3 * (t1 - t0));
      aten.push_back(1e3 * (t2 - t1));
    }
    std::printf("%-44s %9.2f %9.2f %6.2fx\n", c.name.c_str(), median(ours), median(aten),
                median(aten) / median(ours));
    std::fflush(stdout);
  }
  return 0;
}
