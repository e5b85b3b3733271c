// What stages hold while the runtime carries out their tasks, of a graph whose bytes are counted.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "ductile/plan/cost.h"

namespace ductile::plan {
namespace {

using graph::Graph;
using graph::Op;
using graph::OpCost;

// Bytes of one operator on one micro-batch.
struct OpBytes {
  double own = 0;  // what it makes in its forward pass and keeps, its outputs among it
  double samples = 0;
  double kept = 0;     // of `own`, with recomputation: the outputs that others of the stage read
  double outputs = 0;  // that anybody reads
  double waiting = 0;  // from B to W, outputs and their gradients apart
  double forward = 0, whole = 0, input = 0, weight = 0;  // PassBytes
  double behind = 0;  // as `own`, of the operator that is done at once with it
  bool waits = false, again = false;
};

// A tensor that a stage makes or reads.
struct Tensor {
  OpId maker = -1;                    // -1: it comes from another stage
  double bytes = 0;                   // of a micro-batch
  bool copied = false;                // it comes from other devices
  std::map<OpId, double> readers;     // in the stage: the bytes of the gradients that they make
  std::map<int, bool> other_readers;  // stages: whether they lie on other devices
  // To and from stages of other numbers of replicas: what is sent are copies of ranges of samples,
  // and what comes is put together from them.
  std::set<int> copied_for;  // of other_readers
  bool in_pieces = false;
};

// Whether the stages at its ends have other numbers of replicas, so that a replica of one has some
// of the samples of a replica of the other, which may not be sent from where they lie: only of
// what has one row of numbers for each sample is it sure that they follow each other in memory.
bool goes_in_pieces(const Graph& graph, const graph::Edge& e, const Stage& from, const Stage& to) {
  const bool in_rows = e.output == 0 && graph.ops[e.from].shape.size() == 1;
  return from.replicas != to.replicas && !in_rows;
}

// One stage. The order of operators in a task is theirs in the graph, in B the other way round.
class StageWalk {
 public:
  // `shares_samples`: whether its replicas, of a pipeline whose stages have other numbers of them,
  // take their part of the model's inputs from whole micro-batches. Each then has a copy of it.
  StageWalk(const Graph& graph, const Stage& stage, bool split, bool shares_samples)
      : split_(split), given_(shares_samples ? 1 + stage.replicas : 1) {
    share_ = static_cast<double>(stage.micro_batch) / stage.replicas;
    for (const OpId id : stage.ops) {
      const Op& op = graph.ops[id];
      const int tensor = graph::allows(op, stage.tensor, false) ? stage.tensor : 1;
      const OpCost c = graph::cost_of(op, tensor, false, 0);
      OpBytes& b = ops_[id];
      b.samples = c.sample_bytes * share_;
      b.own = std::max(0.0, c.activation_bytes * share_ + c.activation_fixed - b.samples);
      b.forward = c.passes.forward.at(share_);
      b.whole = c.passes.backward.at(share_);
      b.input = c.passes.backward_input.at(share_);
      b.weight = c.passes.backward_weight.at(share_);
      b.waits = split && c.waits;
      b.waiting = b.waits ? c.waiting_bytes.at(share_) : 0;
      b.again = std::binary_search(stage.recompute.begin(), stage.recompute.end(), id);
    }
  }

  // An edge between two operators of the stage. If they are done at once, the first one stands for
  // both from now on: of what the stage reads and makes, nothing is noted before.
  void join(const graph::Edge& e) {
    if (!e.fused || ops_.at(e.from).again != ops_.at(e.to).again) return;
    OpBytes& a = ops_.at(e.from);
    const OpBytes b = ops_.at(e.to);
    const double tensor = e.bytes * share_, gradient = e.gradient() * share_;
    a.behind = b.own;
    a.own = std::max(0.0, a.own + b.own - tensor);
    a.samples += b.samples;
    a.forward = std::max(a.forward, b.forward);
    a.whole = std::max(a.whole, b.whole - gradient);
    a.input = std::max(a.input, b.input - gradient);
    a.weight = std::max(a.weight, b.weight);
    a.waiting += b.waiting;
    a.waits = a.waits || b.waits;
    ops_.erase(e.to);
    first_[e.to] = e.from;
  }

