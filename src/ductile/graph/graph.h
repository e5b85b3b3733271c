#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ductile/spec/model_identity.h"

namespace ductile::graph {

// A model as a directed acyclic graph of operators, with what each costs in time and memory.
//
// Units, everywhere in this module and in `plan`: seconds, bytes, samples. Times are those of the
// reference device (speed 1). A cost "per sample" is for one element of the mini-batch; a graph
// read from a profile of one micro-batch takes that micro-batch as its sample (Graph::sample says
// so) and has no fixed parts. Bytes are doubles that hold whole numbers.

// A quantity that grows with the number n of samples that a device handles at once: fixed +
// per_sample n. The fixed part (launches, reading weights) makes a larger micro-batch cheaper per
// sample.
struct Affine {
  double fixed = 0;
  double per_sample = 0;

  double at(double n) const { return fixed + per_sample * n; }
  Affine& operator+=(const Affine& other) {
    fixed += other.fixed;
    per_sample += other.per_sample;
    return *this;
  }
  friend Affine operator+(Affine a, const Affine& b) { return a += b; }
  friend Affine operator*(double f, Affine a) { return {f * a.fixed, f * a.per_sample}; }
  bool operator==(const Affine&) const = default;
};

// The most bytes at one time, by the number n of samples: a line where one says it. Where it does
// not, as the most is that of one kernel for few samples and that of another one for many: what it
// was at some n, and between two of them what the line between them says.
struct MostBytes {
  Affine line;
  std::vector<std::pair<double, double>> points;  // samples, rising, and bytes; empty: `line`

  MostBytes() = default;
  MostBytes(const Affine& a) : line(a) {}
  MostBytes(double fixed, double per_sample) : line{fixed, per_sample} {}
  double at(double n) const;
  friend MostBytes operator*(double f, MostBytes m) {
    m.line = f * m.line;
    for (auto& [samples, bytes] : m.points) bytes *= f;
    return m;
  }
  bool operator==(const MostBytes&) const = default;
};
MostBytes larger(const MostBytes& a, const MostBytes& b);

// What an operator takes while it runs, pass by pass: the most bytes at one time beyond those that
// there were when it began, sums of weights' gradients left out; of the forward pass beyond what it
// keeps as well.
struct PassBytes {
  MostBytes forward;
  MostBytes backward;         // to inputs and weights in one
  MostBytes backward_input;   // where the weights have a task of their own
  MostBytes backward_weight;  // that task

  bool operator==(const PassBytes&) const = default;
};

// The cost of one operator on ONE device, at one tensor-parallel degree, with its activations kept
// or recomputed.
struct OpCost {
  Affine forward;          // seconds
  Affine backward_input;   // seconds; with recompute the repeated forward is in here
  Affine backward_weight;  // seconds; may be delayed (zero-bubble); 0 where there are no weights
  double parameter_bytes = 0;   // weights of this device; their gradient is as large
  double activation_bytes = 0;  // held per sample from the start of forward to the end of backward
  double activation_fixed = 0;  // the same of each micro-batch, whatever its samples
  double fixed_bytes = 0;       // held always, besides what parameter_bytes implies
  Affine workspace_bytes;       // held only while the operator runs
  // Of a graph whose bytes are counted (Graph::counted):
  double sample_bytes = 0;  // of activation_bytes, those of the model's own inputs: they stay
                            // until the last task of the micro-batch
  bool waits = false;       // whether backward_weight is a task of its own where it may be
  Affine waiting_bytes;     // then held from backward_input to backward_weight, outputs and their
                            // gradients apart
  PassBytes passes;
  // Bytes each device sends per sample among its tensor-parallel group; 0 at degree 1. The time is
  // these bytes over the link of the group, added to the operator's own.
  double tensor_forward_bytes = 0;
  double tensor_backward_bytes = 0;
  // The number of these exchanges per pass, each with the latency of the link: cost_of() counts one
  // all-reduce for each pass that sends anything, and one more for a repeated forward pass. No file
  // contains it.
  double tensor_forward_rounds = 0;
  double tensor_backward_rounds = 0;

  double total_per_sample() const {
    return forward.per_sample + backward_input.per_sample + backward_weight.per_sample;
  }
  bool operator==(const OpCost&) const = default;
};

// A measured alternative to Op::cost.
struct OpVariant {
  int tensor = 1;
  bool recompute = false;
  OpCost cost;

  bool operator==(const OpVariant&) const = default;
};

using OpId = int32_t;  // index into Graph::ops

struct Op {
  std::string name;            // unique
  std::string kind;            // "linear", "attention", "concat", "op" where nothing is known
  std::vector<int64_t> shape;  // of one sample's output; empty: unknown
  double output_bytes = 0;     // per sample; what two devices exchange where the operator is split
  OpCost cost;                 // degree 1, nothing recomputed
  std::vector<OpVariant> variants;
  // Tensor-parallel degrees allowed: the powers of two up to this one, and those of `variants`.
  int max_split = 1;
  bool recomputable = false;
  int tied = -1;  // operators of one class >= 0 share their parameters

