#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/plan/search_space_impl.h"

namespace ductile::plan {

using graph::Affine;
using graph::Graph;
using graph::OpCost;
using graph::OpSet;

namespace {

constexpr int kMaxGroups = 64;  // bits of Transition::touched

bool has_workspace(const OpCost& c) {
  return c.workspace_bytes.fixed > 0 || c.workspace_bytes.per_sample > 0;
}

Affine larger(const Affine& a, const Affine& b) {
  return {std::max(a.fixed, b.fixed), std::max(a.per_sample, b.per_sample)};
}

Affine minus(const Affine& a, const Affine& b) {
  return {a.fixed - b.fixed, a.per_sample - b.per_sample};
}

}  // namespace

SearchSpace::SearchSpace(const Graph& graph) : graph_(&graph), topology_(graph) {
  variants_.push_back({1, false});
  std::vector<int> degrees = {1};
  bool recompute = false;
  for (const graph::Op& op : graph.ops) {
    recompute = recompute || op.recomputable;
    for (int t = 2; t <= op.max_split; t *= 2) degrees.push_back(t);
    for (const graph::OpVariant& v : op.variants) {
      degrees.push_back(v.tensor);
      recompute = recompute || v.recompute;
    }
  }
  std::sort(degrees.begin(), degrees.end());
  degrees.erase(std::unique(degrees.begin(), degrees.end()), degrees.end());
  variants_.clear();
  for (int t : degrees) {
    variants_.push_back({t, false});
    if (recompute) variants_.push_back({t, true});
  }
  const std::vector<double> inputs = graph::input_bytes(graph);
  op_costs_.reserve(graph.ops.size() * variants_.size());
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const graph::Op& op = graph.ops[i];
    for (const Variant& v : variants_) {
      // As stage_sums() does: what cannot be split runs whole, what cannot be recomputed is kept.
      const int t = graph::allows(op, v.tensor, false) ? v.tensor : 1;
      const bool r = v.recompute && graph::allows(op, t, true);
      op_costs_.push_back(graph::cost_of(op, t, r, inputs[i]));
    }
  }
}

std::vector<OpId> SearchSpace::stage_ops(int from, int to) const {
  std::vector<OpId> ops;
  if (is_chain_) {
    ops.assign(chain_.begin() + states_[to].size, chain_.begin() + states_[from].size);
    std::sort(ops.begin(), ops.end());
  } else {
    ops = (rests_[from] - rests_[to]).to_vector();
  }
  return ops;
}

StageSums SearchSpace::plain_sums(int from, int to, int v) const {
  const StageSums& a = rest_sums(from, v);
  const StageSums& b = rest_sums(to, v);
  StageSums s;
  s.forward = minus(a.forward, b.forward);
  s.backward_input = minus(a.backward_input, b.backward_input);
  s.backward_weight = minus(a.backward_weight, b.backward_weight);
  s.parameter_bytes = a.parameter_bytes - b.parameter_bytes;
  s.activation_bytes = a.activation_bytes - b.activation_bytes;
  s.activation_fixed = a.activation_fixed - b.activation_fixed;
  s.fixed_bytes = a.fixed_bytes - b.fixed_bytes;
  s.tensor_forward_bytes = a.tensor_forward_bytes - b.tensor_forward_bytes;
  s.tensor_backward_bytes = a.tensor_backward_bytes - b.tensor_backward_bytes;
  s.tensor_forward_rounds = a.tensor_forward_rounds - b.tensor_forward_rounds;
  s.tensor_backward_rounds = a.tensor_backward_rounds - b.tensor_backward_rounds;
  return s;
}

StageSums SearchSpace::sums(int from, int t, int v) const {
  StageSums s = plain_sums(from, transitions_[t].to, v);
  if (!workspace_.empty()) s.workspace_bytes = workspace_[v][t];
  if (!tied_.empty()) s.parameter_bytes -= tied_[v][t];
  return s;
}

