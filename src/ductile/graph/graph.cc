#include "ductile/graph/graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <queue>
#include <unordered_set>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/text.h"

namespace ductile::graph {
namespace {

void check_number(double value, double limit, const std::string& op, std::string_view field) {
  if (std::isfinite(value) && value >= 0 && value <= limit) return;
  fail(ErrorCode::invalid_argument, "operator \"{}\": {} is {}, it must be from 0 to {:g}", op,
       field, value, limit);
}

void check_affine(const Affine& a, double limit, const std::string& op, std::string_view field) {
  check_number(a.fixed, limit, op, field);
  check_number(a.per_sample, limit, op, field);
}

void check_most(const MostBytes& most, const std::string& op) {
  constexpr std::string_view kField = "pass_bytes";
  check_affine(most.line, kMaxBytes, op, kField);
  if (most.points.size() > kMaxPoints) {
    fail(ErrorCode::invalid_argument, "operator \"{}\": {} has {} points, at most {} are accepted",
         op, kField, most.points.size(), kMaxPoints);
  }
  double before = 0;
  for (const auto& [samples, bytes] : most.points) {
    if (!(samples > before) || !(samples <= kMaxBytes)) {
      fail(ErrorCode::invalid_argument, "operator \"{}\": {}: samples must rise from above 0", op,
           kField);
    }
    before = samples;
    check_number(bytes, kMaxBytes, op, kField);
  }
}

void check_cost(const OpCost& c, const std::string& op) {
  check_affine(c.forward, kMaxSeconds, op, "forward");
  check_affine(c.backward_input, kMaxSeconds, op, "backward_input");
  check_affine(c.backward_weight, kMaxSeconds, op, "backward_weight");
  check_number(c.parameter_bytes, kMaxBytes, op, "parameter_bytes");
  check_number(c.activation_bytes, kMaxBytes, op, "activation_bytes");
  check_number(c.fixed_bytes, kMaxBytes, op, "fixed_bytes");
  check_affine(c.workspace_bytes, kMaxBytes, op, "workspace_bytes");
  check_number(c.activation_fixed, kMaxBytes, op, "activation_fixed");
  check_number(c.sample_bytes, kMaxBytes, op, "sample_bytes");
  check_affine(c.waiting_bytes, kMaxBytes, op, "waiting_bytes");
  check_most(c.passes.forward, op);
  check_most(c.passes.backward, op);
  check_most(c.passes.backward_input, op);
  check_most(c.passes.backward_weight, op);
  check_number(c.tensor_forward_bytes, kMaxBytes, op, "tensor_forward_bytes");
  check_number(c.tensor_backward_bytes, kMaxBytes, op, "tensor_backward_bytes");
}

void check_degree(int tensor, const std::string& op, std::string_view field) {
  if (tensor >= 1 && tensor <= kMaxTensor) return;
  fail(ErrorCode::invalid_argument, "operator \"{}\": {} is {}, it must be from 1 to {}", op, field,
       tensor, kMaxTensor);
}

// Well-formed UTF-8, so that every graph can be written as JSON.
void check_text(std::string_view text, const std::string& where, std::string_view field) {
  if (const size_t at = find_not_utf8(text); at != std::string_view::npos) {
    fail(ErrorCode::invalid_argument, "{}: {} is not UTF-8 (byte {} is {:#04x})", where, field, at,
         static_cast<unsigned char>(text[at]));
  }
}

void check_op(const Op& op) {
  check_cost(op.cost, op.name);
  check_number(op.output_bytes, kMaxBytes, op.name, "output_bytes");
  check_degree(op.max_split, op.name, "max_split");
  for (int64_t d : op.shape) {
    if (d < 1) {
      fail(ErrorCode::invalid_argument, "operator \"{}\": shape has a dimension of {}", op.name, d);
    }
  }
  for (size_t i = 0; i < op.variants.size(); ++i) {
    const OpVariant& v = op.variants[i];
    check_degree(v.tensor, op.name, "variants.tensor");
    check_cost(v.cost, op.name);
    if (v.tensor == 1 && !v.recompute) {
      fail(ErrorCode::invalid_argument,
           "operator \"{}\": a variant of degree 1 without recompute is the operator's own cost",
           op.name);
    }
    for (size_t j = 0; j < i; ++j) {
      if (op.variants[j].tensor == v.tensor && op.variants[j].recompute == v.recompute) {
        fail(ErrorCode::invalid_argument, "operator \"{}\": two variants of degree {}{}", op.name,
             v.tensor, v.recompute ? " with recompute" : "");
      }
    }
  }
}

// The names along one cycle, among operators that were never ready.
std::string describe_cycle(const Graph& graph, const std::vector<int>& waiting) {
  std::vector<OpId> blocker(graph.ops.size(), -1);
  OpId at = -1;
  for (const Edge& e : graph.edges) {
    if (waiting[e.from] > 0 && waiting[e.to] > 0) blocker[e.to] = e.from, at = e.to;
  }
  std::vector<char> seen(graph.ops.size());
  while (!seen[at]) seen[at] = 1, at = blocker[at];
  std::vector<OpId> cycle;
  for (OpId op = at; cycle.empty() || op != at; op = blocker[op]) cycle.push_back(op);
  std::reverse(cycle.begin(), cycle.end());
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
  std::string text;
  for (size_t i = 0; i < cycle.size() && i < 8; ++i) {
    text += fmt::format("\"{}\" -> ", graph.ops[cycle[i]].name);
  }
  return text + (cycle.size() > 8 ? fmt::format("... ({} operators)", cycle.size())
                                  : fmt::format("\"{}\"", graph.ops[cycle.front()].name));
}

// Pairs of neighbours that nobody else comes between.
void check_fused(const Graph& graph) {
  std::vector<int> made(graph.ops.size()), read(graph.ops.size()), pairs(graph.ops.size());
  for (const Edge& e : graph.edges) {
    ++made[e.from], ++read[e.to];
    if (e.fused) ++pairs[e.from], ++pairs[e.to];
  }
  for (const Edge& e : graph.edges) {
    if (!e.fused) continue;
    const bool alone = e.to == e.from + 1 && made[e.from] == 1 && read[e.to] == 1;
    if (alone && pairs[e.from] == 1 && pairs[e.to] == 1) continue;
    fail(ErrorCode::invalid_argument,
         "edge \"{}\" -> \"{}\" is fused, but not the only one from the first and to the second, "
         "these are not neighbours, or one of them is in two pairs",
         graph.ops[e.from].name, graph.ops[e.to].name);
  }
}

void check_acyclic(const Graph& graph) {
  std::vector<std::vector<OpId>> next(graph.ops.size());
  std::vector<int> waiting(graph.ops.size());
  for (const Edge& e : graph.edges) next[e.from].push_back(e.to), ++waiting[e.to];
  std::vector<OpId> ready;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] == 0) ready.push_back(static_cast<OpId>(i));
  }
  size_t done = 0;
  for (; done < ready.size(); ++done) {
    const OpId op = ready[done];
    for (OpId to : next[op]) {
      if (--waiting[to] == 0) ready.push_back(to);
    }
  }
  if (done == graph.ops.size()) return;
  fail(ErrorCode::invalid_argument, "the operators form a cycle: {}",
       describe_cycle(graph, waiting));
}

