#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "ductile/plan/baselines/piper_problem_impl.h"

namespace ductile::plan {

using graph::OpId;
using graph::OpSet;

PiperModel::PiperModel(const graph::Graph& graph, const PiperProblem& problem)
    : problem_(problem), topology_(graph), num_ops_(static_cast<int>(graph.ops.size())) {
  degrees_ = {1};
  for (const graph::Op& op : graph.ops) {
    for (int t = 2; t <= op.max_split; t *= 2) degrees_.push_back(t);
    for (const graph::OpVariant& v : op.variants) degrees_.push_back(v.tensor);
  }
  std::sort(degrees_.begin(), degrees_.end());
  degrees_.erase(std::unique(degrees_.begin(), degrees_.end()), degrees_.end());
  const std::vector<double> inputs = graph::input_bytes(graph);
  modes_.resize(degrees_.size() * num_ops_ * 2);
  count_.assign(degrees_.size() * num_ops_, 0);
  for (size_t k = 0; k < degrees_.size(); ++k) {
    for (OpId v = 0; v < num_ops_; ++v) {
      const size_t i = k * num_ops_ + v;
      for (const bool recompute : {false, true}) {
        if (!graph::allows(graph.ops[v], degrees_[k], recompute)) continue;
        const graph::OpCost c = graph::cost_of(graph.ops[v], degrees_[k], recompute, inputs[v]);
        // Weights and gradients, unless the profile has them in fixed_bytes.
        const double state =
            (graph.state_factor + graph.optimizer_factor) * c.parameter_bytes + c.fixed_bytes;
        modes_[2 * i + count_[i]++] = {c.total_per_sample() + c.forward.fixed +
                                           c.backward_input.fixed + c.backward_weight.fixed,
                                       c.parameter_bytes, c.activation_bytes, state};
      }
    }
  }
  edges_.resize(num_ops_);
  for (const graph::Edge& e : graph.edges) {
    const double from = 2 * e.tensor_bytes_from, to = 2 * e.tensor_bytes_to;
    edges_[e.from].push_back({e.to, false, 2 * e.bytes, from, to});
    edges_[e.to].push_back({e.from, true, 2 * e.bytes, to, from});
  }
}

std::vector<int> PiperModel::replica_counts() const {
  std::vector<int> out;
  for (int d = 1; d <= problem_.devices; ++d) {
    if (problem_.micro_batches % d == 0) out.push_back(d);
  }
  return out;
}

bool PiperModel::make_upsets(size_t cap) {
  std::unordered_map<OpSet, int, graph::OpSetHash> known;
  upsets_.clear();
  upsets_.emplace_back(num_ops_);
  known.emplace(upsets_[0], 0);
  for (size_t i = 0; i < upsets_.size(); ++i) {
    for (OpId v = 0; v < num_ops_; ++v) {
      if (upsets_[i].contains(v)) continue;
      bool free = true;
      for (OpId w : topology_.successors(v)) {
        if (!upsets_[i].contains(w)) {
          free = false;
          break;
        }
      }
      if (!free) continue;
      OpSet next = upsets_[i];
      next.insert(v);
      if (known.emplace(next, static_cast<int>(upsets_.size())).second) {
        upsets_.push_back(std::move(next));
        if (upsets_.size() > cap) return false;
      }
    }
  }
  // Breadth first: sizes ascend already.
  sizes_.resize(upsets_.size());
  for (size_t i = 0; i < upsets_.size(); ++i) sizes_[i] = upsets_[i].size();
  return true;
}

std::vector<std::vector<int>> PiperModel::below_among(std::span<const int> of) const {
  std::vector<std::vector<int>> out(of.size());
  for (size_t i = 0; i < of.size(); ++i) {
    for (size_t j = i; j-- > 0;) {
      if (sizes_[of[j]] < sizes_[of[i]] && upsets_[of[j]].is_subset_of(upsets_[of[i]])) {
        out[i].push_back(of[j]);
      }
    }
  }
  return out;
}

void PiperModel::make_below() {
  std::vector<int> all(upsets_.size());
  std::iota(all.begin(), all.end(), 0);
  below_ = below_among(all);
}

bool PiperModel::recomputed(std::span<const OpId> ops, int k, int y, std::vector<OpId>& out) const {
  out.clear();
  double memory = 0;
  savings_.clear();
  for (OpId v : ops) {
    int count = 0;
    const Mode* m = modes(k, v, count);
    memory += m[0].a * y + m[0].b;
    if (count < 2) continue;
    const double saved = (m[0].a - m[1].a) * y + m[0].b - m[1].b;
    if (saved > 1e-9) savings_.push_back({(m[1].time - m[0].time) / saved, v});
  }
  if (memory <= problem_.memory) return true;
  std::sort(savings_.begin(), savings_.end(), [](const Saving& a, const Saving& b) {
    return a.ratio != b.ratio ? a.ratio < b.ratio : a.op < b.op;
  });
  for (const Saving& s : savings_) {
    int count = 0;
    const Mode* m = modes(k, s.op, count);
    memory -= (m[0].a - m[1].a) * y + m[0].b - m[1].b;
    out.push_back(s.op);
    if (memory < problem_.memory + 1e-9) return true;
  }
  return false;
}

void PiperModel::stage(std::span<const OpId> ops, const OpSet& set, int k, int most,
                       StageModel& out) const {
  out.allowed = true;
  out.border = out.parameters = 0;
  out.steps.clear();
  double time = 0, a = 0, b = 0;
  for (OpId v : ops) {
    int count = 0;
    const Mode* m = modes(k, v, count);
    if (count == 0) {
      out.allowed = false;
      return;
    }
    time += m[0].time;
    a += m[0].a;
    b += m[0].b;
    out.parameters += m[0].parameters;
    for (const HalfEdge& e : edges_[v]) {
      if (!set.contains(e.other)) out.border += e.bytes + (k > 0 ? e.tensor_bytes : 0);
    }
  }
  std::vector<OpId> chosen;
  for (int y = 1; y <= most;) {
    double t = time, ra = a, rb = b;
    if (a * y + b > problem_.memory) {
      if (!recomputed(ops, k, y, chosen)) break;
      for (OpId v : chosen) {
        int count = 0;
        const Mode* m = modes(k, v, count);
        t += m[1].time - m[0].time;
        ra += m[1].a - m[0].a;
        rb += m[1].b - m[0].b;
      }
    }
    // The same choice serves as long as it fits.
    int last = y;
    if (ra <= 0) {
      last = most;
    } else {
      last = static_cast<int>(std::min<double>(most, std::floor((problem_.memory - rb) / ra)));
    }
    last = std::max(last, y);
    if (!out.steps.empty() && t <= out.steps.back().time) {
      out.steps.back().most = last;  // the greedy rule did better with less room
    } else {
      out.steps.push_back({t, last});
    }
    y = last + 1;
  }
  if (out.steps.empty()) out.allowed = false;
}

void PiperModel::make_sums() {
  sums_.assign(degrees_.size() * upsets_.size(), {});
  crossings_.assign(upsets_.size(), {});
  for (size_t i = 0; i < upsets_.size(); ++i) {
    for (size_t k = 0; k < degrees_.size(); ++k) {
      Sums& sums = sums_[k * upsets_.size() + i];
      upsets_[i].for_each([&](OpId v) {
        int count = 0;
        const Mode* m = modes(static_cast<int>(k), v, count);
        if (count == 0) {
          ++sums.refused;
          return;
        }
        sums.time += m[0].time;
        const Mode& other = m[count - 1];
        sums.least_time += std::min(m[0].time, other.time);
        sums.least_a += std::min(m[0].a, other.a);
        sums.least_b += std::min(m[0].b, other.b);
        sums.parameters += m[0].parameters;
        sums.a += m[0].a;
        sums.b += m[0].b;
      });
    }
    upsets_[i].for_each([&](OpId v) {
      for (const HalfEdge& e : edges_[v]) {
        if (e.incoming && !upsets_[i].contains(e.other)) {
          crossings_[i].push_back({e.other, v, e.bytes, e.far_tensor_bytes, e.tensor_bytes});
        }
      }
    });
  }
}

int PiperModel::most_in_flight(int i, int j, int k, int most) const {
  const Sums& from = sums_[static_cast<size_t>(k) * upsets_.size() + i];
  const Sums& to = sums_[static_cast<size_t>(k) * upsets_.size() + j];
  const double a = from.least_a - to.least_a;
  // Sums of sums: a little more, so that rounding excludes nothing.
  const double room = problem_.memory * (1 + 1e-9) - (from.least_b - to.least_b);
  if (room < 0) return 0;
  if (a * most <= room) return most;
  return static_cast<int>(room / a);
}

void PiperModel::stage_between(int i, int j, int k, int most, StageModel& out) const {
  const Sums& from = sums_[static_cast<size_t>(k) * upsets_.size() + i];
  const Sums& to = sums_[static_cast<size_t>(k) * upsets_.size() + j];
  out.allowed = from.refused == to.refused;
  if (!out.allowed) return;
  const double a = from.a - to.a;
  const double b = from.b - to.b;
  if (a * most + b > problem_.memory * (1 - 1e-9)) {  // perhaps some are recomputed
    const OpSet set = upsets_[i] - upsets_[j];
    stage(set.to_vector(), set, k, most, out);
    return;
  }
  out.parameters = from.parameters - to.parameters;
  out.border = 0;
  for (const Crossing& e : crossings_[i]) {
    if (!upsets_[j].contains(e.to)) out.border += e.bytes + (k > 0 ? e.tensor_to : 0);
  }
  for (const Crossing& e : crossings_[j]) {
    if (upsets_[i].contains(e.from)) out.border += e.bytes + (k > 0 ? e.tensor_from : 0);
  }
  out.steps.assign(1, {from.time - to.time, most});
}

double piper_seconds(const graph::Graph& graph, const PiperProblem& problem,
                     const std::vector<PiperStage>& stages) {
  const PiperModel model(graph, problem);
  double slowest = 0;
  int s = 0;
  for (size_t i = stages.size(); i-- > 0;) {
    const PiperStage& stage = stages[i];
    s += stage.replicas;
    const int y = (s + stage.replicas - 1) / stage.replicas;
    const auto degree = std::find(model.degrees().begin(), model.degrees().end(), stage.tensor);
    if (degree == model.degrees().end()) return std::numeric_limits<double>::infinity();
    const int k = static_cast<int>(degree - model.degrees().begin());
    OpSet set(model.num_ops());
    for (OpId v : stage.ops) set.insert(v);
    PiperModel::StageModel m;
    model.stage(stage.ops, set, k, y, m);
    if (!m.allowed || m.steps.back().most < y) return std::numeric_limits<double>::infinity();
    double time = 0;
    for (const PiperModel::Step& step : m.steps) {
      if (step.most >= y) {
        time = step.time;
        break;
      }
    }
    slowest = std::max(slowest, model.seconds(m, time, stage.replicas));
  }
  return slowest;
}

PiperStage make_piper_stage(const PiperModel& model, int from, int to, int k, int d, int s) {
  PiperStage stage;
  stage.ops = (model.upsets()[from] - model.upsets()[to]).to_vector();
  stage.tensor = model.degrees()[k];
  stage.replicas = d;
  stage.in_flight = (s + d - 1) / d;
  model.recomputed(stage.ops, k, stage.in_flight, stage.recompute);
  std::sort(stage.recompute.begin(), stage.recompute.end());
  return stage;
}

}  // namespace ductile::plan