// Makes states, groups and transitions of a family of downsets.
class SpaceBuilder {
 public:
  explicit SpaceBuilder(const Graph& graph) : space_(graph), graph_(graph) {
    const int n = static_cast<int>(graph.ops.size());
    tensors_of_.resize(n);
    inputs_of_.resize(n);
    std::unordered_map<uint64_t, int> number;
    for (const graph::Edge& e : graph.edges) {
      const uint64_t key = static_cast<uint64_t>(e.from) << 32 | static_cast<uint32_t>(e.output);
      const auto [it, fresh] = number.try_emplace(key, static_cast<int>(tensors_.size()));
      if (fresh) {
        tensors_.push_back({e.bytes, {}});
        tensors_of_[e.from].push_back(it->second);
      }
      auto& readers = tensors_[it->second].readers;
      if (std::find(readers.begin(), readers.end(), e.to) == readers.end()) {
        readers.push_back(e.to);
        inputs_of_[e.to].push_back(it->second);
      }
    }
    counted_.assign(tensors_.size(), -1);
    for (const graph::Op& op : graph.ops) {
      any_tied_ = any_tied_ || op.tied >= 0;
    }
    for (const OpCost& c : space_.op_costs_) any_workspace_ = any_workspace_ || has_workspace(c);
    if (any_workspace_) space_.workspace_.resize(space_.variants_.size());
    if (any_tied_) space_.tied_.resize(space_.variants_.size());
  }

  // `sizes`: of the prefixes that are states, descending from all operators to none.
  SearchSpace chain(std::vector<OpId> order, const std::vector<int>& sizes) {
    space_.is_chain_ = true;
    const int n = static_cast<int>(order.size());
    const int last = static_cast<int>(sizes.size()) - 1;
    position_.resize(n);
    for (int i = 0; i < n; ++i) position_[order[i]] = i;
    space_.chain_ = std::move(order);
    space_.chain_position_ = position_;
    space_.states_.resize(sizes.size());
    // Per operator the position of its last reader, and the group it is in at the state at hand.
    last_reader_.assign(n, -1);
    for (OpId v = 0; v < n; ++v) {
      for (OpId w : space_.topology_.successors(v)) {
        last_reader_[v] = std::max(last_reader_[v], position_[w]);
      }
    }
    for (int s = 0; s <= last; ++s) {
      const int rest = sizes[s];
      space_.states_[s].size = rest;
      make_groups(
          s, [&](OpId v) { return position_[v] < rest; }, std::span(space_.chain_).first(rest),
          [&](OpId v) { return last_reader_[v] >= rest; });
    }
    make_rest_sums([](int) { return std::vector<OpId>(); });
    for (int s = 0; s < last; ++s) {
      start(s);
      const int end = sizes[s];
      mark_groups(s);
      int to = s + 1;
      for (int i = end - 1; i >= 0; --i) {
        add_op(space_.chain_[i], [&](OpId w) { return position_[w] < end; });
        if (i != sizes[to]) continue;
        finish(to++, [&](OpId w) { return position_[w] >= i && position_[w] < end; });
      }
      stop(s);
    }
    return std::move(space_);
  }

  // `rests`: distinct downsets, the whole graph and the empty one among them. False past the cap.
  bool family(std::vector<OpSet> rests, int64_t max_work, SearchSpace& out) {
    const int n = static_cast<int>(graph_.ops.size());
    std::vector<int> size(rests.size());
    std::vector<int> by_size(rests.size());
    std::iota(by_size.begin(), by_size.end(), 0);
    for (size_t i = 0; i < rests.size(); ++i) size[i] = rests[i].size();
    std::stable_sort(by_size.begin(), by_size.end(),
                     [&](int a, int b) { return size[a] > size[b]; });
    for (int i : by_size) space_.rests_.push_back(std::move(rests[i]));
    const int num = static_cast<int>(space_.rests_.size());
    space_.states_.resize(num);
    position_.resize(n);
    for (int i = 0; i < n; ++i) position_[i] = space_.topology_.position(i);
    for (int s = 0; s < num; ++s) {
      const OpSet& rest = space_.rests_[s];
      const std::vector<OpId> ops = rest.to_vector();
      space_.states_[s].size = static_cast<int>(ops.size());
      make_groups(
          s, [&](OpId v) { return rest.contains(v); }, ops,
          [&](OpId v) {
            for (OpId w : space_.topology_.successors(v)) {
              if (!rest.contains(w)) return true;
            }
            return false;
          });
    }
    make_rest_sums([&](int s) { return space_.rests_[s].to_vector(); });
    int64_t work = 0;
    for (int s = 0; s < num; ++s) {
      const OpSet& rest = space_.rests_[s];
      mark_groups(s);
      space_.states_[s].first_transition = static_cast<int32_t>(space_.transitions_.size());
      for (int to = s + 1; to < num; ++to) {
        if (space_.states_[to].size == space_.states_[s].size) continue;
        if (!space_.rests_[to].is_subset_of(rest)) continue;
        start(s, false);
        std::vector<OpId> ops = (rest - space_.rests_[to]).to_vector();
        std::sort(ops.begin(), ops.end(),
                  [&](OpId a, OpId b) { return position_[a] > position_[b]; });
        work += static_cast<int64_t>(ops.size());
        if (work > max_work) return false;
        for (OpId v : ops) {
          add_op(v, [&](OpId w) { return rest.contains(w); });
        }
        const OpSet& target = space_.rests_[to];
        finish(to, [&](OpId w) { return rest.contains(w) && !target.contains(w); });
      }
      stop(s);
    }
    out = std::move(space_);
    return true;
  }