const OpVariant* find_variant(const Op& op, int tensor, bool recompute) {
  for (const OpVariant& v : op.variants) {
    if (v.tensor == tensor && v.recompute == recompute) return &v;
  }
  return nullptr;
}

bool splits(const Op& op, int tensor) {
  return tensor == 1 || (tensor <= op.max_split && std::has_single_bit(unsigned(tensor))) ||
         find_variant(op, tensor, false) != nullptr;
}

OpCost split_cost(const Op& op, int tensor) {
  if (const OpVariant* v = find_variant(op, tensor, false)) return v->cost;
  OpCost c = op.cost;
  if (tensor == 1) return c;
  const double share = 1.0 / tensor;
  // The fixed part is launches and reading the weights, of which there are fewer on each device:
  // counted whole, so that splitting is never made to look better than it is.
  for (Affine* a : {&c.forward, &c.backward_input, &c.backward_weight}) a->per_sample *= share;
  c.parameter_bytes *= share;
  c.activation_bytes *= share;
  c.workspace_bytes = share * c.workspace_bytes;
  c.activation_fixed *= share;
  c.sample_bytes *= share;
  c.waiting_bytes = share * c.waiting_bytes;
  for (MostBytes* most : {&c.passes.forward, &c.passes.backward, &c.passes.backward_input,
                          &c.passes.backward_weight}) {
    *most = share * *most;
  }
  const double all_reduce = 2.0 * (tensor - 1) / tensor * op.output_bytes;
  c.tensor_forward_bytes += all_reduce;
  c.tensor_backward_bytes += all_reduce;
  return c;
}

}  // namespace

