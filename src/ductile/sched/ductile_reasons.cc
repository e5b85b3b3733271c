// Why a job waits, runs or stops, in words for the people who own it: what it would take, what is
// free, who holds the rest, and what would have to happen.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ductile/sched/ductile_policy_impl.h"
#include "ductile/sched/waiting_claims_impl.h"

namespace ductile::sched {

namespace {

constexpr size_t kMostNamed = 3;  // jobs in one sentence

std::string some(int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

}  // namespace

// What is left and who holds it, in each pool, after a round.
struct DuctilePolicy::Impl::Outlook {
  struct OfPool {
    int64_t held = 0;
    int64_t holders = 0;
    std::vector<std::pair<std::string, int32_t>> most;  // who holds most, first
    WaitingClaims waiting;
  };
  std::vector<OfPool> pools;
};

// The configuration of a waiting job that is nearest to being worth the price of its devices; -1:
// none.
int32_t DuctilePolicy::Impl::nearest(const State& s) const {
  const std::span<const Option> choices = allocator_->choices(s.slot);
  std::pair<int32_t, double> best{-1, -1};
  for (size_t i = 0; i < std::min(choices.size(), s.configurations.size()); ++i) {
    const Configuration& c = s.configurations[i];
    const double price = allocator_->prices()[static_cast<size_t>(c.pool)] * c.devices;
    const double ratio = price > 0 ? choices[i].value / price : HUGE_VAL;
    if (choices[i].value > 0 && ratio > best.second) best = {static_cast<int32_t>(i), ratio};
  }
  if (best.first >= 0) return best.first;
  // Of devices that services, and jobs that keep what they have, hold all, no claim is weighed.
  for (size_t i = 0; i < s.configurations.size(); ++i) {
    const Configuration& c = s.configurations[i];
    if (allocator_->capacity()[static_cast<size_t>(c.pool)] > 0) continue;
    if (best.first < 0 || c.devices < s.configurations[static_cast<size_t>(best.first)].devices)
      best.first = static_cast<int32_t>(i);
  }
  return best.first;
}

// Whether another job holds devices of the pool, or could be given some.
bool DuctilePolicy::Impl::is_shared(const State& s, int32_t pool) const {
  return std::ranges::any_of(states_, [&](const auto& entry) {
    const State& other = entry.second;
    if (&other == &s) return false;
    if (other.grant >= 0) return grants_[static_cast<size_t>(other.grant)].pool == pool;
    if (other.pinned) return other.pool_now == pool;
    return std::ranges::any_of(other.configurations,
                               [&](const Configuration& c) { return c.pool == pool; });
  });
}

// Its claim now; what the allocator was offered may be of an earlier round, up to 1 % less.
WaitingClaims::Turn DuctilePolicy::Impl::turn_of(JobId id, const State& s,
                                                 const Configuration& c) const {
  const double worth = s.weight * c.rate + s.promised * std::min<double>(s.owed.devices, c.devices);
  return {worth / c.devices, s.arrival, id};
}

const DuctilePolicy::Impl::Outlook& DuctilePolicy::Impl::outlook() const {
  if (outlook_) return *outlook_;
  outlook_ = std::make_shared<Outlook>();
  outlook_->pools.resize(pools_.size());
  std::vector<std::pair<JobId, const State*>> order;
  for (const auto& [id, s] : states_) order.emplace_back(id, &s);
  std::sort(order.begin(), order.end());
  for (const auto& [id, s] : order) {
    if (s->holds > 0) {
      Outlook::OfPool& pool = outlook_->pools[static_cast<size_t>(s->holds_pool)];
      pool.held += s->holds;
      ++pool.holders;
      pool.most.emplace_back(s->name, s->holds);
      continue;
    }
    if (s->grant >= 0) continue;
    const int32_t choice = nearest(*s);
    if (choice < 0) continue;
    const Configuration& c = s->configurations[static_cast<size_t>(choice)];
    outlook_->pools[static_cast<size_t>(c.pool)].waiting.add(turn_of(id, *s, c), c.devices);
  }
  for (Outlook::OfPool& pool : outlook_->pools) {
    std::stable_sort(pool.most.begin(), pool.most.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    if (pool.most.size() > kMostNamed) pool.most.resize(kMostNamed);
    pool.waiting.sort();
  }
  return *outlook_;
}

// "a holds 16, b holds 8 and 12 other jobs hold 32".
std::string DuctilePolicy::Impl::holders_of(int32_t pool) const {
  const Outlook::OfPool& p = outlook().pools[static_cast<size_t>(pool)];
  std::string out;
  int64_t rest = p.held;
  const int64_t others = p.holders - static_cast<int64_t>(p.most.size());
  for (size_t i = 0; i < p.most.size(); ++i) {
    const bool last = i + 1 == p.most.size() && others == 0;
    out += fmt::format("{}{} holds {}",
                       i == 0 ? ""
                       : last ? " and "
                              : ", ",
                       p.most[i].first, p.most[i].second);
    rest -= p.most[i].second;
  }
  if (others > 0)
    out += fmt::format(" and {} {} {}", some(others, "other job", "other jobs"),
                       others == 1 ? "holds" : "hold", rest);
  return out;
}

const std::string& DuctilePolicy::Impl::type_of(int32_t pool) const {
  return type_names_[static_cast<size_t>(pools_[static_cast<size_t>(pool)].type)];
}

// 0: not known.
int32_t DuctilePolicy::Impl::most_useful(const JobView& job, int32_t pool) const {
  if (pool < 0) return 0;
  const auto type = static_cast<size_t>(pools_[static_cast<size_t>(pool)].type);
  return type < job.types.size() ? job.types[type].max_useful : 0;
}

// What keeps a job from more devices than it is offered.
std::string DuctilePolicy::Impl::why_not_more(const State& s, int32_t devices, int32_t pool) const {
  if (devices >= s.most_wanted && s.quota > 0)
    return fmt::format(", the most that its team's quota of {} leaves it", s.quota);
  if (devices >= s.most_wanted && s.least == s.most_wanted) return ", as many as it asks for";
  // A driver may have cut what it asks for to what there is.
  if (devices >= pools_[static_cast<size_t>(pool)].devices) return ", all that there are";
  if (devices >= s.most_wanted)
    return fmt::format(
        ", the most that it asks for (`--max`; of training, at most `train.virtual_ranks`)");
  if (s.useful > 0 && devices >= s.useful) return ", the most that it can use";
  return ", the most that it is given before its speed on more is known";
}

// Of a job that holds devices, or is given some.
std::string DuctilePolicy::Impl::why_it_runs(const State& s, int32_t devices, int32_t pool) const {
  std::string out = fmt::format("runs on {} {}", devices, type_of(pool));
  const Configuration *now = nullptr, *more = nullptr;
  for (const Configuration& c : s.configurations) {
    if (c.pool != pool) continue;
    if (c.devices == devices) now = &c;
    if (c.devices > devices && (!more || c.devices < more->devices)) more = &c;
  }
  if (devices == s.trial) return out + ", to measure anew what was slow with so many";
  if (!now || !more) return out + why_not_more(s, devices, pool);
  const double gain = more->rate / now->rate;
  if (!(gain > 1.02)) return out + fmt::format(", and would be no faster on {}", more->devices);
  out += fmt::format("; on {} it would be {:.1f} times as fast", more->devices, gain);
  if (s.most < more->devices) return out + ", but its team's quota leaves it no more";
  const auto p = static_cast<size_t>(pool);
  const int64_t left = allocator_->capacity()[p] - allocator_->used()[p];
  if (left >= more->devices - devices)
    return out + ", which is less than the change and the devices would cost";
  if (is_shared(s, pool)) return out + ", but other jobs would lose more by it";
  return out + ", but so many are not free in one piece";
}

// Nodes that are there but cannot be used are the driver's to name (Scheduler::why()).
std::string DuctilePolicy::Impl::why_it_waits(JobId id, const State& s) const {
  if (s.most < INT32_MAX)
    return "waits: its team holds its quota. It starts when a job of its team ends or gives "
           "devices up";
  if (s.configurations.empty())
    return fmt::format(
        "waits: it asks for {}, and of no type that it may use there are as many as it needs. It "
        "starts when nodes of such a type come up",
        some(s.requested, "device", "devices"));
  if (s.fragmented)
    return "waits: its devices are free only in pieces spread over too many nodes. It starts when "
           "a node is cleared";
  const int32_t choice = nearest(s);
  if (choice < 0)
    return "waits: it has so little left that a start would cost more than it would do. It starts "
           "when devices are free that nobody else can use";
  const Configuration& c = s.configurations[static_cast<size_t>(choice)];
  const auto p = static_cast<size_t>(c.pool);
  // All of them, also those of services and of jobs that keep what they have.
  const int64_t held = outlook().pools[p].held;
  const int64_t all = std::max(pools_[p].devices, held), left = all - held;
  std::string out = fmt::format("waits: it can start on {} {}", c.devices, type_of(c.pool));
  if (s.requested != c.devices) out += fmt::format(" (it asked for {})", s.requested);
  out += fmt::format(". {} of {} are free", left > 0 ? std::to_string(left) : "None", all);
  if (const std::string holders = holders_of(c.pool); !holders.empty()) out += ": " + holders;
  // Those who would be given devices first.
  const WaitingClaims::Before before = outlook().pools[p].waiting.before(turn_of(id, s, c));
  if (before.jobs > 0)
    out += fmt::format("; {} before it",
                       before.jobs == 1 ? "1 other waiting job comes"
                                        : fmt::format("{} other waiting jobs come", before.jobs));
  // More than there are will never be free at once: those before it are to end first.
  const int64_t needed = std::max<int64_t>(0, c.devices + before.devices - left);
  if (needed > all)
    out += ". It starts after them";
  else if (needed > 0)
    out += fmt::format(". It starts when {} more {} free", needed, needed == 1 ? "is" : "are");
  else
    out += ". It starts when they are free together";
  return out;
}

std::string DuctilePolicy::Impl::reason_for(const State& s, const Allocation& before,
                                            const Round& round) const {
  if (s.grant >= 0) return grants_[static_cast<size_t>(s.grant)].reason;
  if (s.holds > 0) return why_it_runs(s, s.holds, s.holds_pool);
  if (before.empty()) return "waits";
  const int32_t held = device_count(before);
  const std::string what =
      fmt::format("{} {}", held,
                  round.cluster.types[static_cast<size_t>(
                      round.cluster.node_type[static_cast<size_t>(before.front().node)])]);
  if (s.most < INT32_MAX) return "stops: its team holds more than its quota";
  const auto leaves = [&](const NodeShare& share) {
    return !usable_until(round.cluster, share.node, horizon_of(round));
  };
  if (std::any_of(before.begin(), before.end(), leaves))
    return fmt::format(
        "stops: a node of its {} leaves, and those that stay are of more use to others", what);
  if (s.fragmented)
    return fmt::format("stops: its {} are needed in one piece, and what is free is not", what);
  return fmt::format("stops: its {} go to jobs that end sooner with them or have waited longer",
                     what);
}

std::string DuctilePolicy::Impl::explain(JobId id) const {
  const auto found = states_.find(id);
  if (found == states_.end() || !allocator_ || restored_) return "";
  const State& s = found->second;
  if (s.grant >= 0) return grants_[static_cast<size_t>(s.grant)].reason;
  if (s.holds == 0) return why_it_waits(id, s);
  if (s.pinned) return fmt::format("runs on {} {}: {}", s.holds, type_of(s.holds_pool), s.reason);
  return why_it_runs(s, s.holds, s.holds_pool);
}

}  // namespace ductile::sched