 private:
  struct Tensor {
    double bytes = 0;
    std::vector<OpId> readers;
  };

  template <class InRest, class Read>
  void make_groups(int s, const InRest& in_rest, std::span<const OpId> ops, const Read& is_read) {
    SearchSpace::State& state = space_.states_[s];
    state.first_group = static_cast<int32_t>(space_.groups_.size());
    std::vector<std::pair<std::vector<OpId>, OpId>> read;
    for (OpId v : ops) {
      if (!is_read(v)) continue;
      std::vector<OpId> readers;
      for (OpId w : space_.topology_.successors(v)) {
        if (!in_rest(w)) readers.push_back(w);
      }
      read.emplace_back(std::move(readers), v);
    }
    std::sort(read.begin(), read.end());
    for (size_t i = 0; i < read.size();) {
      size_t end = i;
      const int first = static_cast<int>(space_.members_.size());
      const bool rest =
          static_cast<int>(space_.groups_.size()) - state.first_group == kMaxGroups - 1;
      while (end < read.size() && (rest || read[end].first == read[i].first)) {
        if (read[end].first != read[i].first) space_.merges_groups_ = true;
        space_.members_.push_back(read[end++].second);
      }
      space_.groups_.push_back({read[i].second, first, static_cast<int>(end - i)});
      i = end;
    }
    state.num_groups = static_cast<int32_t>(space_.groups_.size()) - state.first_group;
  }

  template <class Ops>
  void make_rest_sums(const Ops& ops_of) {
    const size_t num_variants = space_.variants_.size();
    space_.rest_sums_.resize(space_.states_.size() * num_variants);
    space_.splittable_.resize(space_.rest_sums_.size());
    const auto add = [&](size_t s, OpId op) {
      for (size_t v = 0; v < num_variants; ++v) {
        space_.rest_sums_[s * num_variants + v].add(space_.op_cost(op, static_cast<int>(v)));
        const int t = space_.variants_[v].tensor;
        if (t > 1 && graph::allows(graph_.ops[op], t, false)) {
          ++space_.splittable_[s * num_variants + v];
        }
      }
    };
    for (size_t s = space_.states_.size(); s-- > 0;) {
      if (!space_.is_chain_) {
        for (OpId op : ops_of(static_cast<int>(s))) add(s, op);
      } else if (s + 1 < space_.states_.size()) {  // cumulative
        for (size_t v = 0; v < num_variants; ++v) {
          const size_t before = (s + 1) * num_variants + v;
          space_.rest_sums_[s * num_variants + v] = space_.rest_sums_[before];
          space_.splittable_[s * num_variants + v] = space_.splittable_[before];
        }
        for (int i = space_.states_[s + 1].size; i < space_.states_[s].size; ++i) {
          add(s, space_.chain_[i]);
        }
      }
    }
  }

  void mark_groups(int s) {
    group_of_.assign(graph_.ops.size(), -1);
    const SearchSpace::State& state = space_.states_[s];
    for (int g = 0; g < state.num_groups; ++g) {
      const SearchSpace::Group& group = space_.groups_[state.first_group + g];
      for (int i = 0; i < group.size; ++i) {
        group_of_[space_.members_[group.first + i]] = static_cast<int16_t>(g);
      }
    }
  }

  void start(int s, bool new_state = true) {
    if (new_state) {
      space_.states_[s].first_transition = static_cast<int32_t>(space_.transitions_.size());
    }
    ++stamp_;
    in_ = out_ = 0;
    touched_ = 0;
    if (any_workspace_) workspace_.assign(space_.variants_.size(), Affine{});
    if (any_tied_) tied_.assign(space_.variants_.size(), 0);
  }

