#include <algorithm>
#include <numeric>

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

// The points of a mixed-radix counter, taken in steps that have no divisor in common with their
// number and are near its golden section: whatever part of the grid is tried is spread over it.
class GridSearcher final : public Searcher {
 public:
  GridSearcher(std::string_view name, const Space& space, const SearcherOptions& options)
      : Searcher(name, space, options) {
    for (const Dimension& d : this->space().dimensions()) {
      int64_t n = d.low == d.high ? 1 : options.levels;
      if (d.kind == Kind::choice) n = static_cast<int64_t>(d.choices.size());
      if (d.kind == Kind::integer)
        n = static_cast<int64_t>(std::min(static_cast<double>(n), d.high - d.low + 1));
      radix_.push_back(n);
      total_ = total_ > kMost / n ? kMost : total_ * n;
    }
    stride_ = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(total_) * 0.618034));
    while (std::gcd(stride_, total_) != 1) ++stride_;
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 31;  // its square fits; nobody tries as many

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
    Point point;
    for (const int64_t n : radix_) {
      const double digit = static_cast<double>(rest % n);
      const double levels = static_cast<double>(n);
      point.push_back(n == 1 ? 0.5 : digit / (levels - 1));
      rest /= n;
    }
    for (size_t d = 0; d < point.size(); ++d)
      if (space().dimensions()[d].kind == Kind::choice)
        point[d] =
            (point[d] * static_cast<double>(radix_[d] - 1) + 0.5) / static_cast<double>(radix_[d]);
    return {.fresh = Candidate{space().at(point)}};
  }

  std::vector<int64_t> radix_;
  int64_t total_ = 1, stride_ = 1;
};

}  // namespace

std::unique_ptr<Searcher> make_random(const Space& space, const SearcherOptions& options) {
  return std::make_unique<RandomSearcher>("random", space, options);
}

std::unique_ptr<Searcher> make_grid(const Space& space, const SearcherOptions& options) {
  return std::make_unique<GridSearcher>("grid", space, options);
}

}  // namespace ductile::tune