  bool operator==(const Op&) const = default;
};

// `to` reads output number `output` of `from`. Edges with equal (from, output) carry the same
// tensor: it is sent once to each stage that reads it.
struct Edge {
  OpId from = 0;
  OpId to = 0;
  int output = 0;
  double bytes = 0;  // per sample, forward; the gradient going back is as large
  // Additional bytes that a tensor-parallel group exchanges at either end if this edge crosses
  // stages, as Piper's profiles give them. Only Piper's own cost model counts them
  // (plan/baselines/piper.h).
  double tensor_bytes_from = 0;
  double tensor_bytes_to = 0;
  // Of a graph whose bytes are counted: those that the gradient which `to` makes for this tensor
  // takes there; 0 where it shares the memory of another one (both inputs of a sum), or none comes.
  // Below 0: as many as `bytes`. What is sent is as large as the tensor in any case.
  double gradient_bytes = -1;
  // Of such a graph: whether a stage with both operators, that recomputes both or none, does them
  // at once, so that neither this tensor nor its gradient is ever in memory. Then nothing else is
  // made by `from` or read by `to`, which is the next one.
  bool fused = false;

  double gradient() const { return gradient_bytes < 0 ? bytes : gradient_bytes; }
  bool operator==(const Edge&) const = default;
};

struct Graph {
  std::string name;
  std::string sample = "sample";  // what one sample is: "sample", "micro-batch of 64" ...
  std::vector<Op> ops;
  std::vector<Edge> edges;
  // Bytes a device holds per byte of its parameters: weights and gradient (2), or 0 where
  // fixed_bytes already tells (Piper's profiles) ...
  double state_factor = 2;
  // ... and optimiser state, which may be sharded over replicas: 0 SGD, 1 momentum, 2 Adam.
  double optimizer_factor = 0;
  // Whether bytes are what the runtime's allocator gave out, pass by pass (`ductile profile`). Each
  // tensor between operators then belongs to the one that makes it, and is held like the rest of
  // its activations. Of other graphs it is taken to be counted by its reader.
  bool counted = false;
  spec::ModelIdentity model = {};  // which it was profiled of; empty: not known

  bool operator==(const Graph&) const = default;
};

// The largest graph and the largest figures accepted; beyond these a reader refuses the input.
inline constexpr int64_t kMaxOps = 200'000;
inline constexpr int64_t kMaxEdges = 2'000'000;
inline constexpr double kMaxBytes = 1e18;
inline constexpr double kMaxSeconds = 1e9;
inline constexpr int kMaxTensor = 64;
inline constexpr size_t kMaxPoints = 64;  // of a MostBytes

// Throws invalid_argument naming operator (or edge) and field: an empty or repeated name, an edge
// to nowhere or to itself, a negative, infinite or absurd figure, a cycle (its operators are
// listed), a graph without operators. Every reader and builder has called it.
void check(const Graph& graph);

// The cost at degree `tensor`, kept or recomputed: the measured variant if there is one, or else a
// derived cost. Split: times, parameters, activations and all that is held while operators run
// divide by the degree; two all-reduces of the output (one forward, one backward) join the parts
// (Megatron-LM, section 3). Recomputed: the operator's inputs stay instead of its activations
// (`input_bytes`), and forward is paid again in backward_input. Precondition: allows(op, tensor,
// recompute).
OpCost cost_of(const Op& op, int tensor, bool recompute, double input_bytes);
bool allows(const Op& op, int tensor, bool recompute);

// The predecessors and successors of operators, in compressed rows, and a topological order. Edges
// between the same two operators appear once. Holds no reference to the graph.
class Topology {
 public:
  explicit Topology(const Graph& graph);  // throws invalid_argument on a cycle
  // The topology of a graph that is given only by its edges.
  Topology(int num_ops, std::span<const std::pair<OpId, OpId>> edges);

  int num_ops() const { return static_cast<int>(order_.size()); }
  std::span<const OpId> successors(OpId op) const { return row(next_, next_begin_, op); }
  std::span<const OpId> predecessors(OpId op) const { return row(previous_, previous_begin_, op); }
  // Every operator after its predecessors; among those ready, the lowest number first.
  std::span<const OpId> order() const { return order_; }
  int position(OpId op) const { return position_[op]; }  // in order()

 private:
  static std::span<const OpId> row(const std::vector<OpId>& v, const std::vector<int64_t>& begin,
                                   OpId op) {
    return {v.data() + begin[op], static_cast<size_t>(begin[op + 1] - begin[op])};
  }
  void build(int num_ops, std::vector<std::pair<OpId, OpId>> edges);

  std::vector<OpId> next_, previous_, order_;
  std::vector<int64_t> next_begin_, previous_begin_;
  std::vector<int> position_;
};

// Bytes per sample entering each operator: its distinct input tensors.
std::vector<double> input_bytes(const Graph& graph);

}  // namespace ductile::graph