  // The next operator of the stage, all of whose readers within the rest are in it already.
  template <class InRest>
  void add_op(OpId v, const InRest& in_rest) {
    for (int t : tensors_of_[v]) {
      for (OpId w : tensors_[t].readers) {
        if (!in_rest(w)) {
          out_ += tensors_[t].bytes;
          break;
        }
      }
      if (counted_[t] == stamp_) in_ -= tensors_[t].bytes;
    }
    for (int t : inputs_of_[v]) {
      if (counted_[t] != stamp_) {
        counted_[t] = stamp_;
        in_ += tensors_[t].bytes;
      }
    }
    if (group_of_[v] >= 0) touched_ |= uint64_t{1} << group_of_[v];
    const size_t num_variants = space_.variants_.size();
    for (size_t k = 0; any_workspace_ && k < num_variants; ++k) {
      workspace_[k] = larger(workspace_[k], space_.op_cost(v, static_cast<int>(k)).workspace_bytes);
    }
    if (any_tied_) add_tied(v);
  }

  // Weights tied within the stage count once: those of the lowest number, as stage_sums() does.
  void add_tied(OpId v) {
    const int c = graph_.ops[v].tied;
    if (c < 0) return;
    auto& seen = tied_by_class_[c];
    if (seen.stamp != stamp_) {
      seen = {stamp_, v};
      return;
    }
    const OpId keep = std::min(seen.op, v);
    const OpId twice = std::max(seen.op, v);
    seen.op = keep;
    for (size_t k = 0; k < tied_.size(); ++k) {
      tied_[k] += space_.op_cost(twice, static_cast<int>(k)).parameter_bytes;
    }
  }

  template <class InStage>
  void finish(int to, const InStage& in_stage) {
    SearchSpace::Transition t;
    t.to = to;
    t.touched = touched_;
    t.in = in_;
    t.out = out_;
    t.map = static_cast<int32_t>(space_.maps_.size());
    const SearchSpace::State& target = space_.states_[to];
    for (int g = 0; g < target.num_groups; ++g) {
      const SearchSpace::Group& group = space_.groups_[target.first_group + g];
      SearchSpace::MapEntry e;
      const int num = g == kMaxGroups - 1 ? group.size : 1;  // alike but in the last group
      for (int i = 0; i < num; ++i) {
        const OpId x = space_.members_[group.first + i];
        if (group_of_[x] >= 0) e.old |= uint64_t{1} << group_of_[x];
        for (OpId w : space_.topology_.successors(x)) {
          if (in_stage(w)) e.reads_stage = true;
        }
      }
      space_.maps_.push_back(e);
    }
    space_.transitions_.push_back(t);
    for (size_t v = 0; v < workspace_.size(); ++v) space_.workspace_[v].push_back(workspace_[v]);
    for (size_t v = 0; v < tied_.size(); ++v) space_.tied_[v].push_back(tied_[v]);
  }

  void stop(int s) {
    SearchSpace::State& state = space_.states_[s];
    state.num_transitions =
        static_cast<int32_t>(space_.transitions_.size()) - state.first_transition;
  }

  struct Seen {
    int stamp = -1;
    OpId op = 0;
  };
  SearchSpace space_;
  const Graph& graph_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<int>> tensors_of_, inputs_of_;
  std::vector<int> position_, last_reader_, counted_;
  std::vector<int16_t> group_of_;
  std::unordered_map<int, Seen> tied_by_class_;
  std::vector<Affine> workspace_;
  std::vector<double> tied_;
  double in_ = 0, out_ = 0;
  uint64_t touched_ = 0;
  int stamp_ = 0;
  bool any_workspace_ = false, any_tied_ = false;
};

bool SearchSpace::all_downsets(const Graph& graph, int64_t max_transitions, SearchSpace& out) {
  const int n = static_cast<int>(graph.ops.size());
  SpaceBuilder builder(graph);
  const graph::Topology topology(graph);
  std::unordered_map<OpSet, int, graph::OpSetHash> known;
  std::vector<OpSet> rests;
  OpSet all(n);
  for (int i = 0; i < n; ++i) all.insert(i);
  known.emplace(all, 0);
  rests.push_back(all);
  // S downsets have at least S (S + 1) / 2 pairs in a chain, at most S^2 / 2; a wide graph has few
  // nested ones, so states are allowed up to a few times the square root.
  const size_t max_states = 64 + static_cast<size_t>(4 * std::sqrt(2.0 * max_transitions));
  if (static_cast<size_t>(n) >= max_states) return false;  // there are n + 1 at least
  bool chain = true;
  for (size_t i = 0; i < rests.size(); ++i) {
    int ends = 0;
    for (OpId v = 0; v < n; ++v) {
      if (!rests[i].contains(v)) continue;
      bool last = true;
      for (OpId w : topology.successors(v)) last = last && !rests[i].contains(w);
      if (!last) continue;
      ++ends;
      OpSet next = rests[i];
      next.erase(v);
      if (known.emplace(next, static_cast<int>(rests.size())).second) {
        rests.push_back(std::move(next));
        if (rests.size() > max_states) return false;
      }
    }
    chain = chain && ends <= 1;
  }
  if (chain) {
    if (static_cast<int64_t>(n) * (n + 1) / 2 > max_transitions) return false;
    std::vector<int> sizes(n + 1);
    for (int i = 0; i <= n; ++i) sizes[i] = n - i;
    out = builder.chain({topology.order().begin(), topology.order().end()}, sizes);
    return true;
  }
  return builder.family(std::move(rests), max_transitions * 8, out) &&
         static_cast<int64_t>(out.transitions_.size()) <= max_transitions;
}

