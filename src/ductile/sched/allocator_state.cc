// An allocator as JSON: what cannot be computed from its jobs' choices, and those.
#include "ductile/sched/allocator.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {

using nlohmann::json;

json Allocator::state() const {
  json jobs = json::array();
  for (int i = 0; i < num_jobs(); ++i) {
    const Job& j = jobs_[static_cast<size_t>(i)];
    json options = json::array();
    for (const Option& c : choices(i)) options.push_back({c.type, c.gpus, c.value});
    jobs.push_back({std::move(options), j.chosen, j.dirty});
  }
  return {{"capacity", capacity_},
          {"prices", prices_},
          {"known", prices_known_},
          {"gap", fresh_gap_},
          {"jobs", std::move(jobs)}};
}

Allocator Allocator::from_state(const json& state, const std::string& where,
                                AllocatorOptions options) {
  return as_data_loss([&] {
    const JsonFields f(state, where);
    f.only({"capacity", "prices", "known", "gap", "jobs"});
    std::vector<int64_t> capacity;
    for (const json& c : f.array("capacity"))
      capacity.push_back(f.as_integer(c, "capacity", 0, int64_t{1} << 40));
    Allocator out(capacity, options);
    out.prices_ = numbers_from(f, f.at("prices"), "prices", 0, kMostSaved, capacity.size());
    out.prices_known_ = f.boolean("known");
    out.fresh_gap_ = f.number("gap", -1, 1);
    const json& jobs = f.array("jobs");
    if (jobs.size() > kMostSavedJobs) f.wrong("jobs", "a list of at most 2^20 jobs", jobs);
    std::vector<Option> choices;
    std::vector<uint8_t> dirty;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const json& item = jobs[i];
      if (!item.is_array() || item.size() != 3 || !item[0].is_array() || !item[2].is_boolean())
        f.wrong("jobs", "a list of [choices, chosen, changed]", item);
      choices.clear();
      for (const json& c : item[0]) {
        const std::vector<double> v = numbers_from(f, c, "jobs", -1, kMostSaved, 3);
        choices.push_back({static_cast<int32_t>(f.as_integer(c[0], "jobs", 0, INT32_MAX)),
                           static_cast<int32_t>(f.as_integer(c[1], "jobs", 0, 1 << 30)), v[2]});
      }
      out.set_job(static_cast<int>(i), choices);
      Job& j = out.jobs_[i];
      const auto chosen = static_cast<int>(
          f.as_integer(item[1], "jobs", -1, static_cast<int64_t>(choices.size()) - 1));
      out.choose(j, chosen);
      out.best_response(j, out.prices_.data(), j.surplus);
      dirty.push_back(item[2].get<bool>());
    }
    out.dirty_.clear();
    for (size_t i = 0; i < dirty.size(); ++i) {
      out.jobs_[i].dirty = dirty[i] != 0;
      if (dirty[i] != 0) out.dirty_.push_back(static_cast<int>(i));
    }
    return out;
  });
}

}  // namespace ductile::sched
