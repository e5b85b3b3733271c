// Tiresias (Gu et al., NSDI'19): two queues by attained service, as in Pollux's comparison. A job
// that has had 16 device-hours moves to the second queue for good; in each queue first come, first
// served, and smaller jobs fill what larger ones leave.
#include <algorithm>

#include <fmt/format.h>

#include "ductile/sched/policies_impl.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {
namespace {

constexpr double kDemotion = 16 * 3600;  // device-seconds

class Tiresias : public ReasonedPolicy {
 public:
  std::string_view name() const override { return "tiresias"; }
  PolicyTraits traits() const override { return {.uses = Scaling::rigid}; }

  Decisions decide(const Round& round) override {
    const size_t n = round.jobs.size();
    std::unordered_map<JobId, size_t> index;
    for (size_t i = 0; i < n; ++i) index.emplace(round.jobs[i].id, i);
    for (auto& queue : queues_) std::erase_if(queue, [&](JobId id) { return !index.contains(id); });
    std::erase_if(states_, [&](const auto& entry) { return !index.contains(entry.first); });
    for (const JobView& job : round.jobs) {
      auto [found, fresh] = states_.try_emplace(job.id);
      State& state = found->second;
      if (fresh) queues_[0].push_back(job.id);
      if (state.running) {
        state.executed += round.now - state.checked;
        if (!state.demoted && state.executed * job.requested_devices >= kDemotion) {
          std::erase(queues_[0], job.id);
          queues_[1].push_back(job.id);
          state.demoted = true;
        }
      }
      state.checked = round.now;
    }
    std::vector<int64_t> room(round.cluster.type_count(), 0);
    for (int32_t node = 0; node < round.cluster.nodes(); ++node)
      room[round.cluster.node_type[node]] += round.cluster.usable(node);
    std::vector<int32_t> type(n, -1);
    std::vector<size_t> order;
    for (const auto& queue : queues_) {
      for (const JobId id : queue) {
        const size_t i = index.at(id);
        const JobView& job = round.jobs[i];
        order.push_back(i);
        std::vector<int32_t> choices = types_by_speed(job);
        const int32_t held = held_type(round.cluster, job);
        if (held >= 0) choices.insert(choices.begin(), held);
        for (const int32_t t : choices) {
          if (room[t] < job.requested_devices) continue;
          type[i] = t;
          room[t] -= job.requested_devices;
          break;
        }
        states_[id].running = type[i] >= 0;
      }
    }
    FreeDevices free(round.cluster);
    std::vector<Allocation> next(n);
    std::vector<std::string> reasons(n);
    for (size_t i = 0; i < n; ++i) {
      if (type[i] < 0 || type[i] != held_type(round.cluster, round.jobs[i])) continue;
      next[i] = round.jobs[i].allocation;
      free.take(next[i]);
    }
    for (const size_t i : order) {
      const JobView& job = round.jobs[i];
      const int level = states_[job.id].demoted ? 2 : 1;
      if (type[i] < 0) {
        reasons[i] = fmt::format("waits in queue {} for {} devices; those before it hold them",
                                 level, job.requested_devices);
        continue;
      }
      reasons[i] = fmt::format("runs from queue {}", level);
      if (next[i].empty()) next[i] = free.take_most_free_first(type[i], job.requested_devices);
    }
    return decisions(round, std::move(next), std::move(reasons));
  }

  nlohmann::json state() const override {
    nlohmann::json out = {{"queues", {queues_[0], queues_[1]}}, {"jobs", nlohmann::json::array()}};
    for (const auto& queue : queues_)
      for (const JobId id : queue) {
        const State& s = states_.at(id);
        out["jobs"].push_back({s.running, s.executed, s.checked});
      }
    return out;
  }

  void restore(const nlohmann::json& state, const std::string& where) override {
    as_data_loss([&] {
      const JsonFields f(state, where);
      f.only({"queues", "jobs"});
      const nlohmann::json& queues = f.array("queues");
      const nlohmann::json& jobs = f.array("jobs");
      if (queues.size() != 2) f.wrong("queues", "a list of two queues", queues);
      std::vector<JobId> queued[2];
      std::unordered_map<JobId, State> states;
      for (size_t q = 0, at = 0; q < 2; ++q) {
        if (!queues[q].is_array()) f.wrong("queues", "a list of two queues", queues);
        for (const nlohmann::json& item : queues[q]) {
          const JobId id = f.as_integer(item, "queues", 0, INT64_MAX);
          if (at >= jobs.size() || !jobs[at].is_array() || jobs[at].size() != 3 ||
              !jobs[at][0].is_boolean())
            f.wrong("jobs", "a list of [running, seconds, time] for each queued job", jobs);
          const State s{jobs[at][0].get<bool>(), q == 1,
                        f.as_number(jobs[at][1], "jobs", 0, kMostSaved),
                        f.as_number(jobs[at][2], "jobs", -kMostSaved, kMostSaved)};
          ++at;
          if (!states.emplace(id, s).second) f.wrong("queues", "queues of different jobs", queues);
          queued[q].push_back(id);
        }
      }
      if (jobs.size() != states.size()) f.wrong("jobs", "as long as the queues", jobs);
      states_ = std::move(states);
      for (size_t q = 0; q < 2; ++q) queues_[q] = std::move(queued[q]);
    });
  }

 private:
  struct State {
    bool running = false, demoted = false;
    double executed = 0, checked = 0;  // seconds
  };
  std::vector<JobId> queues_[2];
  std::unordered_map<JobId, State> states_;
};

}  // namespace

std::unique_ptr<Policy> make_tiresias(const PolicyOptions&) { return std::make_unique<Tiresias>(); }

}  // namespace ductile::sched
