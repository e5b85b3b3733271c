// What Ductile's policy remembers, as JSON: all that a round does not compute anew from what it is
// told.
#include <algorithm>

#include "ductile/sched/ductile_policy_impl.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {

using nlohmann::json;

namespace {

constexpr int32_t kMostTrials = 1000;  // after as many doublings there is no further one

}  // namespace

json DuctilePolicy::Impl::to_json(const State& s) {
  json configurations = json::array();
  for (const Configuration& c : s.configurations)
    configurations.push_back({c.pool, c.devices, c.nodes, c.rate});
  json out = {{"slot", s.slot},
              {"modelled", s.modelled},
              {"seen_devices", s.seen_devices},
              {"speeds_version", s.speeds_version},
              {"bounds", {s.least, s.most_wanted}},
              {"configurations", std::move(configurations)},
              {"application", s.application},
              {"service", s.grant >= 0 || s.gone},
              {"had", {s.progress, s.service, s.service_at_start}},
              {"times", {s.arrival, s.last_update, s.waiting_since}},
              {"fair_progress", s.fair_progress},
              {"best_per_device", s.best_per_device},
              {"given", {s.given_weight, s.given_pause, s.given_promise}},
              {"given_stake", s.given_stake},
              {"given_shape", {s.given_devices, s.given_pool, s.given_most}}};
  if (s.noise) out["noise"] = sched::to_json(*s.noise);
  if (!s.plan_rates.empty()) out["plan_rates"] = s.plan_rates;
  if (s.trials > 0) out["trials"] = {s.trials, s.trial, s.trial_rate};
  return out;
}

DuctilePolicy::Impl::State DuctilePolicy::Impl::state_from(const json& item,
                                                           const std::string& where, size_t pools) {
  const JsonFields f(item, where);
  f.only({"job", "slot", "modelled", "seen_devices", "bounds", "configurations", "application",
          "service", "had", "times", "fair_progress", "best_per_device", "given", "given_stake",
          "given_shape", "noise", "plan_rates", "speeds_version", "trials"});
  State s;
  s.slot = static_cast<int>(f.integer("slot", 0, kMostSavedJobs));
  s.modelled = f.boolean("modelled");
  s.seen_devices = static_cast<int32_t>(f.integer("seen_devices", -1, 1 << 30));
  const json& bounds = f.array("bounds");
  if (bounds.size() != 2) f.wrong("bounds", "a list of [least, most]", bounds);
  s.least = static_cast<int32_t>(f.as_integer(bounds[0], "bounds", 0, INT32_MAX));
  s.most_wanted = static_cast<int32_t>(f.as_integer(bounds[1], "bounds", 0, INT32_MAX));
  for (const json& c : f.array("configurations")) {
    if (!c.is_array() || c.size() != 4)
      f.wrong("configurations", "a list of [pool, devices, nodes, rate]", c);
    const auto whole = [&](size_t at, int64_t low, int64_t high) {
      return static_cast<int32_t>(f.as_integer(c[at], "configurations", low, high));
    };
    s.configurations.push_back({whole(0, 0, static_cast<int64_t>(pools) - 1), whole(1, 1, 1 << 30),
                                whole(2, 1, 1 << 30),
                                f.as_number(c[3], "configurations", 1e-300, kMostSaved)});
  }
  s.application = f.text("application");
  s.grant = f.boolean("service") ? 0 : -1;
  const auto three = [&](const char* key, double low) {
    return numbers_from(f, f.at(key), key, low, kMostSaved, 3);
  };
  const std::vector<double> had = three("had", 0), times = three("times", -kMostSaved),
                            given = three("given", -1), shape = three("given_shape", -2);
  s.progress = had[0], s.service = had[1], s.service_at_start = had[2];
  s.arrival = times[0], s.last_update = times[1], s.waiting_since = times[2];
  s.fair_progress = f.number("fair_progress", 0, kMostSaved);
  s.best_per_device = f.number("best_per_device", 0, kMostSaved);
  s.given_weight = given[0], s.given_pause = given[1], s.given_promise = given[2];
  // Not in states of earlier versions.
  if (f.has("speeds_version"))
    s.speeds_version = static_cast<uint32_t>(f.integer("speeds_version", 0, UINT32_MAX));
  if (f.has("given_stake")) s.given_stake = f.number("given_stake", -1, kMostSaved);
  for (size_t i = 0; i < 3; ++i) {
    int32_t* const fields[] = {&s.given_devices, &s.given_pool, &s.given_most};
    *fields[i] =
        static_cast<int32_t>(f.as_integer(f.at("given_shape")[i], "given_shape", -2, INT32_MAX));
  }
  if (f.has("trials")) {
    const std::vector<double> trials = numbers_from(f, f.at("trials"), "trials", 0, kMostSaved, 3);
    s.trials = static_cast<int32_t>(std::min<double>(trials[0], kMostTrials));
    s.trial = static_cast<int32_t>(std::min<double>(trials[1], kMostCount));
    s.trial_rate = trials[2];
  }
  if (f.has("noise")) s.noise = noise_from(f, f.at("noise"), "noise");
  if (f.has("plan_rates"))
    s.plan_rates = numbers_from(f, f.at("plan_rates"), "plan_rates", 0, kMostSaved);
  return s;
}