// For fewer samples than it was measured with, that of the fewest; for more it goes on as it rose.
double MostBytes::at(double n) const {
  if (points.empty()) return line.at(n);
  auto above = std::ranges::lower_bound(points, n, {}, &std::pair<double, double>::first);
  if (above == points.begin()) return above->second;
  if (above == points.end() && points.size() == 1) return points[0].second / points[0].first * n;
  const bool beyond = above == points.end();
  if (beyond) --above;
  const auto& [from, low] = *std::prev(above);
  const auto& [to, high] = *above;
  const double slope = (high - low) / (to - from);
  return low + (beyond ? std::max(0.0, slope) : slope) * (n - from);
}

MostBytes larger(const MostBytes& a, const MostBytes& b) {
  MostBytes out;
  out.line = {std::max(a.line.fixed, b.line.fixed), std::max(a.line.per_sample, b.line.per_sample)};
  std::vector<double> samples;
  for (const MostBytes* one : {&a, &b}) {
    for (const auto& [n, bytes] : one->points) samples.push_back(n);
  }
  std::ranges::sort(samples);
  samples.erase(std::unique(samples.begin(), samples.end()), samples.end());
  for (const double n : samples) out.points.emplace_back(n, std::max(a.at(n), b.at(n)));
  return out;
}

void check(const Graph& graph) {
  if (graph.ops.empty()) fail(ErrorCode::invalid_argument, "the graph has no operators");
  if (static_cast<int64_t>(graph.ops.size()) > kMaxOps) {
    fail(ErrorCode::invalid_argument, "the graph has {} operators, at most {} are accepted",
         graph.ops.size(), kMaxOps);
  }
  if (static_cast<int64_t>(graph.edges.size()) > kMaxEdges) {
    fail(ErrorCode::invalid_argument, "the graph has {} edges, at most {} are accepted",
         graph.edges.size(), kMaxEdges);
  }
  for (const auto& [value, field] : {std::pair{graph.state_factor, "state_factor"},
                                     std::pair{graph.optimizer_factor, "optimizer_factor"}}) {
    if (!(value >= 0 && value <= 100)) {
      fail(ErrorCode::invalid_argument, "{} is {}, it must be from 0 to 100", field, value);
    }
  }
  check_text(graph.name, "graph", "name");
  check_text(graph.sample, "graph", "sample");
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (op.name.empty()) fail(ErrorCode::invalid_argument, "operator {} has no name", i);
    check_text(op.name, fmt::format("operator {}", i), "name");
    check_text(op.kind, fmt::format("operator \"{}\"", op.name), "kind");
    if (!names.insert(op.name).second) {
      fail(ErrorCode::invalid_argument, "two operators are named \"{}\"", op.name);
    }
    check_op(op);
  }
  const auto known = [&](OpId op) { return op >= 0 && op < static_cast<OpId>(graph.ops.size()); };
  std::map<std::pair<OpId, int>, double> tensors;
  for (const Edge& e : graph.edges) {
    if (!known(e.from) || !known(e.to)) {
      fail(ErrorCode::invalid_argument, "an edge joins operators {} and {}, there are {}", e.from,
           e.to, graph.ops.size());
    }
    const std::string& name = graph.ops[e.from].name;
    if (e.from == e.to) fail(ErrorCode::invalid_argument, "operator \"{}\" feeds itself", name);
    for (double b : {e.bytes, e.tensor_bytes_from, e.tensor_bytes_to, e.gradient()}) {
      if (!(b >= 0 && b <= kMaxBytes)) {
        fail(ErrorCode::invalid_argument,
             "edge \"{}\" -> \"{}\": bytes is {}, it must be from 0 to {:g}", name,
             graph.ops[e.to].name, b, kMaxBytes);
      }
    }
    if (e.output < 0) {
      fail(ErrorCode::invalid_argument, "edge \"{}\" -> \"{}\": output is {}", name,
           graph.ops[e.to].name, e.output);
    }
    const auto [at, is_new] = tensors.try_emplace({e.from, e.output}, e.bytes);
    if (!is_new && at->second != e.bytes) {
      fail(ErrorCode::invalid_argument,
           "edge \"{}\" -> \"{}\": bytes is {}, another edge says {} of the same output {}", name,
           graph.ops[e.to].name, e.bytes, at->second, e.output);
    }
  }
  for (const auto& [name, value] : {std::pair{"state_factor", graph.state_factor},
                                    std::pair{"optimizer_factor", graph.optimizer_factor}}) {
    if (!(value >= 0 && value <= 1000)) {
      fail(ErrorCode::invalid_argument, "{} is {}, it must be from 0 to 1000", name, value);
    }
  }
  check_fused(graph);
  check_acyclic(graph);
}

