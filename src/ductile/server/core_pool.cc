#include "ductile/server/core_pool.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace ductile::server {

CorePool::CorePool(int64_t devices, CoreMap map) : map_(std::move(map)) {
  devices = std::max<int64_t>(1, devices);
  const bool whole = devices <= static_cast<int64_t>(map_.cores.size());
  for (const Core& core : map_.cores) {
    if (whole) {
      units_.push_back({core.threads, core.threads, core.node});
    } else {
      for (const int thread : core.threads) units_.push_back({{thread}, {thread}, core.node});
    }
  }
  const auto count = static_cast<int64_t>(units_.size());
  shared_ = devices > count;
  size_ = shared_ ? 1 : count / devices;
  all_.large = shared_ ? 0 : count % devices;
  all_.small = devices - all_.large;
}

std::vector<int64_t> CorePool::uses() const {
  std::vector<int64_t> out(units_.size());
  for (const Given& given : given_)
    if (!given.share.expired())
      for (const size_t unit : given.units) ++out[unit];
  return out;
}

bool CorePool::any_unused() const {
  const std::vector<int64_t> used = uses();
  for (size_t u = 0; u < units_.size(); ++u)
    if (used[u] == 0 && !units_[u].allowed.empty()) return true;
  return false;
}

CorePool::Devices CorePool::free_devices() const {
  Devices out = all_;
  for (const Given& given : given_) {
    if (given.share.expired()) continue;
    out.large -= given.large;
    out.small -= given.small;
  }
  return {std::max<int64_t>(0, out.large), std::max<int64_t>(0, out.small)};
}

int64_t CorePool::free() const {
  const Devices left = free_devices();
  return left.large + left.small;
}

CorePool::Share CorePool::take(int64_t devices, const std::set<int>& near) {
  if (devices <= 0) return nullptr;
  const Devices left = free_devices();
  Devices taken;
  taken.large = std::min(devices, left.large);
  taken.small = std::min(devices - taken.large, left.small);
  int64_t wanted = taken.large * (size_ + 1) + taken.small * size_;
  if (wanted == 0) {
    // Of processes that were found again nobody said for how many devices they are.
    if (!any_unused()) return nullptr;
    wanted = devices * size_;
  }
  std::vector<size_t> units = choose(static_cast<size_t>(wanted), near);
  // Without cores that can be told apart all processes run on all of them.
  if (units.empty() && !units_.empty()) return nullptr;
  return give(std::move(units), taken);
}

// As many as there are, if these are fewer.
std::vector<size_t> CorePool::choose(size_t count, const std::set<int>& near) const {
  const std::vector<int64_t> used = uses();
  std::vector<size_t> units;
  const bool apart = !shared_ && any_unused();
  for (size_t u = 0; u < units_.size(); ++u)
    if (!units_[u].allowed.empty() && (!apart || used[u] == 0)) units.push_back(u);
  if (!apart) {  // beside those who have the fewest
    std::ranges::stable_sort(units, {}, [&](size_t u) { return used[u]; });
    units.resize(std::min(count, units.size()));
    return units;
  }
  std::vector<size_t> room(map_.nodes.size());
  for (const size_t u : units) ++room[units_[u].node];
  std::vector<size_t> out;
  for (const size_t node : choose_nodes(room, std::min(count, units.size()), near))
    for (const size_t u : units)
      if (units_[u].node == node && out.size() < count) out.push_back(u);
  return out;
}

