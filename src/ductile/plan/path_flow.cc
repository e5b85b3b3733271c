#include <algorithm>

#include "ductile/graph/reduce.h"
#include "ductile/plan/path_flow_impl.h"

namespace ductile::plan {

namespace {

double work_of(const graph::OpCost& c) {
  return c.total_per_sample() + c.forward.fixed + c.backward_input.fixed + c.backward_weight.fixed;
}

// Shares of an operator's flow that come from each operator before it: edges of the transitive
// reduction alone, in proportion to the square of the longest path there, so that short branches,
// which hold nothing up, count little.
struct Shares {
  std::vector<std::vector<std::pair<OpId, double>>> before;  // of each operator
  std::vector<double> flow;                                  // through each operator
  std::vector<double> begins;

  explicit Shares(const SearchSpace& space) {
    const graph::Graph& graph = space.graph();
    const graph::Topology& topology = space.topology();
    const int n = topology.num_ops();
    before.resize(n);
    flow.assign(n, 0);
    begins.assign(n, 0);
    for (const auto& [u, v] : graph::transitive_reduction(topology)) before[v].push_back({u, 0});
    std::vector<double> path(n, 0);
    double ends = 0;
    for (OpId v : topology.order()) {
      double longest = 0;
      for (const auto& [u, share] : before[v]) longest = std::max(longest, path[u]);
      path[v] = longest + std::max(work_of(graph.ops[v].cost), 1e-30);
      double sum = 0;
      for (auto& [u, share] : before[v]) sum += share = path[u] * path[u];
      for (auto& [u, share] : before[v]) share /= sum;
      if (topology.successors(v).empty()) ends += path[v] * path[v];
    }
    const auto order = topology.order();
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      const OpId v = *it;
      if (topology.successors(v).empty()) flow[v] = path[v] * path[v] / ends;
      if (before[v].empty()) begins[v] = flow[v];
      for (const auto& [u, share] : before[v]) flow[u] += share * flow[v];
    }
  }
};

// The flow over each edge of the operators, by colour, and how much of it turns where.
struct OpFlows {
  struct Edge {
    OpId to;
    PathFlow::Amount amount;
  };
  std::vector<std::vector<Edge>> next;  // what leaves each operator
  std::vector<double> turns;            // at each operator

  OpFlows(const Shares& shares, const graph::Topology& topology, std::span<const double> turn_share)
      : next(shares.flow.size()), turns(shares.flow.size(), 0) {
    const size_t n = shares.flow.size();
    std::vector<PathFlow::Amount> in(n);
    for (OpId v = 0; v < static_cast<OpId>(n); ++v) {
      for (const auto& [u, share] : shares.before[v]) {
        const double part = shares.flow[u] > 0 ? share * shares.flow[v] / shares.flow[u] : 0;
        next[u].push_back({v, {part, 0}});  // the share for now
      }
      in[v].forward = shares.begins[v];
    }
    for (OpId v : topology.order()) {
      turns[v] = turn_share[v] * in[v].forward;
      const double round = in[v].round_trip + turns[v];
      const double forward = in[v].forward - turns[v];
      for (Edge& e : next[v]) {
        const double part = e.amount.round_trip;
        e.amount = {part * round, part * forward};
        in[e.to].round_trip += e.amount.round_trip;
        in[e.to].forward += e.amount.forward;
      }
    }
  }
};

}  // namespace

PathFlow PathFlow::round_trip(const SearchSpace& space) {
  return PathFlow(space, std::vector<double>(space.graph().ops.size(), 1));
}

PathFlow PathFlow::by_parameters(const SearchSpace& space) {
  // Of the parameters from an operator to the end, its own share.
  const auto& ops = space.graph().ops;
  std::vector<double> ahead(ops.size(), 0), share(ops.size(), 1);
  const auto order = space.topology().order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    for (OpId w : space.topology().successors(*it)) ahead[*it] = std::max(ahead[*it], ahead[w]);
    const double own = ops[*it].cost.parameter_bytes;
    ahead[*it] += own;
    if (!space.topology().successors(*it).empty()) {
      share[*it] = ahead[*it] > 0 ? own / ahead[*it] : 1;
    }
  }
  return PathFlow(space, share);
}

PathFlow::PathFlow(const SearchSpace& space, std::span<const double> turn_share) {
  const Shares shares(space);
  const OpFlows flows(shares, space.topology(), turn_share);
  const auto states = space.states();
  const int last = static_cast<int>(states.size()) - 1;
  states_.resize(states.size());
  groups_.resize(space.groups().size());
  if (space.is_chain()) {
    for (int s = last - 1; s >= 0; --s) {
      states_[s].begins = states_[s + 1].begins;
      states_[s].turns = states_[s + 1].turns;
      for (int i = states[s + 1].size; i < states[s].size; ++i) {
        states_[s].begins += shares.begins[space.chain()[i]];
        states_[s].turns += flows.turns[space.chain()[i]];
      }
    }
  } else {
    for (int s = 0; s < last; ++s) {
      for (OpId v : space.stage_ops(s, last)) {
        states_[s].begins += shares.begins[v];
        states_[s].turns += flows.turns[v];
      }
    }
  }
  std::vector<std::pair<OpId, Amount>> leaving;  // of a state: its operators read from outside
  bool any_past = false;
  std::vector<Amount> past(space.transitions().size());
  for (int s = 0; s < last; ++s) {
    leaving.clear();
    for (int g = 0; g < states[s].num_groups; ++g) {
      const int number = states[s].first_group + g;
      const SearchSpace::Group& group = space.groups()[number];
      for (int i = 0; i < group.size; ++i) {
        const OpId v = space.member(group.first + i);
        Amount a;
        for (const OpFlows::Edge& e : flows.next[v]) {
          if (space.rest_contains(s, e.to)) continue;
          a.round_trip += e.amount.round_trip;
          a.forward += e.amount.forward;
        }
        groups_[number].round_trip += a.round_trip;
        groups_[number].forward += a.forward;
        states_[s].out.round_trip += a.round_trip;
        states_[s].out.forward += a.forward;
        if (a.round_trip > 0 || a.forward > 0) leaving.push_back({v, a});
      }
    }
    const int first = states[s].first_transition;
    if (space.is_chain()) {
      std::sort(leaving.begin(), leaving.end(), [&](const auto& a, const auto& b) {
        return space.chain_position(a.first) > space.chain_position(b.first);
      });
      Amount sum = states_[s].out;
      size_t i = 0;
      for (int t = first; t < first + states[s].num_transitions; ++t) {
        const int size = states[space.transitions()[t].to].size;
        for (; i < leaving.size() && space.chain_position(leaving[i].first) >= size; ++i) {
          sum.round_trip -= leaving[i].second.round_trip;
          sum.forward -= leaving[i].second.forward;
        }
        if (i == leaving.size()) break;
        past[t] = sum;
        any_past = true;
      }
    } else {
      for (int t = first; t < first + states[s].num_transitions; ++t) {
        for (const auto& [v, a] : leaving) {
          if (!space.rest_contains(space.transitions()[t].to, v)) continue;
          past[t].round_trip += a.round_trip;
          past[t].forward += a.forward;
          any_past = true;
        }
      }
    }
  }
  if (any_past) past_ = std::move(past);
}

}  // namespace ductile::plan