  // An edge from an operator of the stage, which `to`, of stage `reader`, reads.
  void leaves(const graph::Edge& e, int reader, bool other_devices, bool in_pieces) {
    Tensor& t = tensor(e);
    t.maker = unit(e.from);
    t.other_readers[reader] = other_devices;
    if (other_devices && in_pieces) t.copied_for.insert(reader);
  }
  void stays(const graph::Edge& e) {
    if (unit(e.to) == unit(e.from)) return;
    Tensor& t = tensor(e);
    t.maker = unit(e.from);
    t.readers.try_emplace(e.to, e.gradient() * share_);
  }
  void comes(const graph::Edge& e, bool other_devices, bool in_pieces) {
    Tensor& t = tensor(e);
    t.copied = other_devices;
    t.in_pieces = other_devices && in_pieces;
    t.readers.try_emplace(e.to, e.gradient() * share_);
  }

  StageMemory memory(double fixed) {
    StageMemory out;
    out.fixed = fixed;
    prepare();
    for (const auto& [key, t] : tensors_) {
      if (t.copied) out.posted_forward += t.bytes;
      for (const auto& [reader, other_devices] : t.other_readers) {
        if (other_devices) out.posted_backward += t.bytes;
      }
    }
    forward(out);
    out.backward = backward();
    if (split_) weights(out);
    return out;
  }

 private:
  Tensor& tensor(const graph::Edge& e) {
    Tensor& t = tensors_[{unit(e.from), e.output}];
    t.bytes = e.bytes * share_;
    return t;
  }

  // The operator that stands for it.
  OpId unit(OpId id) const {
    const auto found = first_.find(id);
    return found == first_.end() ? id : found->second;
  }

  // Whether an operator of the stage that waits for its W reads it.
  bool is_awaited(const Tensor& t) const {
    return std::ranges::any_of(t.readers, [&](const auto& r) { return ops_.at(r.first).waits; });
  }

  // Of all readers.
  static double gradients_of(const Tensor& t) {
    double sum = t.bytes * static_cast<double>(t.other_readers.size());
    for (const auto& [reader, gradient] : t.readers) sum += gradient;
    return sum;
  }

  // What waits for W of the gradients of a tensor: the one that came, or the sum of several.
  static double gradient_of(const Tensor& t) {
    const size_t several = t.readers.size() + t.other_readers.size();
    if (several == 1 && !t.readers.empty()) return t.readers.begin()->second;
    return several > 0 ? t.bytes : 0;
  }

  void prepare() {
    for (auto& [key, t] : tensors_) {
      if (t.maker < 0) continue;
      made_[t.maker].push_back(&t);
      OpBytes& maker = ops_.at(t.maker);
      maker.outputs += t.bytes;
      if (maker.waits) maker.waiting += gradient_of(t);
      if (maker.again && !t.readers.empty()) maker.kept += t.bytes;
    }
    for (auto& [key, t] : tensors_) {
      for (const auto& [reader, bytes] : t.readers) read_[reader].push_back(&t);
    }
    for (auto& [id, b] : ops_) {
      // What the second one of two saves is then needed as long as what the first one does.
      if (b.waits) b.waiting += std::max(0.0, b.behind - b.outputs);
      if (!b.again) b.kept = b.own;
      samples_ += b.samples * given_;
    }
  }

  double copies() const {
    double sum = 0;
    for (const auto& [key, t] : tensors_) sum += t.copied ? t.bytes : 0;
    return sum;
  }

