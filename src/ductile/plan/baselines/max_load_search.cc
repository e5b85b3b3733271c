#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "ductile/base/error.h"
#include "ductile/graph/downsets.h"
#include "ductile/plan/baselines/max_load_groups_impl.h"
#include "ductile/plan/cpu_clock_impl.h"
#include "ductile/plan/infinity_impl.h"

namespace ductile::plan {

using graph::OpId;
using graph::OpSet;

namespace {

constexpr int kMaxOfAKind = 100;  // devices: rows hold 8 bits

class MaxLoadSearch {
 public:
  // The downsets to search among, ascending, and for each the greater ones; the whole space has
  // neither.
  struct Space {
    std::vector<int> states;
    std::vector<std::vector<int>> above;
  };

  MaxLoadSearch(const MaxLoadProblem& problem, const MaxLoadGroups& groups,
                const graph::Topology& topology, std::vector<OpSet> sets)
      : problem_(problem), groups_(groups), sets_(std::move(sets)) {
    const size_t num = sets_.size();
    sums_.resize(num);
    for (size_t i = 0; i < num; ++i) {
      sets_[i].for_each([&](OpId v) {
        const MaxLoadGroups::Group& g = groups_.groups[v];
        if (g.on_accelerator) sums_[i].accelerator += g.accelerator_time;
        sums_[i].cpu += g.cpu_time;
        sums_[i].bytes += g.bytes;
        sums_[i].refused += !g.on_accelerator;
      });
    }
    // The most accelerator time that a unit of CPU time stands for.
    for (const MaxLoadGroups::Group& g : groups_.groups) {
      if (!g.on_accelerator || g.accelerator_time <= 0) continue;
      exchange_ = std::max(exchange_, g.cpu_time > 0 ? g.accelerator_time / g.cpu_time : kInfinity);
    }
    std::unordered_map<OpSet, int, graph::OpSetHash> number;
    number.reserve(2 * num);
    for (size_t i = 0; i < num; ++i) number.emplace(sets_[i], static_cast<int>(i));
    up_begin_.push_back(0);
    const int num_groups = static_cast<int>(groups_.groups.size());
    for (size_t i = 0; i < num; ++i) {
      OpSet next = sets_[i];
      for (OpId v = 0; v < num_groups; ++v) {
        if (next.contains(v)) continue;
        const auto before = topology.predecessors(v);
        if (!std::all_of(before.begin(), before.end(), [&](OpId u) { return next.contains(u); })) {
          continue;
        }
        next.insert(v);
        up_.push_back(number.at(next));
        next.erase(v);
      }
      up_begin_.push_back(up_.size());
    }
    open_.resize(num);
    for (size_t i = 0; i < num; ++i) {
      for (size_t n = 0; n < groups_.nets.size(); ++n) {
        const OpSet& net = groups_.nets[n].groups;
        if (!(net & sets_[i]).empty() && !net.is_subset_of(sets_[i]))
          open_[i].push_back(static_cast<int>(n));
      }
    }
    columns_ = problem_.cpus + 1;
    fewest_.resize(num * columns_);
    back_.resize(num * columns_);
    seen_.assign(num, -1);
  }

  int last() const { return static_cast<int>(sets_.size()) - 1; }
  const std::vector<OpSet>& sets() const { return sets_; }

  // A load that no placement undercuts.
  double least() const {
    double most = 0;
    for (const MaxLoadGroups::Group& g : groups_.groups) {
      const double a =
          g.on_accelerator && problem_.accelerators > 0 ? g.accelerator_time : kInfinity;
      most = std::max(most, std::min(a, problem_.cpus > 0 ? g.cpu_time : kInfinity));
    }
    const double power = problem_.accelerators + problem_.cpus * exchange_;
    return std::max(most, power > 0 && power < kInfinity ? sums_.back().accelerator / power : 0);
  }

  bool feasible(double load, const Space& space) {
    const bool whole = space.states.empty();
    std::fill(fewest_.begin(), fewest_.end(), kNever);
    std::fill(fewest_.begin(), fewest_.begin() + columns_, int8_t{0});
    std::fill(seen_.begin(), seen_.end(), -1);
    load_ = load;
    const size_t num = whole ? sets_.size() : space.states.size();
    for (size_t at = 0; at + 1 < num; ++at) {
      const int j = whole ? static_cast<int>(at) : space.states[at];
      const int8_t* row = fewest_.data() + static_cast<size_t>(j) * columns_;
      if (row[columns_ - 1] == kNever) continue;
      if (!whole) {
        for (int i : space.above[at]) extend(j, i);
        continue;
      }
      // All greater downsets within the load: further ones are heavier.
      stack_.assign(1, j);
      seen_[j] = j;
      while (!stack_.empty()) {
        const int from = stack_.back();
        stack_.pop_back();
        for (size_t e = up_begin_[from]; e < up_begin_[from + 1]; ++e) {
          const int i = up_[e];
          if (seen_[i] == j) continue;
          seen_[i] = j;
          if (extend(j, i)) stack_.push_back(i);
        }
      }
    }
    return fewest_.back() <= problem_.accelerators;
  }

