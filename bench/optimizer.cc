// One side of bench/optimizer.py: our optimiser steps, and the memory-bound loops they are held to.
//
//   optimizer_bench THREADS SIZE,SIZE,...
//
// Reads lines "RULE ours|bound STEPS" and answers each with "WALL_SECONDS CPU_SECONDS" of the whole
// burst. RULE is sgd, nesterov, adam, adamw, lars or lamb, with "+bf16" for half weights and "+ema"
// for averaged weights written in the same step.
#include "ductile/optim/optimizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <omp.h>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/base/rng.h"

namespace ductile {
namespace {

struct Rule {
  std::string name;
  bool bf16 = false, ema = false;
};

Rule parse(std::string text) {
  Rule rule;
  for (size_t plus; (plus = text.rfind('+')) != std::string::npos; text.resize(plus)) {
    (text.substr(plus) == "+bf16" ? rule.bf16 : rule.ema) = true;
  }
  rule.name = text;
  return rule;
}

class Bench {
 public:
  explicit Bench(const std::vector<int64_t>& sizes)
      : layout_(make_layout(sizes)),
        n_(layout_.total_size()),
        w_(n_),
        g_(n_),
        m_(n_),
        v_(n_),
        average_(n_),
        half_((n_ + 1) / 2) {
    Rng rng(1);
    for (int64_t i = 0; i < n_; ++i) w_.data()[i] = 0.1F * (rng.uniform() - 0.5F);
    for (int64_t i = 0; i < n_; ++i) g_.data()[i] = 0.01F * (rng.uniform() - 0.5F);
    std::ranges::copy(g_.span(), m_.data());
    std::ranges::copy(g_.span(), v_.data());
    std::ranges::copy(w_.span(), average_.data());
  }

  void ours(const Rule& rule, int steps) {
    optim::Optimizer& optimizer = get(rule.name);
    optim::StepInput in{.weights = w_.span(),
                        .gradient = g_.span(),
                        .hyper = optim::Hyper::of(spec::OptimizerOptions{.lr = 1e-4})};
    if (rule.bf16) in.half_weights = half();
    if (rule.ema) {
      in.ema = average_.span();
      in.ema_decay = 0.999F;
    }
    for (int i = 0; i < steps; ++i) optimizer.step(in);
  }

  // The same streams read and written, in as many passes, with next to no arithmetic.
  void bound(const Rule& rule, int steps) {
    for (int i = 0; i < steps; ++i) {
      if (rule.name == "sgd" || rule.name == "nesterov") {
        triad_2();
      } else if (rule.name == "lars") {
        read_2();
        triad_2();
      } else if (rule.name == "lamb") {
        triad_2_read_1();
        update_1_read_2();
      } else {
        triad_3();
      }
      if (rule.ema) extra_update();
      if (rule.bf16) extra_half();
    }
  }

 private:
  static optim::ParamLayout make_layout(const std::vector<int64_t>& sizes) {
    optim::ParamLayout layout;
    for (size_t i = 0; i < sizes.size(); ++i) {
      layout.add(std::to_string(i), {sizes[i]}, sizes[i] <= 2048);
    }
    return layout;
  }

  optim::Optimizer& get(const std::string& name) {
    std::unique_ptr<optim::Optimizer>& slot = optimizers_[name];
    if (!slot) {
      optimizers_.clear();  // so that only one rule's state is in memory
      spec::OptimizerOptions options{.name = name == "nesterov" ? "sgd" : name};
      options.sgd.nesterov = name == "nesterov";
      auto made = optim::make_optimizer(options, layout_);
      return *(optimizers_[name] = std::move(made));
    }
    return *slot;
  }

  std::span<uint16_t> half() {
    return {reinterpret_cast<uint16_t*>(half_.data()), static_cast<size_t>(n_)};
  }

  void triad_2() {
    float *w = w_.data(), *m = m_.data();
    const float* g = g_.data();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n_; ++i) {
      m[i] += 0.5F * g[i];
      w[i] += 1e-9F * m[i];
    }
  }
  void triad_3() {
    float *w = w_.data(), *m = m_.data(), *v = v_.data();
    const float* g = g_.data();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n_; ++i) {
      m[i] += 0.5F * g[i];
      v[i] += 0.25F * g[i];
      w[i] += 1e-9F * (m[i] + v[i]);
    }
  }
  void read_2() {
    float total = 0;
    const float *w = w_.data(), *g = g_.data();
#pragma omp parallel for simd schedule(static) reduction(+ : total)
    for (int64_t i = 0; i < n_; ++i) total += w[i] * g[i];
    sink_ = total;
  }
  void triad_2_read_1() {
    float total = 0;
    float *m = m_.data(), *v = v_.data();
    const float *w = w_.data(), *g = g_.data();
#pragma omp parallel for simd schedule(static) reduction(+ : total)
    for (int64_t i = 0; i < n_; ++i) {
      m[i] += 0.5F * g[i];
      v[i] += 0.25F * g[i];
      total += w[i];
    }
    sink_ = total;
  }
  void update_1_read_2() {
    float* w = w_.data();
    const float *m = m_.data(), *v = v_.data();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n_; ++i) w[i] += 1e-9F * (m[i] + v[i]);
  }
  // What +ema and +bf16 add to a fused step: no second read of the weights.
  void extra_update() {
    float* a = average_.data();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n_; ++i) a[i] *= 0.999F;
  }
  void extra_half() {
    uint16_t* h = half().data();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n_; ++i) h[i] = static_cast<uint16_t>(i);
  }

  optim::ParamLayout layout_;
  int64_t n_;
  AlignedArray<float> w_, g_, m_, v_, average_, half_;
  std::map<std::string, std::unique_ptr<optim::Optimizer>> optimizers_;
  volatile float sink_ = 0;
};

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

int serve(int threads, const std::string& size_list) {
  omp_set_num_threads(threads);
  std::vector<int64_t> sizes;
  std::istringstream list(size_list);
  for (std::string item; std::getline(list, item, ',');) sizes.push_back(std::stoll(item));
  Bench bench(sizes);
  std::string rule, side;
  for (int steps; std::cin >> rule >> side >> steps;) {
    const auto begin = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    if (side == "ours") {
      bench.ours(parse(rule), steps);
    } else {
      bench.bound(parse(rule), steps);
    }
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f %.6f\n", wall.count(), cpu_seconds() - cpu);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace ductile

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: optimizer_bench THREADS SIZE,SIZE,...\n");
    return 2;
  }
  try {
    return ductile::serve(std::atoi(argv[1]), argv[2]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "optimizer_bench: %s\n", e.what());
    return 1;
  }
}