  void forward(StageMemory& out) const {
    double now = copies() + samples_, pieces = 0, sent = 0;
    for (const auto& [key, t] : tensors_) {
      if (t.in_pieces) pieces = std::max(pieces, t.bytes);
      sent += t.bytes * static_cast<double>(t.copied_for.size());
    }
    double most = now + pieces;  // while the last one of its inputs is put together
    out.held = now;
    for (const auto& [id, b] : ops_) {
      most = std::max(most, now + b.own + b.forward);
      now += b.again ? b.outputs : b.own;  // all outputs are there until the task ends
      out.held += b.kept;
    }
    out.forward = std::max({most, now + sent, out.held});
  }

  // The most in a B beyond what there was before.
  double backward() const {
    double now = 0, pieces = 0, sent = 0;
    for (const auto& [key, t] : tensors_) {
      now += t.bytes * static_cast<double>(t.other_readers.size());  // gradients that have come
      if (!t.copied_for.empty()) pieces = std::max(pieces, t.bytes);
      if (t.in_pieces) sent += t.bytes;
    }
    double most = now + pieces;
    std::set<const Tensor*> given;  // gradients of what came from other stages
    for (auto at = ops_.rbegin(); at != ops_.rend(); ++at) {
      const auto& [id, b] = *at;
      double task = split_ ? b.input : b.whole;
      if (b.again) task = b.own + std::max(b.forward, task);
      for (const Tensor* t : read_of(id)) {
        if (t->maker < 0 && given.contains(t)) task += t->bytes;  // the sum of both is a third
      }
      // Several gradients of one output are added first.
      double sums = 0, instead = 0;
      for (const Tensor* t : made_of(id)) {
        const size_t several = t->readers.size() + t->other_readers.size();
        if (several < 2) continue;
        sums += several > 2 ? 2 * t->bytes : t->bytes;
        instead += t->bytes - gradients_of(*t);
      }
      most = std::max({most, now + sums, now + instead + task});
      now += after_backward(id, b);
      for (const Tensor* t : read_of(id)) {
        if (t->maker >= 0 || given.insert(t).second) now += t->readers.at(id);
      }
      most = std::max(most, now);
    }
    return std::max(most, now + sent);
  }

  // By how much an operator's B changes what is held, the gradients that it makes apart.
  double after_backward(OpId id, const OpBytes& b) const {
    double change = b.again ? 0 : -b.kept;
    for (const Tensor* t : made_of(id)) {
      change -= gradients_of(*t);
      if (!b.again && !b.waits && is_awaited(*t)) change += t->bytes;
    }
    if (b.waits) change += b.waiting + b.outputs;
    for (const Tensor* t : read_of(id)) {
      // The last operator that reads it lets it go, where its maker does not hold it.
      const bool of_readers = t->copied || (t->maker >= 0 && ops_.at(t->maker).again);
      if (of_readers && t->readers.begin()->first == id && !is_awaited(*t)) change -= t->bytes;
    }
    return change;
  }

  // What waits for W, and the most while it is done.
  void weights(StageMemory& out) const {
    std::map<OpId, double> released;  // when the operator has done its W
    for (const auto& [id, b] : ops_) {
      if (b.waits) released[id] += b.waiting + b.outputs;
    }
    for (const auto& [key, t] : tensors_) {
      if ((t.maker < 0 && !t.copied) || !is_awaited(t)) continue;
      // The last reader lets it go, not the maker, unless it made one of its own again.
      const auto last = std::find_if(t.readers.rbegin(), t.readers.rend(),
                                     [&](const auto& r) { return ops_.at(r.first).waits; });
      released[last->first] += t.bytes;
      const bool of_maker = t.maker >= 0 && ops_.at(t.maker).waits;
      if (of_maker && !ops_.at(t.maker).again) released[t.maker] -= t.bytes;
    }
    out.waiting = samples_;
    for (const auto& [id, bytes] : released) out.waiting += bytes;
    double now = 0;
    for (const auto& [id, b] : ops_) {
      if (!b.waits) continue;
      out.weights = std::max(out.weights, now + b.weight);
      now -= released[id];
    }
  }