// As few as have so many free units together. The fullest come first, so that what is left over
// stays in one piece.
std::vector<size_t> CorePool::choose_nodes(const std::vector<size_t>& room, size_t count,
                                           const std::set<int>& near) const {
  std::vector<size_t> fullest;  // the one with the most room comes last
  for (size_t n = 0; n < room.size(); ++n)
    if (room[n] > 0) fullest.push_back(n);
  std::ranges::stable_sort(fullest, {}, [&](size_t n) { return room[n]; });
  const auto sum = [&](const std::vector<size_t>& nodes) {
    return std::accumulate(nodes.begin(), nodes.end(), size_t{0},
                           [&](size_t all, size_t n) { return all + room[n]; });
  };
  std::vector<size_t> best;
  while (sum(best) < count && best.size() < fullest.size())
    best.insert(best.begin(), *(fullest.rbegin() + static_cast<std::ptrdiff_t>(best.size())));
  const size_t needed = best.size();
  const auto cost = [&](const std::vector<size_t>& nodes) {
    double distance = 0;
    size_t not_near = 0, first = room.size();
    for (const size_t a : nodes) {
      first = std::min(first, a);
      not_near += near.contains(map_.nodes[a].number) ? 0 : 1;
      for (const size_t b : nodes) distance += a == b ? 0 : map_.distances[a][b];
    }
    return std::tuple(distance, not_near, sum(nodes), first);
  };
  // Around each node those that are next to it.
  for (const size_t seed : fullest) {
    std::vector<size_t> nodes = fullest;
    std::ranges::stable_sort(nodes, {}, [&](size_t n) {
      return std::tuple(n != seed, map_.distances[seed][n],
                        std::numeric_limits<size_t>::max() - room[n]);
    });
    nodes.resize(std::min(needed, nodes.size()));
    if (sum(nodes) >= count && cost(nodes) < cost(best)) best = nodes;
  }
  std::ranges::stable_sort(best, {}, [&](size_t n) { return room[n]; });
  return best;
}

CorePool::Share CorePool::give(std::vector<size_t> units, Devices devices) {
  std::ranges::sort(units);
  CoreShare share;
  share.cores = static_cast<int64_t>(units.size());
  share.devices = devices.large + devices.small;
  std::set<int> threads, nodes;
  for (const size_t u : units) {
    threads.insert(units_[u].allowed.begin(), units_[u].allowed.end());
    nodes.insert(map_.nodes[units_[u].node].number);
  }
  share.threads.assign(threads.begin(), threads.end());
  share.nodes.assign(nodes.begin(), nodes.end());
  auto out = std::make_shared<const CoreShare>(std::move(share));
  std::erase_if(given_, [](const Given& given) { return given.share.expired(); });
  given_.push_back({out, std::move(units), devices.large, devices.small});
  return out;
}

// For how many devices it was, nobody says: for as few as have so many units, as far as any are
// left. The cores are its own in any case.
CorePool::Share CorePool::take_again(const std::vector<int>& threads) {
  const std::set<int> wanted(threads.begin(), threads.end());
  const Devices left = free_devices();
  std::set<int> have;
  std::vector<size_t> units;
  for (size_t u = 0; u < units_.size(); ++u) {
    // Of a core that had lost a hardware thread, the rest.
    const bool touched =
        std::ranges::any_of(units_[u].threads, [&](int thread) { return wanted.contains(thread); });
    if (!touched) continue;
    units.push_back(u);
    have.insert(units_[u].threads.begin(), units_[u].threads.end());
  }
  if (units.empty() || !std::ranges::includes(have, wanted)) return nullptr;
  const auto count = static_cast<int64_t>(units.size());
  Devices devices;
  devices.large = std::min(left.large, count / (size_ + 1));
  const int64_t rest = count - devices.large * (size_ + 1);
  devices.small = std::min(left.small, (rest + size_ - 1) / size_);
  if (devices.large + devices.small == 0) devices.large = std::min<int64_t>(1, left.large);
  return give(std::move(units), devices);
}

bool CorePool::allow(const std::vector<int>& usable) {
  const std::set<int> now(usable.begin(), usable.end());
  bool changed = false;
  for (Unit& unit : units_) {
    std::vector<int> allowed;
    for (const int thread : unit.threads)
      if (now.contains(thread)) allowed.push_back(thread);
    changed = changed || allowed != unit.allowed;
    unit.allowed = std::move(allowed);
  }
  return changed;
}

int64_t CorePool::missing() const {
  return std::ranges::count_if(units_, [](const Unit& unit) { return unit.allowed.empty(); });
}

}  // namespace ductile::server
