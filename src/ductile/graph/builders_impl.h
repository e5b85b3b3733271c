#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/graph/builders.h"

namespace ductile::graph::build {

inline constexpr double kFloat = 4;  // bytes

// Puts operators together; an operator's inputs are those given when it is added.
class Maker {
 public:
  Maker(std::string name, const DeviceModel& device) : device_(device) {
    graph_.name = std::move(name);
  }

  struct Spec {
    std::string name, kind;
    std::vector<int64_t> shape;  // of the output, per sample
    Work work;
    int max_split = 1;
    bool recomputable = true;
    int tied = -1;
  };

  OpId add(Spec spec, const std::vector<OpId>& inputs) {
    if (static_cast<int64_t>(graph_.ops.size()) >= kMaxOps) {
      fail(ErrorCode::invalid_argument, "{}: more than {} operators", graph_.name, kMaxOps);
    }
    Op op;
    op.name = std::move(spec.name);
    op.kind = std::move(spec.kind);
    op.shape = std::move(spec.shape);
    op.output_bytes = kFloat;
    for (int64_t d : op.shape) op.output_bytes *= static_cast<double>(d);
    op.cost = analytic_cost(spec.work, device_);
    op.max_split = std::min(spec.max_split, kMaxTensor);
    op.recomputable = spec.recomputable;
    op.tied = spec.tied;
    graph_.ops.push_back(std::move(op));
    const OpId id = static_cast<OpId>(graph_.ops.size()) - 1;
    for (OpId from : inputs) {
      graph_.edges.push_back({from, id, 0, graph_.ops[from].output_bytes, 0, 0});
    }
    return id;
  }

  // Bias-free, its non-linearity included; the input is kept for backward. `rows` vectors a sample.
  OpId linear(std::string name, int64_t in, int64_t out, std::vector<OpId> inputs,
              int64_t rows = 1) {
    const double r = double(rows), i = double(in), o = double(out);
    Work w;
    w.flops = 2 * r * i * o;
    w.bytes = kFloat * r * (i + o);
    w.parameter_bytes = kFloat * i * o;
    w.activation_bytes = kFloat * r * i;
    std::vector<int64_t> shape = rows == 1 ? std::vector{out} : std::vector{rows, out};
    const int split = static_cast<int>(std::min<int64_t>(kMaxTensor, out));
    return add({std::move(name), "linear", std::move(shape), w,
                static_cast<int>(std::bit_floor(static_cast<unsigned>(split)))},
               inputs);
  }

  OpId concat(std::string name, int64_t width, const std::vector<OpId>& inputs) {
    Work w;
    w.bytes = 2 * kFloat * double(width);
    return add({std::move(name), "concat", {width}, w}, inputs);
  }

  Graph finish() {
    check(graph_);
    return std::move(graph_);
  }

 private:
  Graph graph_;
  DeviceModel device_;
};

// One encoder layer in three operators (attention, ff1, ff2), or in one.
OpId transformer_layer(Maker& maker, const std::string& name, int64_t sequence, int64_t hidden,
                       int64_t heads, int64_t ffn, bool as_one, const std::vector<OpId>& inputs);

Graph mmt(std::span<const int64_t> values, const DeviceModel& device);
Graph dlrm(std::span<const int64_t> values, const DeviceModel& device);
Graph candle(std::span<const int64_t> values, const DeviceModel& device);
Graph gpt(std::span<const int64_t> values, const DeviceModel& device);
Graph bert(std::span<const int64_t> values, const DeviceModel& device);
Graph resnet(std::span<const int64_t> values, const DeviceModel& device);
Graph unet(std::span<const int64_t> values, const DeviceModel& device);
Graph chain(std::span<const int64_t> values, const DeviceModel& device);
Graph branches(std::span<const int64_t> values, const DeviceModel& device);
Graph random(std::span<const int64_t> values, const DeviceModel& device);

}  // namespace ductile::graph::build