json DuctilePolicy::Impl::state() const {
  json pools = json::array(), jobs = json::array();
  for (size_t p = 0; p < pools_.size(); ++p)
    pools.push_back({pools_[p].cluster, pools_[p].type, pools_[p].whole_nodes, pools_[p].devices,
                     restored_ ? nodes_in_pools_[p] : pools_[p].nodes.size()});
  std::vector<JobId> ids;
  for (const auto& [id, s] : states_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const JobId id : ids) {
    json item = to_json(states_.at(id));
    item["job"] = id;
    jobs.push_back(std::move(item));
  }
  json out = {{"nodes", nodes_},
              {"types", type_names_},
              {"pools", std::move(pools)},
              {"slots", slots_},
              {"jobs", std::move(jobs)},
              {"work_left", work_left_.state()},
              {"applications", applications_.state()}};
  if (allocator_) out["allocator"] = allocator_->state();
  return out;
}

// Jobs and their places in the allocator, which has read its own.
void DuctilePolicy::Impl::read_jobs(const JsonFields& f) {
  slots_ = static_cast<int>(f.integer("slots", 0, kMostSavedJobs));
  std::vector<uint8_t> used(static_cast<size_t>(slots_), 0);
  for (const json& item : f.array("jobs")) {
    const JsonFields named(item, f.where());
    const JobId id = named.integer("job", 0, INT64_MAX);
    State s = state_from(item, fmt::format("{}: job {}", f.where(), id), pools_.size());
    const auto slot = static_cast<size_t>(s.slot);
    if (slot >= used.size() || used[slot]++ != 0)
      named.wrong("slot", "a place that no other job has", named.at("slot"));
    if (allocator_ && s.slot < allocator_->num_jobs()) {
      // What was chosen among these is looked up in the configurations.
      const size_t choices = allocator_->choices(s.slot).size();
      if (choices != 0 && choices != s.configurations.size())
        named.wrong("configurations", "as many as the allocator has of the job",
                    named.at("configurations"));
    }
    if (!states_.emplace(id, std::move(s)).second)
      f.wrong("jobs", "a list of different jobs", f.at("jobs"));
  }
  for (int slot = slots_; slot-- > 0;)
    if (used[static_cast<size_t>(slot)] == 0) free_slots_.push_back(slot);
}

void DuctilePolicy::Impl::restore(const json& state, const std::string& where) {
  Impl read(options_);
  as_data_loss([&] {
    const JsonFields f(state, where);
    f.only({"nodes", "types", "pools", "slots", "jobs", "work_left", "applications", "allocator"});
    read.nodes_ = static_cast<size_t>(f.integer("nodes", 0, 1 << 30));
    for (const json& type : f.array("types")) {
      if (!type.is_string()) f.wrong("types", "a list of names", type);
      read.type_names_.push_back(type.get<std::string>());
    }
    for (const json& item : f.array("pools")) {
      if (!item.is_array() || item.size() != 5 || read.pools_.size() == Allocator::kMaxTypes)
        f.wrong("pools", "a list of at most 8 lists of 5 numbers", item);
      const auto whole = [&](size_t at, int64_t high) {
        return f.as_integer(item[at], "pools", 0, high);
      };
      Pool p;
      p.cluster = static_cast<int32_t>(whole(0, 1 << 30));
      p.type = static_cast<int32_t>(whole(1, 1 << 30));
      p.whole_nodes = static_cast<int32_t>(whole(2, 1 << 30));
      p.devices = whole(3, int64_t{1} << 40);
      read.pools_.push_back(std::move(p));
      read.nodes_in_pools_.push_back(static_cast<size_t>(whole(4, 1 << 30)));
    }
    read.work_left_ = WorkLeft::from_state(f.at("work_left"), where + ": work left");
    read.applications_ =
        ApplicationModels::from_state(f.at("applications"), where + ": applications");
    if (f.has("allocator")) {
      read.allocator_ = std::make_unique<Allocator>(Allocator::from_state(
          f.at("allocator"), where + ": allocator", read.allocator_options()));
      if (read.allocator_->capacity().size() != read.pools_.size())
        f.wrong("pools", "as many as the allocator has", f.at("pools"));
    }
    read.read_jobs(f);
  });
  read.restored_ = true;
  *this = std::move(read);
}

// Those who saved it may have had a clock that was ahead. The pools get their nodes. In another
// cluster than the saved one all of it is modelled anew, and where the device types are others,
// what was learned of them is forgotten.
void DuctilePolicy::Impl::go_on_in(const Round& round) {
  restored_ = false;
  for (auto& [id, s] : states_)
    for (double* time : {&s.arrival, &s.last_update, &s.waiting_since})
      *time = std::min(*time, round.now);
  const std::vector<Pool> now = find_pools(round.cluster, round.now);
  bool same = type_names_ == round.cluster.types && now.size() == pools_.size() &&
              nodes_ == static_cast<size_t>(round.cluster.nodes());
  for (size_t p = 0; same && p < now.size(); ++p)
    same = now[p].cluster == pools_[p].cluster && now[p].type == pools_[p].type &&
           now[p].nodes.size() == nodes_in_pools_[p];
  if (!type_names_.empty() && type_names_ != round.cluster.types) applications_ = {};
  if (!same) {
    pools_.clear();
    return;
  }
  per_node_.clear();
  for (int32_t t = 0; t < round.cluster.type_count(); ++t)
    per_node_.push_back(round.cluster.devices_per_node(t));
  for (size_t p = 0; p < now.size(); ++p) pools_[p].nodes = now[p].nodes;
}

nlohmann::json DuctilePolicy::state() const { return impl_->state(); }
void DuctilePolicy::restore(const nlohmann::json& state, const std::string& where) {
  impl_->restore(state, where);
}

}  // namespace ductile::sched