SearchSpace SearchSpace::of_orders(const Graph& graph, std::span<const std::vector<OpId>> orders) {
  SpaceBuilder builder(graph);
  std::unordered_map<OpSet, int, graph::OpSetHash> known;
  std::vector<OpSet> rests;
  for (const std::vector<OpId>& order : orders) {
    OpSet rest(static_cast<int>(order.size()));
    for (size_t i = 0; i <= order.size(); ++i) {
      if (i > 0) rest.insert(order[i - 1]);
      if (known.emplace(rest, 0).second) rests.push_back(rest);
    }
  }
  SearchSpace out;
  DUCTILE_CHECK(builder.family(std::move(rests), std::numeric_limits<int64_t>::max(), out));
  return out;
}

SearchSpace SearchSpace::of_order(const Graph& graph, std::vector<OpId> order, int max_states) {
  const int n = static_cast<int>(order.size());
  std::vector<int> sizes = {n};
  if (n < max_states) {
    for (int i = n - 1; i > 0; --i) sizes.push_back(i);
  } else {
    std::vector<double> work(n + 1, 0);
    for (int i = 0; i < n; ++i) {
      const OpCost& c = graph.ops[order[i]].cost;
      work[i + 1] = work[i] + c.total_per_sample() + c.forward.fixed + c.backward_input.fixed +
                    c.backward_weight.fixed;
    }
    // Half of the cuts by work, half by number, so that neither long runs of small operators nor
    // heavy ones lie between two of them.
    std::vector<bool> cut(n + 1, false);
    const int half = std::max(1, (max_states - 2) / 2);
    for (int i = 1, k = 1; i < n; ++i) {
      if (work[i] >= work[n] * k / (half + 1)) {
        cut[i] = true;
        while (k <= half && work[i] >= work[n] * k / (half + 1)) ++k;
      }
    }
    for (int k = 1; k <= half; ++k) cut[static_cast<int64_t>(n) * k / (half + 1)] = true;
    for (int i = n - 1; i > 0; --i) {
      if (cut[i]) sizes.push_back(i);
    }
  }
  sizes.push_back(0);
  return SpaceBuilder(graph).chain(std::move(order), sizes);
}

std::vector<OpId> depth_first_order(const Graph& graph) {
  // Backwards from the sinks: an operator is taken once all its readers are, the most recently
  // freed first, so a branch is followed to its start before the next begins.
  const graph::Topology topology(graph);
  const int n = topology.num_ops();
  std::vector<int> open(n);
  std::vector<OpId> stack, order;
  for (OpId v = 0; v < n; ++v) {
    open[v] = static_cast<int>(topology.successors(v).size());
    if (open[v] == 0) stack.push_back(v);
  }
  while (!stack.empty()) {
    const OpId v = stack.back();
    stack.pop_back();
    order.push_back(v);
    for (OpId u : topology.predecessors(v)) {
      if (--open[u] == 0) stack.push_back(u);
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

std::vector<OpId> level_order(const Graph& graph) {
  const graph::Topology topology(graph);
  const int n = topology.num_ops();
  // Levels counted from the sinks, so that branches of unequal length meet their join in step.
  std::vector<int> level(n, 0);
  std::vector<OpId> order(topology.order().begin(), topology.order().end());
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    for (OpId w : topology.successors(*it)) level[*it] = std::max(level[*it], level[w] + 1);
  }
  std::stable_sort(order.begin(), order.end(), [&](OpId a, OpId b) { return level[a] > level[b]; });
  return order;
}

std::vector<std::vector<OpId>> search_orders(const Graph& graph) {
  std::vector<std::vector<OpId>> orders = {depth_first_order(graph)};
  if (std::vector<OpId> level = level_order(graph); level != orders[0]) {
    orders.push_back(std::move(level));
  }
  return orders;
}

}  // namespace ductile::plan
