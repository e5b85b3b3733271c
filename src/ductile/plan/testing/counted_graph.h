#pragma once

#include <vector>

#include "ductile/base/rng.h"
#include "ductile/graph/graph.h"

namespace ductile::plan {

// Some neighbours of which nobody else reads the first or is read by the second.
inline void fuse_some(graph::Graph& graph, Rng& rng) {
  std::vector<int> made(graph.ops.size()), read(graph.ops.size());
  for (const graph::Edge& e : graph.edges) ++made[e.from], ++read[e.to];
  std::vector<bool> in_pair(graph.ops.size(), false);
  for (graph::Edge& e : graph.edges) {
    const bool alone = e.to == e.from + 1 && made[e.from] == 1 && read[e.to] == 1;
    if (!alone || in_pair[e.from] || in_pair[e.to] || rng.below(3) == 0) continue;
    e.fused = in_pair[e.from] = in_pair[e.to] = true;
  }
}

// Gives the graph bytes as `ductile profile` counts them, drawn at random, whole numbers: each
// operator keeps what it makes and more.
inline void count_bytes(graph::Graph& graph, Rng& rng) {
  const auto some = [&] { return graph::Affine{double(rng.below(3)), double(rng.below(40))}; };
  const auto most = [&] {  // some are no lines
    if (rng.below(4) != 0) return graph::MostBytes(some());
    graph::MostBytes out;
    out.points = {{1, double(rng.below(40))}, {4, 40}, {9, 200}};
    return out;
  };
  graph.counted = true;
  for (graph::Op& op : graph.ops) {
    graph::OpCost& c = op.cost;
    op.recomputable = true;
    c.sample_bytes = rng.below(4) == 0 ? double(rng.below(20)) : 0;
    c.activation_bytes = c.sample_bytes + double(rng.below(40));
    c.activation_fixed = double(rng.below(3));
    c.waits = rng.below(2) == 0;
    c.waiting_bytes = c.waits ? some() : graph::Affine{};
    c.passes = {most(), most(), most(), most()};
  }
  for (size_t i = 0; i < graph.edges.size(); ++i) {
    graph::Edge& e = graph.edges[i];
    bool is_first = true;
    const graph::Edge* same = nullptr;
    for (size_t k = 0; k < i; ++k) {
      const graph::Edge& other = graph.edges[k];
      if (other.from != e.from || other.output != e.output) continue;
      is_first = false;
      e.bytes = other.bytes;
      if (other.to == e.to) same = &other;
    }
    if (is_first) {
      e.bytes = double(1 + rng.below(30));
      graph.ops[e.from].cost.activation_bytes += e.bytes;
    }
    if (same != nullptr) {
      e.gradient_bytes = same->gradient_bytes;
    } else if (rng.below(4) == 0) {
      e.gradient_bytes = 0;
    }
  }
  fuse_some(graph, rng);
}

}  // namespace ductile::plan