  // Of the last feasible() that was true; `through` is set to the downsets on the way.
  std::vector<MaxLoadPart> parts(std::vector<int>& through) const {
    std::vector<MaxLoadPart> out;
    int i = last();
    int c = columns_ - 1;
    through = {i};
    while (i != 0) {
      const size_t row = static_cast<size_t>(i) * columns_;
      while (c > 0 && fewest_[row + c - 1] == fewest_[row + c]) --c;  // fewer CPUs do
      const Back& b = back_[row + c];
      MaxLoadPart& part = out.emplace_back();
      part.accelerator = b.accelerator;
      const OpSet set = sets_[i] - sets_[b.from];
      set.for_each([&](OpId g) {
        const std::vector<int>& nodes = groups_.groups[g].nodes;
        part.nodes.insert(part.nodes.end(), nodes.begin(), nodes.end());
      });
      std::sort(part.nodes.begin(), part.nodes.end());
      c -= b.accelerator ? 0 : 1;
      i = b.from;
      through.push_back(i);
    }
    return out;
  }

 private:
  static constexpr int8_t kNever = 120;
  struct Sums {
    double accelerator = 0;  // of what may be there
    double cpu = 0, bytes = 0;
    int refused = 0;  // groups that may not
  };
  struct Back {
    int from = -1;
    bool accelerator = false;
  };

  // The transfers of a device that holds downset i without downset j.
  double transfers(int j, int i) const {
    double cost = 0;
    for (int n : open_[i]) {
      const OpSet& net = groups_.nets[n].groups;
      if (!(net & sets_[i]).is_subset_of(sets_[j])) cost += groups_.nets[n].cost;
    }
    for (int n : open_[j]) {
      if (groups_.nets[n].groups.is_subset_of(sets_[i])) cost += groups_.nets[n].cost;
    }
    return cost;
  }

  // Takes the device between downsets j and i; false where none above i is worth a look.
  bool extend(int j, int i) {
    const Sums& from = sums_[j];
    const Sums& to = sums_[i];
    const double slack = load_ * (1 + 1e-12);
    bool further = false;
    int8_t* row = fewest_.data() + static_cast<size_t>(i) * columns_;
    const int8_t* before = fewest_.data() + static_cast<size_t>(j) * columns_;
    const double rest = sums_.back().accelerator - to.accelerator;
    const auto put = [&](int c, int value, bool accelerator) {
      row[c] = static_cast<int8_t>(value);
      back_[static_cast<size_t>(i) * columns_ + c] = {j, accelerator};
      for (int more = c + 1; more < columns_ && row[more] > row[c]; ++more) row[more] = row[c];
    };
    // What is left takes more accelerators, but for what the CPUs left can do.
    const auto enough = [&](int used, int c) {
      const double left = problem_.cpus > c ? (problem_.cpus - c) * load_ * exchange_ : 0;
      return used + std::ceil((rest - left) / load_ - 1e-9) <= problem_.accelerators;
    };
    const double work = to.accelerator - from.accelerator;
    if (work <= slack && to.bytes - from.bytes <= problem_.memory && to.refused == from.refused) {
      further = true;
      double total = -1;
      for (int c = 0; c < columns_; ++c) {
        const int value = before[c] + 1;
        if (value >= row[c] || before[c] == kNever || value > problem_.accelerators) continue;
        if (!enough(value, c)) continue;
        if (total < 0) total = work + transfers(j, i);
        if (total > slack) break;
        put(c, value, true);
      }
    }
    if (problem_.cpus > 0 && to.cpu - from.cpu <= slack) {
      further = true;
      for (int c = 1; c < columns_; ++c) {
        if (before[c - 1] < row[c] && enough(before[c - 1], c)) put(c, before[c - 1], false);
      }
    }
    return further;
  }

