#include "ductile/control/ranges.h"

#include <deque>
#include <limits>
#include <map>
#include <string_view>

#include "ductile/base/error.h"

namespace ductile::control {

int64_t num_subtrees(RankRange range, int64_t virtual_ranks) {
  // The tree's nodes are the aligned runs of 2^k leaves, cut off at the last leaf.
  int64_t count = 0;
  for (int64_t at = range.begin; at < range.end; ++count) {
    int64_t width = 1;
    while (at % (2 * width) == 0 && width < virtual_ranks &&
           (at + 2 * width <= range.end || range.end == virtual_ranks))
      width *= 2;
    at += width;
  }
  return count;
}

std::vector<RankRange> spread_ranks(int64_t virtual_ranks, int64_t num_workers) {
  if (num_workers < 1 || num_workers > virtual_ranks)
    fail(ErrorCode::invalid_argument,
         "cannot spread {} virtual ranks over {} workers: 1 to {} of them can have one",
         virtual_ranks, num_workers, virtual_ranks);
  const int64_t small = virtual_ranks / num_workers;
  const int64_t num_larger = virtual_ranks % num_workers;
  // best[l] over the ranges placed so far, l of them larger: the fewest subtrees. Built from the
  // end, so that reading the choices forwards prefers larger ranges first.
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;
  const size_t width = static_cast<size_t>(num_larger) + 1;
  std::vector<int64_t> best(width, kNever);
  std::vector<std::vector<bool>> take_larger(static_cast<size_t>(num_workers),
                                             std::vector<bool>(width));
  best[0] = 0;
  for (int64_t w = num_workers - 1; w >= 0; --w) {
    const int64_t num_after = num_workers - 1 - w;
    std::vector<int64_t> next(width, kNever);
    for (int64_t larger = 0; larger <= num_larger; ++larger) {  // among w and those after it
      const int64_t begin = virtual_ranks - (num_after + 1) * small - larger;
      if (begin < 0 || larger > num_after + 1) continue;
      const auto at = static_cast<size_t>(larger);
      if (larger > 0 && best[at - 1] < kNever) {
        next[at] = best[at - 1] + num_subtrees({begin, begin + small + 1}, virtual_ranks);
        take_larger[static_cast<size_t>(w)][at] = true;
      }
      if (best[at] < kNever) {
        const int64_t cost = best[at] + num_subtrees({begin, begin + small}, virtual_ranks);
        if (cost < next[at]) {
          next[at] = cost;
          take_larger[static_cast<size_t>(w)][at] = false;
        }
      }
    }
    best = std::move(next);
  }
  std::vector<RankRange> ranges;
  int64_t begin = 0, larger = num_larger;
  for (int64_t w = 0; w < num_workers; ++w) {
    const bool take = take_larger[static_cast<size_t>(w)][static_cast<size_t>(larger)];
    const int64_t size = small + (take ? 1 : 0);
    larger -= take ? 1 : 0;
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

namespace {

std::string_view wanted_host(RankRange range, std::span<const std::string> rank_hosts) {
  std::map<std::string_view, int64_t> counts;
  for (int64_t rank = range.begin; rank < range.end; ++rank) {
    const std::string& host = rank_hosts[static_cast<size_t>(rank)];
    if (!host.empty()) ++counts[host];
  }
  std::string_view best;
  int64_t most = 0;
  for (int64_t rank = range.begin; rank < range.end; ++rank) {
    const std::string& host = rank_hosts[static_cast<size_t>(rank)];
    if (host.empty() || counts[host] <= most) continue;
    most = counts[host];
    best = host;
  }
  return best;
}

}  // namespace

std::vector<size_t> seat_workers(std::span<const RankRange> ranges,
                                 std::span<const std::string> rank_hosts,
                                 std::span<const std::string> worker_hosts) {
  DUCTILE_CHECK(ranges.size() == worker_hosts.size(), "{} ranges for {} workers", ranges.size(),
                worker_hosts.size());
  std::map<std::string_view, std::deque<size_t>> workers;
  std::map<std::string_view, size_t> idle;  // how many of a host have no range yet
  for (size_t w = 0; w < worker_hosts.size(); ++w) {
    workers[worker_hosts[w]].push_back(w);
    ++idle[worker_hosts[w]];
  }
  std::vector<std::string_view> hosts(ranges.size());
  std::vector<bool> settled(ranges.size(), false);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const std::string_view host = wanted_host(ranges[i], rank_hosts);
    const auto found = idle.find(host);
    if (host.empty() || found == idle.end() || found->second == 0) continue;
    --found->second;
    hosts[i] = host;
    settled[i] = true;
  }
  size_t next = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (settled[i]) continue;
    while (idle[worker_hosts[next]] == 0) ++next;
    hosts[i] = worker_hosts[next];
    --idle[hosts[i]];
  }
  std::vector<size_t> seats;
  for (const std::string_view host : hosts) {
    seats.push_back(workers[host].front());
    workers[host].pop_front();
  }
  return seats;
}

}  // namespace ductile::control
