#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "ductile/tune/searchers_impl.h"

namespace ductile::tune {
namespace {

class RandomSearcher final : public Searcher {
 public:
  using Searcher::Searcher;

 private:
  Pick pick(Rng& rng, std::span<const int64_t>) override {
    return {.fresh = random_candidate(rng)};
  }
};

// `n` different whole numbers from low to high, evenly spaced on the scale of the dimension as far
// as they lie apart there.
std::vector<double> whole_levels(const Dimension& d, int64_t n) {
  std::vector<double> out;
  const double low = d.scale == Scale::log ? std::log(d.low) : d.low;
  const double high = d.scale == Scale::log ? std::log(d.high) : d.high;
  for (int64_t i = 0; i < n; ++i) {
    const double x = std::lerp(low, high, static_cast<double>(i) / static_cast<double>(n - 1));
    const double even = std::round(d.scale == Scale::log ? std::exp(x) : x);
    const double least = out.empty() ? d.low : out.back() + 1;
    out.push_back(std::clamp(even, least, d.high - static_cast<double>(n - 1 - i)));
  }
  return out;
}

// The points of a mixed-radix counter, taken in steps that have no divisor in common with their
// number and are near its golden section: whatever part of the grid is tried is spread over it. Of
// a grid with more points than anybody tries only the first dimensions are counted; the levels of
// the others are drawn.
class GridSearcher final : public Searcher {
 public:
  GridSearcher(std::string_view name, const Space& space, const SearcherOptions& options)
      : Searcher(name, space, options) {
    for (size_t d = 0; d < this->space().size(); ++d) {
      levels_.push_back(levels_of(d));
      const auto n = static_cast<int64_t>(levels_.back().size());
      if (num_counted_ < d || total_ > kMost / n) continue;
      total_ *= n;
      ++num_counted_;
    }
    stride_ = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(total_) * 0.618034));
    while (std::gcd(stride_, total_) != 1) ++stride_;
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 31;    // its square fits; nobody tries as many
  static constexpr uint64_t kDrawnLevels = 0x67726964;  // the stream of the draws

  std::vector<double> levels_of(size_t d) const {
    const Dimension& dimension = space().dimensions()[d];
    std::vector<double> out;
    if (dimension.kind == Kind::choice) {
      for (size_t i = 0; i < dimension.choices.size(); ++i) out.push_back(static_cast<double>(i));
      return out;
    }
    const double most = dimension.kind == Kind::integer ? dimension.high - dimension.low + 1
                                                        : std::numeric_limits<double>::infinity();
    const auto n =
        dimension.low == dimension.high
            ? 1
            : static_cast<int64_t>(std::min(static_cast<double>(options().levels), most));
    if (dimension.kind == Kind::integer && n > 1) return whole_levels(dimension, n);
    for (int64_t i = 0; i < n; ++i) {
      Point point(space().size(), 0.5);
      if (n > 1) point[d] = static_cast<double>(i) / static_cast<double>(n - 1);
      out.push_back(space().at(point)[d]);
    }
    return out;
  }

  // Without a list each point of the grid is another setting, so the number of trials says which
  // one is next.
  Pick pick(Rng&, std::span<const int64_t>) override {
    const auto nth = static_cast<int64_t>(trials().size() - options().first.size());
    const auto num_listed = static_cast<int64_t>(space().listed().size());
    if (num_listed > 0 && nth >= num_listed) return {};
    if (num_listed > 0)
      return {.fresh = Candidate{space().listed()[static_cast<size_t>(nth)], nth}};
    // Of the grid without the settings that came before it.
    const std::vector<Setting>& first = options().first;
    if (first.empty()) return at(nth);
    int64_t before = -1;
    for (int64_t place = 0; place < total_; ++place) {
      Pick point = at(place);
      const bool is_first =
          std::find(first.begin(), first.end(), point.fresh->setting) != first.end();
      if (!is_first && ++before == nth) return point;
    }
    return {};
  }

  Pick at(int64_t nth) const {
    if (nth >= total_) return {};
    int64_t rest = nth * stride_ % total_;
    Rng drawn(0, kDrawnLevels, static_cast<uint64_t>(nth));
    Setting setting;
    for (size_t d = 0; d < levels_.size(); ++d) {
      const auto n = static_cast<int64_t>(levels_[d].size());
      const int64_t digit = d < num_counted_ ? rest % n : drawn.below(static_cast<uint32_t>(n));
      setting.push_back(levels_[d][static_cast<size_t>(digit)]);
      if (d < num_counted_) rest /= n;
    }
    return {.fresh = Candidate{std::move(setting)}};
  }

  std::vector<std::vector<double>> levels_;  // of each dimension
  size_t num_counted_ = 0;                   // dimensions
  int64_t total_ = 1, stride_ = 1;           // of what is counted
};

}  // namespace

std::unique_ptr<Searcher> make_random(const Space& space, const SearcherOptions& options) {
  return std::make_unique<RandomSearcher>("random", space, options);
}

std::unique_ptr<Searcher> make_grid(const Space& space, const SearcherOptions& options) {
  return std::make_unique<GridSearcher>("grid", space, options);
}

}  // namespace ductile::tune
