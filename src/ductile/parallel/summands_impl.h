#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ductile/comm/canonical.h"
#include "ductile/parallel/exchange.h"

namespace ductile::parallel {

// The vectors that an exchange adds up, and which of them have something where. They are the nodes
// of all workers (ExchangeLayout::nodes), numbered in leaf order.
class Summands {
 public:
  explicit Summands(const ExchangeLayout& layout) {
    for (int r = 0; r < layout.num_workers(); ++r) {
      const std::vector<comm::LeafRange> nodes = layout.nodes(r);
      for (size_t i = 0; i < nodes.size(); ++i) {
        places_.emplace_back(r, i);
        filled_.push_back(layout.filled(nodes[i]));
      }
    }
  }

  // The worker of a summand, and which of its nodes it is.
  std::pair<int, size_t> place(int summand) const { return places_[static_cast<size_t>(summand)]; }

  // A part of a vector in which the same summands, in rising order, have something.
  struct Piece {
    FloatRange range;
    std::vector<int> summands;
  };
  // `range` in such pieces, in rising order.
  std::vector<Piece> pieces(const FloatRange& range) const {
    std::vector<int64_t> cuts = {range.begin, range.end};
    for (const std::vector<FloatRange>& filled : filled_) {
      for (const FloatRange& f : filled) {
        for (const int64_t cut : {f.begin, f.end}) {
          if (range.begin < cut && cut < range.end) cuts.push_back(cut);
        }
      }
    }
    std::ranges::sort(cuts);
    cuts.erase(std::ranges::unique(cuts).begin(), cuts.end());
    std::vector<Piece> out;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::vector<int> there = summands_at(cuts[i]);
      if (!out.empty() && out.back().summands == there) {
        out.back().range.end = cuts[i + 1];
      } else {
        out.push_back({{cuts[i], cuts[i + 1]}, std::move(there)});
      }
    }
    return out;
  }

  // The additions that are left of `steps`, which are over all summands, where these alone have
  // something: adding zero changes nothing. They are numbered by their places in `there`.
  std::vector<comm::Combine> among(std::span<const comm::Combine> steps,
                                   std::span<const int> there) const {
    std::vector<int> value(places_.size(), -1);  // where the value of each summand is
    for (size_t i = 0; i < there.size(); ++i) {
      value[static_cast<size_t>(there[i])] = static_cast<int>(i);
    }
    std::vector<comm::Combine> out;
    for (const comm::Combine& step : steps) {
      int& left = value[static_cast<size_t>(step.left)];
      const int right = value[static_cast<size_t>(step.right)];
      if (right < 0) continue;
      if (left < 0) {
        left = right;
      } else {
        out.push_back({left, right});
      }
    }
    return out;
  }

 private:
  std::vector<int> summands_at(int64_t element) const {
    std::vector<int> out;
    for (size_t s = 0; s < filled_.size(); ++s) {
      const bool there = std::ranges::any_of(
          filled_[s], [&](const FloatRange& f) { return f.begin <= element && element < f.end; });
      if (there) out.push_back(static_cast<int>(s));
    }
    return out;
  }

  std::vector<std::pair<int, size_t>> places_;
  std::vector<std::vector<FloatRange>> filled_;  // of each
};

}  // namespace ductile::parallel
