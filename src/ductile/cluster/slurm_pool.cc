#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "ductile/cluster/slurm_pool_impl.h"

namespace ductile::cluster {
namespace {

constexpr double kListEvery = 2, kCancelEvery = 5, kWriteDownEvery = 5;
constexpr double kFirstPause = 5, kLongestPause = 300;  // after a pilot that never came
constexpr int kMissed = 2;  // lists without a pilot until it counts as gone

std::string job_text(const std::string& job) {
  return job.empty() ? std::string("a pilot") : "pilot " + job;
}

}  // namespace

SlurmPool::SlurmPool(std::vector<spec::Pool> pools) : pools_(std::move(pools)) {
  for (size_t p = 0; p < pools_.size(); ++p)
    for (const std::string& host : spec::group_of(pools_[p]).hosts) {
      Node& node = nodes_.emplace_back();
      node.name = host;
      node.pool = p;
    }
}

void SlurmPool::take_over(size_t node, uint64_t generation, double now) {
  Node& n = nodes_[node];
  n.generation = generation;
  n.state = generation == 0 ? State::none : State::asked;
  n.idle_since = now;
  n.taken_over = generation != 0;
}

void SlurmPool::follow(Demand demand, const std::vector<bool>& held) {
  demand_ = std::move(demand);
  std::ranges::stable_sort(demand_.on_gpus, std::ranges::greater(), &Demand::Whole::gpus);
  for (size_t n = 0; n < nodes_.size() && n < held.size(); ++n) nodes_[n].held = held[n];
}

std::optional<int64_t> SlurmPool::most_gpus() const {
  int64_t most = 0;
  for (const spec::Pool& pool : pools_) {
    if (spec::options_name_gpus(pool)) return std::nullopt;
    most = std::max(most, pool.gpus);
  }
  return most;
}

// Pilots of each pool. A job that asks for GPUs goes to the first pool whose pilots have enough of
// them, beside others of its kind where there is room; the rest fills what these leave, and then
// the pools in turn.
std::vector<int64_t> SlurmPool::wanted() const {
  std::vector<std::vector<Demand::Whole>> left(pools_.size());  // of each pilot
  const auto place = [&](const Demand::Whole& job) {
    for (size_t p = 0; p < pools_.size(); ++p) {
      const spec::Pool& pool = pools_[p];
      // Where options ask for GPUs there may be enough.
      const int64_t gpus = spec::options_name_gpus(pool) ? job.gpus : pool.gpus;
      if (gpus < job.gpus || pool.devices < job.devices) continue;
      auto pilot = std::ranges::find_if(left[p], [&](const Demand::Whole& room) {
        return room.gpus >= job.gpus && room.devices >= job.devices;
      });
      if (pilot == left[p].end()) {
        if (static_cast<int64_t>(left[p].size()) >= pool.max) continue;
        pilot = left[p].insert(pilot, Demand::Whole{pool.devices, gpus});
      }
      pilot->devices -= job.devices;
      pilot->gpus -= job.gpus;
      return;
    }
  };
  for (const Demand::Whole& job : demand_.on_gpus) place(job);
  int64_t devices = demand_.devices;
  for (const auto& pilots : left)
    for (const Demand::Whole& room : pilots) devices -= room.devices;
  std::vector<int64_t> out;
  for (size_t p = 0; p < pools_.size(); ++p) {
    const spec::Pool& pool = pools_[p];
    const auto taken = static_cast<int64_t>(left[p].size());
    const int64_t missing = std::max<int64_t>(0, devices);
    const int64_t pilots = std::clamp<int64_t>(taken + (missing + pool.devices - 1) / pool.devices,
                                               pool.min, pool.max);
    devices -= (pilots - taken) * pool.devices;
    out.push_back(pilots);
  }
  return out;
}

void SlurmPool::end(Node& node, std::string why) {
  node.leaving = std::move(why);
  node.state = State::ending;
  node.cancelled_at.reset();
}

// Jobs move away from a node that will be taken back; once they have, it is given back.
void SlurmPool::leave_in_time(Node& node, double wall) {
  if (node.state != State::running) return;
  const bool late =
      node.ends > 0 && wall >= node.ends - static_cast<double>(pools_[node.pool].notice);
  if (node.leaving.empty() && (node.noticed || late))
    node.leaving = fmt::format(
        "{}: Slurm takes it back {}", job_text(node.job),
        node.ends > wall ? fmt::format("in {:.0f} s", node.ends - wall) : std::string("soon"));
  if (!node.leaving.empty() && !node.held) end(node, node.leaving);
}

// First those that have not come, then those that nobody has used for long enough; the last ones
// first, so that the same nodes are there for long.
void SlurmPool::shrink(size_t pool, int64_t surplus, double now) {
  const auto idle = static_cast<double>(pools_[pool].idle);
  for (const bool running : {false, true})
    for (size_t n = nodes_.size(); n-- > 0 && surplus > 0;) {
      Node& node = nodes_[n];
      if (node.pool != pool || node.held || !node.leaving.empty()) continue;
      const bool pending = node.state == State::asked || node.state == State::pending;
      if (running ? node.state != State::running || now < node.idle_since + idle : !pending)
        continue;
      end(node, fmt::format("{} is given back, since nothing needs it", job_text(node.job)));
      --surplus;
    }
}

SlurmErrand SlurmPool::plan(double now, double wall) {
  SlurmErrand out;
  for (Node& node : nodes_) {
    if (node.held) node.idle_since = now;
    leave_in_time(node, wall);
  }
  const std::vector<int64_t> wanted = this->wanted();
  for (size_t p = 0; p < pools_.size(); ++p) {
    const int64_t pilots = wanted[p];
    int64_t there = std::ranges::count_if(nodes_, [&](const Node& n) {
      return n.pool == p && n.state != State::none && n.leaving.empty();
    });
    if (there > pilots) shrink(p, there - pilots, now);
    for (size_t n = 0; n < nodes_.size() && there < pilots; ++n) {
      Node& node = nodes_[n];
      if (node.pool != p || node.state != State::none || now < node.retry_at) continue;
      ++node.generation;
      node.state = State::asked;
      node.job.clear();
      node.missed = 0;
      node.idle_since = now;
      out.submit.push_back({n, node.generation});
      ++there;
    }
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    if (node.state != State::ending ||
        (node.cancelled_at && now < *node.cancelled_at + kCancelEvery))
      continue;
    node.cancelled_at = now;
    out.cancel.push_back({n, node.generation});
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    if (node.state != State::running || node.written_down || now < node.write_again_at) continue;
    node.write_again_at = now + kWriteDownEvery;
    out.write_down.push_back({n, node.generation});
  }
  if (!listed_at_ || now >= *listed_at_ + kListEvery || !out.submit.empty() ||
      !out.cancel.empty()) {
    out.list = all();
    listed_at_ = now;
  }
  return out;
}

std::vector<PilotKey> SlurmPool::all() const {
  std::vector<PilotKey> out;
  for (size_t n = 0; n < nodes_.size(); ++n)
    if (nodes_[n].state != State::none) out.push_back({n, nodes_[n].generation});
  return out;
}

void SlurmPool::gone(Node& node, double now, const std::string& how) {
  const bool came = node.claim.has_value() || node.state == State::ending;
  node.failures = came ? 0 : node.failures + 1;
  if (came) {
    node.error.clear();
  } else {
    node.retry_at = now + std::min(kLongestPause, kFirstPause * std::pow(2, node.failures - 1));
    if (node.error.empty())
      node.error = fmt::format(
          "{} ended before it came ({}); its output is in the folder {} of "
          "pilots/{}",
          job_text(node.job), how, node.generation, node.name);
  }
  node.state = State::none;
  node.claim.reset();
  node.job.clear();
  node.leaving.clear();
  node.reason.clear();
  node.ends = node.write_again_at = 0;
  node.noticed = node.taken_over = node.written_down = false;
  node.missed = 0;
}

void SlurmPool::look(Node& node, const std::vector<QueueEntry>& entries, double now) {
  const QueueEntry* lives = nullptr;  // the one that has the ticket, if there are two
  for (const QueueEntry& entry : entries)
    if (!has_ended_in_slurm(entry.state) &&
        (lives == nullptr || (node.claim && entry.id == node.claim->job)))
      lives = &entry;
  if (lives == nullptr) {
    if (!entries.empty() || ++node.missed >= kMissed)
      gone(node, now, entries.empty() ? "Slurm does not know it" : entries.back().state);
    return;
  }
  node.missed = 0;
  node.error.clear();
  node.job = lives->id;
  node.partition = lives->partition;
  node.reason = lives->reason;
  node.ends = lives->ends;
  if (node.state == State::ending) return;
  if (lives->state == "COMPLETING") {
    if (node.leaving.empty()) node.leaving = job_text(node.job) + " is ending";
  } else {
    node.state = lives->state == "PENDING" ? State::pending : State::running;
  }
}

void SlurmPool::learn(const SlurmNews& news, double now) {
  trouble_ = news.trouble;
  for (const auto& [key, claim] : news.claims)
    if (nodes_[key.node].generation == key.generation) {
      Node& node = nodes_[key.node];
      if (!node.claim) node.idle_since = now;
      node.claim = claim;
      if (node.job.empty()) node.job = claim.job;
    }
  for (const PilotKey& key : news.noticed)
    if (nodes_[key.node].generation == key.generation) nodes_[key.node].noticed = true;
  for (const PilotKey& key : news.written_down)
    if (nodes_[key.node].generation == key.generation) nodes_[key.node].written_down = true;
  for (const auto& [key, entries] : news.queue)
    if (news.listed && nodes_[key.node].generation == key.generation &&
        nodes_[key.node].state != State::none)
      look(nodes_[key.node], entries, now);
  for (const auto& [key, why] : news.refused)
    if (nodes_[key.node].generation == key.generation) nodes_[key.node].error = why;
}

std::string SlurmPool::trouble(size_t n) const {
  const Node& node = nodes_[n];
  const std::string lost = trouble_.empty() ? "" : fmt::format("; {}", trouble_);
  if (!node.error.empty() && (node.state == State::none || node.state == State::asked))
    return node.error + lost;
  switch (node.state) {
    case State::none:
      return "no pilot is there, since nothing needs it";
    case State::asked:
      return "a pilot is being asked of Slurm" + lost;
    case State::pending:
      return fmt::format("pilot {} is pending in partition {}: {}{}", node.job, node.partition,
                         node.reason, lost);
    case State::running:
      return fmt::format("pilot {} has begun in partition {}, and has not come yet{}", node.job,
                         node.partition, lost);
    case State::ending:
      return node.leaving + lost;
  }
  return "";
}

}  // namespace ductile::cluster