bool allows(const Op& op, int tensor, bool recompute) {
  if (find_variant(op, tensor, recompute) != nullptr) return true;
  return splits(op, tensor) && (!recompute || op.recomputable);
}

OpCost cost_of(const Op& op, int tensor, bool recompute, double input_bytes) {
  DUCTILE_CHECK(allows(op, tensor, recompute), "operator {}, degree {}", op.name, tensor);
  const OpVariant* measured = recompute ? find_variant(op, tensor, true) : nullptr;
  OpCost c = measured != nullptr ? measured->cost : split_cost(op, tensor);
  const double all_reduce = 2 * std::ceil(std::log2(tensor));
  c.tensor_forward_rounds = c.tensor_forward_bytes > 0 ? all_reduce : 0;
  c.tensor_backward_rounds = c.tensor_backward_bytes > 0 ? all_reduce : 0;
  if (!recompute) return c;
  c.tensor_backward_rounds += c.tensor_forward_rounds;
  if (measured != nullptr) return c;
  c.backward_input += c.forward;
  c.tensor_backward_bytes += c.tensor_forward_bytes;
  const double kept = std::min(input_bytes, c.activation_bytes);
  c.workspace_bytes.per_sample += c.activation_bytes - kept;
  c.workspace_bytes.fixed += c.activation_fixed;
  c.activation_bytes = kept;
  c.activation_fixed = 0;
  return c;
}

std::vector<double> input_bytes(const Graph& graph) {
  std::vector<const Edge*> edges;
  for (const Edge& e : graph.edges) edges.push_back(&e);
  const auto key = [](const Edge* e) { return std::tuple(e->to, e->from, e->output); };
  std::sort(edges.begin(), edges.end(),
            [&](const Edge* a, const Edge* b) { return key(a) < key(b); });
  std::vector<double> bytes(graph.ops.size());
  for (size_t i = 0; i < edges.size(); ++i) {
    if (i == 0 || key(edges[i]) != key(edges[i - 1])) bytes[edges[i]->to] += edges[i]->bytes;
  }
  return bytes;
}

Topology::Topology(const Graph& graph) {
  std::vector<std::pair<OpId, OpId>> edges;
  edges.reserve(graph.edges.size());
  for (const Edge& e : graph.edges) edges.emplace_back(e.from, e.to);
  build(static_cast<int>(graph.ops.size()), std::move(edges));
}

Topology::Topology(int num_ops, std::span<const std::pair<OpId, OpId>> edges) {
  build(num_ops, {edges.begin(), edges.end()});
}

void Topology::build(int num_ops, std::vector<std::pair<OpId, OpId>> edges) {
  const auto rows = [&](std::vector<int64_t>& begin, std::vector<OpId>& to) {
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    begin.assign(static_cast<size_t>(num_ops) + 1, 0);
    for (const auto& [a, b] : edges) ++begin[a + 1];
    for (int i = 0; i < num_ops; ++i) begin[i + 1] += begin[i];
    to.clear();
    for (const auto& [a, b] : edges) to.push_back(b);
  };
  rows(next_begin_, next_);
  for (auto& [a, b] : edges) std::swap(a, b);
  rows(previous_begin_, previous_);

  std::vector<int> waiting(num_ops);
  std::priority_queue<OpId, std::vector<OpId>, std::greater<>> ready;
  for (OpId op = 0; op < num_ops; ++op) {
    waiting[op] = static_cast<int>(predecessors(op).size());
    if (waiting[op] == 0) ready.push(op);
  }
  while (!ready.empty()) {
    const OpId op = ready.top();
    ready.pop();
    order_.push_back(op);
    for (OpId to : successors(op)) {
      if (--waiting[to] == 0) ready.push(to);
    }
  }
  if (static_cast<int>(order_.size()) != num_ops) {
    fail(ErrorCode::invalid_argument, "the graph has a cycle ({} of {} nodes are in or behind it)",
         num_ops - static_cast<int>(order_.size()), num_ops);
  }
  position_.resize(num_ops);
  for (int i = 0; i < num_ops; ++i) position_[order_[i]] = i;
}

}  // namespace ductile::graph