  const MaxLoadProblem& problem_;
  const MaxLoadGroups& groups_;
  std::vector<OpSet> sets_;  // by size
  std::vector<Sums> sums_;
  double exchange_ = 0;
  std::vector<int> up_;  // downsets with one group more, of each downset
  std::vector<size_t> up_begin_;
  std::vector<std::vector<int>> open_;  // nets in part in the downset
  int columns_ = 1;
  double load_ = 0;
  std::vector<int8_t> fewest_;  // accelerators [downset][CPUs], falling
  std::vector<Back> back_;
  std::vector<int> seen_, stack_;
};

// The greater ones of each, among some of the downsets.
MaxLoadSearch::Space space_of(const MaxLoadSearch& search, std::vector<int> states) {
  std::sort(states.begin(), states.end());
  states.erase(std::unique(states.begin(), states.end()), states.end());
  MaxLoadSearch::Space space;
  space.above.resize(states.size());
  for (size_t j = 0; j < states.size(); ++j) {
    for (size_t i = j + 1; i < states.size(); ++i) {
      if (search.sets()[states[j]].is_subset_of(search.sets()[states[i]])) {
        space.above[j].push_back(states[i]);
      }
    }
  }
  space.states = std::move(states);
  return space;
}

// The downsets of two orders: lowest number first, and deep before wide.
std::vector<int> states_of_orders(const MaxLoadSearch& search, const graph::Topology& topology) {
  std::unordered_map<OpSet, bool, graph::OpSetHash> wanted;
  const auto add = [&](const std::vector<OpId>& order) {
    OpSet set(topology.num_ops());
    wanted.emplace(set, true);
    for (OpId v : order) {
      set.insert(v);
      wanted.emplace(set, true);
    }
  };
  const auto lowest = topology.order();
  add({lowest.begin(), lowest.end()});
  std::vector<int> waits(topology.num_ops());
  std::vector<OpId> ready, deep;
  for (OpId v = 0; v < topology.num_ops(); ++v) {
    waits[v] = static_cast<int>(topology.predecessors(v).size());
    if (waits[v] == 0) ready.push_back(v);
  }
  while (!ready.empty()) {
    const OpId v = ready.back();
    ready.pop_back();
    deep.push_back(v);
    for (OpId w : topology.successors(v)) {
      if (--waits[w] == 0) ready.push_back(w);
    }
  }
  add(deep);
  std::vector<int> out;
  for (size_t i = 0; i < search.sets().size(); ++i) {
    if (wanted.contains(search.sets()[i])) out.push_back(static_cast<int>(i));
  }
  return out;
}

}  // namespace

MaxLoadResult max_load_search(const MaxLoadProblem& problem, size_t cap, double precision) {
  const double start = cpu_now();
  if (problem.accelerators < 0 || problem.accelerators > kMaxOfAKind || problem.cpus < 0 ||
      problem.cpus > kMaxOfAKind || problem.nodes.empty()) {
    fail(ErrorCode::invalid_argument, "{} accelerators, {} CPUs, {} nodes: 0 to {} of each, nodes",
         problem.accelerators, problem.cpus, problem.nodes.size(), kMaxOfAKind);
  }
  MaxLoadResult result;
  result.load = kInfinity;
  const MaxLoadGroups groups = max_load_groups(problem);
  const graph::Topology topology(static_cast<int>(groups.groups.size()), groups.edges);
  result.groups = topology.num_ops();
  auto sets = graph::downsets(topology, cap);
  if (!sets) {
    result.failure = "too many downsets";
    result.cpu_seconds = cpu_now() - start;
    return result;
  }
  result.downsets = static_cast<int64_t>(sets->size());
  MaxLoadSearch search(problem, groups, topology, std::move(*sets));
  const MaxLoadSearch::Space all;
  MaxLoadSearch::Space few = space_of(search, states_of_orders(search, topology));
  double low = search.least() * (1 - 1e-9);
  const auto attempt = [&](double load, const MaxLoadSearch::Space& space) {
    if (!search.feasible(load, space)) return false;
    std::vector<int> through;
    std::vector<MaxLoadPart> parts = search.parts(through);
    const double found = max_load(problem, parts);
    if (found < result.load) {
      result.load = found;
      result.parts = std::move(parts);
    }
    if (space.states.empty()) {
      through.insert(through.end(), few.states.begin(), few.states.end());
      few = space_of(search, std::move(through));
    }
    return true;
  };
  // The least load among few: from all that may be, halving.
  double most = 1;
  for (const MaxLoadProblem::Node& n : problem.nodes) {
    most += n.accelerator_time + n.cpu_time + 2 * n.transfer;
  }
  const auto polish = [&] {
    double below = low;
    while (result.load - below > precision * result.load && below < result.load) {
      const double middle = (below + result.load) / 2;
      if (!attempt(middle, few)) below = middle;
    }
  };
  if (!attempt(most, few) && !attempt(most, all)) {
    result.failure = "memory does not suffice";
    result.cpu_seconds = cpu_now() - start;
    return result;
  }
  polish();
  // Among all: just below what there is, in the hope that it fails; where it does not, halfway.
  bool hopeful = true;
  while (result.load - low > precision * result.load) {
    const double load = hopeful ? result.load * (1 - 0.9 * precision) : (low + result.load) / 2;
    if (attempt(load, all)) {
      polish();
      hopeful = !hopeful;
    } else {
      low = load;
      hopeful = true;
    }
  }
  result.feasible = true;
  result.lower_bound = low;
  for (MaxLoadPart& part : result.parts) part.load = max_load(problem, {part});
  result.cpu_seconds = cpu_now() - start;
  return result;
}

}  // namespace ductile::plan
