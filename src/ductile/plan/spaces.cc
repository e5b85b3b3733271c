#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ductile/plan/spaces_impl.h"

namespace ductile::plan {

namespace {

constexpr size_t kMaxChainStates = 1000;
constexpr size_t kManyStates = 300;  // of a space: it is searched with less effort
constexpr int kCoarseStates = 48;
constexpr double kSpaceShare = 0.2;      // of the time left, to make a space ...
constexpr double kSecondsPerCut = 1e-7;  // ... for each operator

}  // namespace

Spaces make_spaces(const graph::Graph& graph, const PlannerOptions& options,
                   Clock::time_point deadline) {
  Spaces out;
  out.orders = search_orders(graph);
  const size_t num_ops = graph.ops.size();
  size_t states = std::clamp<size_t>(static_cast<size_t>(std::sqrt(2.0 * options.max_transitions)),
                                     16, kMaxChainStates);
  SearchSpace all;
  if (SearchSpace::all_downsets(graph, options.max_transitions, all)) {
    out.text = fmt::format("all {} downsets", all.states().size());
    if (all.is_chain() && all.states().size() >= kManyStates) {
      out.coarse.push_back(SearchSpace::of_order(graph, out.orders[0], kCoarseStates));
    }
    out.full.push_back(std::move(all));
    return out;
  }
  out.text = "cuts of the operators branch by branch";
  if (out.orders.size() > 1) out.text += ", and of those in step";
  if (std::min(num_ops + 1, states) >= kManyStates) {
    for (const std::vector<OpId>& order : out.orders) {
      out.coarse.push_back(SearchSpace::of_order(graph, order, kCoarseStates));
    }
    // Of a very large graph fewer cuts, where making them all would take the time there is.
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    const double most = kSpaceShare * std::max(left, 0.0) /
                        (kSecondsPerCut * static_cast<double>(num_ops * out.orders.size()));
    if (most < static_cast<double>(states)) states = static_cast<size_t>(most);
    if (states < 2 * kCoarseStates) {
      out.full = std::move(out.coarse);
      out.coarse.clear();
      out.cut_short = true;
    }
  }
  if (out.full.empty()) {
    for (const std::vector<OpId>& order : out.orders) {
      out.full.push_back(SearchSpace::of_order(graph, order, static_cast<int>(states)));
    }
  }
  if (out.full[0].states().size() <= num_ops) {
    out.text += fmt::format(", {} cuts each", out.full[0].states().size() - 2);
  }
  return out;
}

int unused_output(const graph::Graph& graph) {
  int output = 0;
  for (const graph::Edge& e : graph.edges) output = std::max(output, e.output + 1);
  return output;
}

graph::Graph in_a_row(const graph::Graph& graph, const std::vector<OpId>& order) {
  graph::Graph out = graph;
  const int output = unused_output(graph);
  for (size_t i = 1; i < order.size(); ++i) {
    out.edges.push_back({order[i - 1], order[i], output, 0});
  }
  return out;
}

Spaces chain_spaces(const graph::Graph& graph, const std::vector<OpId>& order) {
  Spaces out;
  out.orders.push_back(order);
  out.full.push_back(SearchSpace::of_order(graph, order, static_cast<int>(kManyStates)));
  out.text = "one chain of the operators";
  return out;
}

}  // namespace ductile::plan
