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
constexpr double kTimeToUse = 60;                       // a few rounds of a policy
constexpr double kTryAgain = 20;  // so pilots are unused for a twentieth of the time
constexpr int kMissed = 2;        // lists without a pilot until it counts as gone

std::string job_text(const std::string& job) {
  return job.empty() ? std::string("a pilot") : "pilot " + job;
}

}  // namespace

// A job that needs one node for all of it goes where there is room for it now; where there is none,
// a pilot has to have as much, whatever else the own nodes could serve.
Demand beyond_own_nodes(Demand demand, const std::vector<int64_t>& own) {
  std::vector<Demand::Whole> rooms;
  for (size_t n = 0; n < own.size() && n < demand.nodes.size(); ++n) {
    const Demand::Node& node = demand.nodes[n];
    if (!node.usable || own[n] == 0) continue;
    rooms.push_back({own[n] - node.devices, node.gpus.value_or(0) - node.of_gpu_jobs.gpus});
    demand.devices -= own[n] - node.of_gpu_jobs.devices;
  }
  const auto finds_room = [&](const Demand::Whole& job) {
    for (Demand::Whole& room : rooms) {
      if (room.devices < job.devices || room.gpus < job.gpus) continue;
      room = {room.devices - job.devices, room.gpus - job.gpus};
      return true;
    }
    return false;
  };
  std::ranges::stable_sort(demand.on_gpus, std::ranges::greater(), &Demand::Whole::gpus);
  std::erase_if(demand.on_gpus, [&](const Demand::Whole& job) {
    const bool here = finds_room(job);
    if (here) demand.devices += job.devices;  // others have less of the node
    return here;
  });
  std::erase_if(demand.on_one_node, [&](int64_t devices) { return finds_room({devices, 0}); });
  int64_t nowhere = 0;
  for (const int64_t devices : demand.on_one_node) nowhere += devices;
  demand.devices = std::max({int64_t{0}, demand.devices, nowhere});
  demand.nodes.erase(demand.nodes.begin(),
                     demand.nodes.begin() +
                         static_cast<std::ptrdiff_t>(std::min(own.size(), demand.nodes.size())));
  return demand;
}