  using Tensors = std::vector<const Tensor*>;
  static const Tensors& of(const std::map<OpId, Tensors>& tensors, OpId id) {
    static const Tensors none;
    const auto found = tensors.find(id);
    return found == tensors.end() ? none : found->second;
  }
  const Tensors& made_of(OpId id) const { return of(made_, id); }
  const Tensors& read_of(OpId id) const { return of(read_, id); }

  const bool split_;
  const double given_;  // times the replica's samples: what it holds of the model's inputs
  double share_ = 0, samples_ = 0;
  std::map<OpId, OpBytes> ops_;
  std::map<OpId, OpId> first_;  // of two that are done at once, by the second
  std::map<std::pair<OpId, int>, Tensor> tensors_;
  std::map<OpId, Tensors> made_, read_;
};

std::vector<int> stages_of(const Graph& graph, const Plan& plan) {
  std::vector<int> out(graph.ops.size());
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const OpId op : plan.stages[s].ops) out[op] = static_cast<int>(s);
  }
  return out;
}

bool has_unequal_replicas(const Plan& plan) {
  return std::ranges::any_of(
      plan.stages, [&](const Stage& stage) { return stage.replicas != plan.stages[0].replicas; });
}

double share_of(const Stage& stage) {
  return static_cast<double>(stage.micro_batch) / stage.replicas;
}

}  // namespace

std::vector<StageMemory> task_memory(const Graph& graph, const Plan& plan,
                                     const std::vector<int>& unit,
                                     const std::vector<double>& fixed) {
  std::vector<StageWalk> walks;
  walks.reserve(plan.stages.size());
  const bool unequal = has_unequal_replicas(plan);
  for (const Stage& stage : plan.stages) {
    walks.emplace_back(graph, stage, plan.schedule == ScheduleKind::zero_bubble,
                       unequal && stage.replicas > 1);
  }
  const std::vector<int> stage_of = stages_of(graph, plan);
  for (const graph::Edge& e : graph.edges) {
    if (stage_of[e.from] == stage_of[e.to]) walks[stage_of[e.from]].join(e);
  }
  for (const graph::Edge& e : graph.edges) {
    const int from = stage_of[e.from], to = stage_of[e.to];
    if (from == to) {
      walks[from].stays(e);
      continue;
    }
    const bool in_pieces = goes_in_pieces(graph, e, plan.stages[from], plan.stages[to]);
    walks[from].leaves(e, to, unit[from] != unit[to], in_pieces);
    walks[to].comes(e, unit[from] != unit[to], in_pieces);
  }
  std::vector<StageMemory> out;
  for (size_t s = 0; s < walks.size(); ++s) out.push_back(walks[s].memory(fixed[s]));
  return out;
}

SentBytes sent_bytes(const Graph& graph, const Plan& plan, const StageGraph& stages) {
  SentBytes out;
  std::map<std::pair<int, int>, size_t> number;
  for (const StageEdge& e : stages.edges) {
    number[{e.from, e.to}] = out.backward.size();
    out.backward.push_back(e.bytes * share_of(plan.stages[e.to]));
  }
  out.forward.resize(stages.edges.size());
  const std::vector<int> stage_of = stages_of(graph, plan);
  std::set<std::pair<OpId, int>> read;  // in their own stages, whose operators hold them
  for (const graph::Edge& e : graph.edges) {
    if (stage_of[e.from] == stage_of[e.to]) read.insert({e.from, e.output});
  }
  std::set<std::tuple<OpId, int, int>> counted;
  for (const graph::Edge& e : graph.edges) {
    const int from = stage_of[e.from], to = stage_of[e.to];
    const Stage& stage = plan.stages[from];
    const bool again = std::binary_search(stage.recompute.begin(), stage.recompute.end(), e.from);
    if (from == to) continue;
    const bool gone = again && !read.contains({e.from, e.output});  // from the stage itself
    if (!gone && !goes_in_pieces(graph, e, stage, plan.stages[to])) continue;
    if (!counted.insert({e.from, e.output, to}).second) continue;
    out.forward[number.at({from, to})] += e.bytes * share_of(stage);
  }
  return out;
}

}  // namespace ductile::plan