SlurmPool::SlurmPool(std::vector<spec::Pool> pools)
    : pools_(std::move(pools)), enough_(pools_.size()) {
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

void SlurmPool::follow(Demand demand) {
  demand_ = std::move(demand);
  demand_.nodes.resize(nodes_.size());
  std::ranges::stable_sort(demand_.on_gpus, std::ranges::greater(), &Demand::Whole::gpus);
  std::ranges::sort(demand_.on_one_node, std::ranges::greater());
  for (size_t n = 0; n < nodes_.size(); ++n) nodes_[n].held = demand_.nodes[n].devices > 0;
}

// Whether any pool says that its pilots have GPUs. Else partitions give them, or there are none.
bool SlurmPool::tells_gpus() const {
  return std::ranges::any_of(pools_, [](const spec::Pool& pool) {
    return pool.gpus > 0 || spec::options_name_gpus(pool);
  });
}

bool SlurmPool::may_have(const Demand::Whole& job) const {
  return job.gpus == 0 || !tells_gpus() || std::ranges::any_of(pools_, [&](const spec::Pool& pool) {
           return pool.devices >= job.devices &&
                  (pool.gpus >= job.gpus || spec::options_name_gpus(pool));
         });
}

// Of one whose number is an option of sbatch: as many as one has said that it has; before that, as
// many as anybody asks for.
int64_t SlurmPool::gpus_of_a_pilot(size_t pool) const {
  if (!spec::options_name_gpus(pools_[pool])) return pools_[pool].gpus;
  std::optional<int64_t> most;
  for (size_t n = 0; n < nodes_.size() && n < demand_.nodes.size(); ++n)
    if (const auto& gpus = demand_.nodes[n].gpus; nodes_[n].pool == pool && gpus)
      most = std::max(most.value_or(0), *gpus);
  return most.value_or(INT32_MAX);
}

// Pilots of each pool. A job with GPUs that holds nothing yet, and then one that needs one node for
// all of it, goes to the first pilot that has room for it, or that a pool could still have. What is
// left of these pilots, and of those that jobs hold, serves the others, and then the pools in turn.
std::vector<int64_t> SlurmPool::wanted() const {
  struct Pilot {
    size_t pool = 0;
    Demand::Whole room;   // beside all that is held
    int64_t devices = 0;  // for the others, those that hold some of it among them
    bool is_needed = false;
  };
  std::vector<Pilot> pilots;
  std::vector<int64_t> there(pools_.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const Node& node = nodes_[n];
    if (node.state == State::none || !node.leaving.empty()) continue;
    const Demand::Node held = n < demand_.nodes.size() ? demand_.nodes[n] : Demand::Node();
    const spec::Pool& pool = pools_[node.pool];
    const int64_t gpus = held.gpus && node.claim ? *held.gpus : gpus_of_a_pilot(node.pool);
    pilots.push_back(Pilot{node.pool,
                           {pool.devices - held.devices, gpus - held.of_gpu_jobs.gpus},
                           pool.devices - held.of_gpu_jobs.devices,
                           node.held});
    ++there[node.pool];
  }
  int64_t devices = demand_.devices;
  const auto place = [&](const Demand::Whole& job) {
    auto pilot = std::ranges::find_if(pilots, [&](const Pilot& p) {
      return (job.gpus == 0 || p.room.gpus >= job.gpus) && p.room.devices >= job.devices;
    });
    for (size_t p = 0; p < pools_.size() && pilot == pilots.end(); ++p) {
      const int64_t gpus = gpus_of_a_pilot(p);
      if (gpus < job.gpus || pools_[p].devices < job.devices || there[p] >= pools_[p].max) continue;
      ++there[p];
      pilot =
          pilots.insert(pilots.end(), Pilot{p, {pools_[p].devices, gpus}, pools_[p].devices, true});
    }
    if (pilot == pilots.end()) return;
    pilot->is_needed = true;
    pilot->devices -= job.devices;
    pilot->room = {pilot->room.devices - job.devices, pilot->room.gpus - job.gpus};
  };
  for (const Demand::Whole& job : demand_.on_gpus)
    place(tells_gpus() ? job : Demand::Whole{job.devices, 0});
  for (const int64_t whole : demand_.on_one_node) {
    devices -= whole;
    place({whole, 0});
  }
  std::vector<int64_t> taken(pools_.size());
  for (const Pilot& pilot : pilots) {
    if (!pilot.is_needed) continue;
    ++taken[pilot.pool];
    devices -= pilot.devices;
  }
  std::vector<int64_t> out;
  for (size_t p = 0; p < pools_.size(); ++p) {
    const spec::Pool& pool = pools_[p];
    const int64_t missing = std::max<int64_t>(0, devices);
    const int64_t pilots_of = std::clamp<int64_t>(
        taken[p] + (missing + pool.devices - 1) / pool.devices, pool.min, pool.max);
    devices -= (pilots_of - taken[p]) * pool.devices;
    out.push_back(pilots_of);
  }
  return out;
}

// What jobs could use, they may not want: one that would be no faster stays as it is. So where all
// pilots have come, nobody waits, and some were not used for as long as a policy needs to decide,
// those that are used are enough, until other jobs need devices, or the same ones more or on other
// pilots, or it is time to try again.
std::vector<int64_t> SlurmPool::needed(double now) {
  std::vector<int64_t> out = wanted();
  std::vector<bool> held;
  for (const Node& node : nodes_) held.push_back(node.held);
  if (demand_.waits || demand_.jobs != asked_.jobs || demand_.devices > asked_.devices ||
      held != asked_.held) {
    asked_ = {demand_.jobs, demand_.devices, std::move(held), now};
    enough_.assign(pools_.size(), std::nullopt);
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    std::optional<Enough>& enough = enough_[p];
    const double patience = std::max(static_cast<double>(pools_[p].idle), kTimeToUse);
    if (enough && now >= enough->until) {
      enough.reset();
      asked_.since = now;
    }
    int64_t used = 0;
    bool all_came = true;
    std::optional<double> unused_since;
    for (const Node& node : nodes_) {
      if (node.pool != p || node.state == State::none) continue;
      if (!node.leaving.empty())
        all_came = all_came && !node.held;  // its jobs will need another one
      else if (node.held)
        ++used;
      else if (node.state == State::running && node.claim)
        unused_since = std::max({unused_since.value_or(0), node.idle_since, asked_.since});
      else
        all_came = false;
    }
    if (!enough && all_came && unused_since && now >= *unused_since + patience)
      enough = Enough{used, now + kTryAgain * patience};
    if (enough) out[p] = std::min(out[p], std::max(enough->pilots, pools_[p].min));
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
  const std::vector<int64_t> wanted = needed(now);
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
