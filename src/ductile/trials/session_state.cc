#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/base/text.h"
#include "ductile/spec/changed_options.h"
#include "ductile/trials/session.h"

// What a session writes down, and how it is read again.
namespace ductile::trials {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormat = 1;

Json to_json(const tune::Observation& o) {
  return {o.budget, std::isfinite(o.value) ? Json(o.value) : Json()};
}

constexpr double kMost = std::numeric_limits<double>::max();

constexpr std::string_view kStatuses[] = {"waiting",  "running", "paused", "finished",
                                          "diverged", "refused", "dropped"};

// What became of a trial, as TrialRecord has it.
std::string status_from(const JsonFields& fields, const char* key) {
  std::string out = fields.text(key);
  const bool is_later = key == std::string_view("later_status");
  if (!(is_later && out.empty()) && std::ranges::find(kStatuses, out) == std::end(kStatuses))
    fields.wrong(key, "what may become of a trial", fields.at(key));
  return out;
}

// As tune.json has it, of a job of so many epochs.
TrialRecord trial_from(const Json& json, double full, const std::string& where) {
  const JsonFields fields(json, where);
  TrialRecord out;
  for (const Json& v : fields.array("setting"))
    out.setting.push_back(fields.as_number(v, "setting", -kMost, kMost));
  out.status = status_from(fields, "status");
  out.reason = fields.text("reason");
  const auto read = [&](const char* key, std::vector<tune::Observation>& observations) {
    for (const Json& o : fields.array(key)) {
      if (!o.is_array() || o.size() != 2) fields.wrong(key, "a list of pairs", o);
      observations.push_back({fields.as_number(o[0], key, 0, full),
                              o[1].is_null() ? NAN : fields.as_number(o[1], key, -kMost, kMost)});
    }
    const auto rises = [](const tune::Observation& a, const tune::Observation& b) {
      return a.budget < b.budget;
    };
    if (std::ranges::adjacent_find(observations, std::not_fn(rises)) != observations.end())
      fields.wrong(key, "a list of pairs whose epochs rise", fields.at(key));
  };
  read("seen", out.seen);
  if (fields.has("later")) {  // not in a session of an earlier version
    read("later", out.later);
    out.later_status = status_from(fields, "later_status");
  }
  out.core_seconds = fields.number("core_seconds", 0, kMost);
  out.wall_seconds = fields.number("wall_seconds", 0, kMost);
  return out;
}

// The setting that a session began with; nothing in one that was begun before there was such a one.
std::optional<tune::Setting> first_from(const JsonFields& fields, const tune::Space& space) {
  if (!fields.has("first") || fields.at("first").is_null()) return std::nullopt;
  tune::Setting out;
  for (const Json& v : fields.array("first"))
    out.push_back(fields.as_number(v, "first", -kMost, kMost));
  if (!space.contains(out)) fields.wrong("first", "a setting of the space", fields.at("first"));
  return out;
}

// What became of job.toml since the session wrote it down, which one of an earlier version did not.
void check_same_job(const JsonFields& fields, const spec::JobOptions& job, const fs::path& folder) {
  if (!fields.has("job")) return;
  spec::JobOptions now = job;
  const std::vector<std::string> changed =
      spec::changed_options(spec::upgraded_job(fields.at("job"), (folder / "tune.json").string()),
                            OptionSet(now).to_json(), has_built_in_model(job));
  if (changed.empty()) return;
  fail(ErrorCode::conflict,
       "{} was changed since the session began in what shapes the result: {}; put the old "
       "values back, or begin another session",
       (folder / "job.toml").string(), fmt::join(changed, ", "));
}

}  // namespace

Session Session::open(const fs::path& folder) {
  const fs::path file = folder / "tune.json";
  if (kind_of(file) == FileKind::none)
    fail(ErrorCode::not_found, "{}: no tuning session (it has no tune.json)", folder.string());
  for (const char* name : {"tune.json", "job.toml"}) {  // opening a FIFO would wait for ever
    if (kind_of(folder / name) != FileKind::file)
      fail(ErrorCode::data_loss, "{}: it is {}, and a tuning session has a file there",
           (folder / name).string(), kind_text(folder / name));
  }
  // Before anything is read: another one may save and end meanwhile.
  auto lock = std::make_unique<run::RunLock>(folder, run::RunLock::kTuner);
  try {
    const Json state = parse_json(read_file(file), file.string(), ErrorCode::data_loss);
    const JsonFields fields(state, file.string());
    if (fields.integer("format", 0, 1 << 20) != kFormat)
      fail(ErrorCode::conflict, "{}: written by another version of Ductile", file.string());
    Setup setup;
    OptionSet(setup).read_json(fields.at("setup"), file.string());
    Session out(folder, {setup, tune::Space::from_json(fields.at("space"), file.string())},
                read_file(folder / "job.toml"), std::move(lock));
    check_same_job(fields, out.job_, folder);
    out.first_ = first_from(fields, out.tuning_.space);
    out.rules_ = fields.has("rules") ? fields.integer("rules", 0, kRules) : 0;
    out.make_policy();
    out.restore(state);
    return out;
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::data_loss, "{}: {}", file.string(), e.what());
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) throw;
    throw Error(ErrorCode::data_loss, e.what());
  }
}

void Session::change(const std::vector<std::string>& assignments) {
  Setup setup = tuning_.setup;
  for (const std::string& assignment : assignments) set_option(setup, assignment);
  Setup same = setup;
  same.budget = tuning_.setup.budget;
  same.at_once = tuning_.setup.at_once;
  same.finish = tuning_.setup.finish;
  if (!(same == tuning_.setup))
    fail(ErrorCode::invalid_argument,
         "--tune {}: that would make another search; with --resume, --tune sets budget, at_once, "
         "finish. Begin another session without --resume",
         to_utf8(fmt::format("{}", fmt::join(assignments, " "))));
  check_budget(setup, job_);
  if (setup == tuning_.setup) return;
  const double before = budget();
  const Setup old = std::exchange(tuning_.setup, setup);
  if (const double after = budget(); after < before) {
    tuning_.setup = old;
    fail(ErrorCode::invalid_argument,
         "--tune: budget = {:g} is less than the {:g} epochs that the session has", after, before);
  }
  const bool has_other_budget = setup.budget != old.budget;
  const bool is_finishing = finishing_ && !planned_.empty();
  if (has_other_budget || (is_finishing && !setup.finish)) set_aside_the_end();
  if (has_other_budget) {
    over_.clear();
    earlier_ = trials_.size();
  }
  const Json policy = policy_->save();
  make_policy();
  policy_->restore(policy);
  save();
}

// The policy was not told of what ran after the search. The runs keep it: a trial that is to go on
// to where it has been already is not trained again.
void Session::set_aside_the_end() {
  const bool is_under_way = std::exchange(finishing_, false) && !planned_.empty();
  if (is_under_way) planned_.clear();
  for (size_t i = 0; i < trials_.size(); ++i) {
    TrialRecord& record = trials_[i];
    const double known = policy_->searcher().trials()[i].budget();
    const auto later = std::ranges::find_if(
        record.seen, [&](const tune::Observation& o) { return o.budget > known; });
    const bool is_ahead = later != record.seen.end();
    if (!is_ahead && !(is_under_way && record.status == "running")) continue;
    if (is_ahead && record.status != "running") {
      record.later.assign(later, record.seen.end());
      record.later_status = record.status;
    }
    record.seen.erase(later, record.seen.end());
    record.status = "paused";
    record.reason = kOthers;
  }
}

// What was reached after an earlier end of the search counts again, as far as it goes further.
void Session::take_back_the_end() {
  for (TrialRecord& record : trials_) {
    const double reached = record.seen.empty() ? 0 : record.seen.back().budget;
    const bool goes_on = record.status == "paused" || record.status == "dropped";
    std::erase_if(record.later, [&](const tune::Observation& o) { return o.budget <= reached; });
    if (goes_on && !record.later.empty()) {
      record.seen.insert(record.seen.end(), record.later.begin(), record.later.end());
      record.status = record.later_status;
      record.reason =
          record.status == "diverged" ? "the loss was not finite" : "it has run to its end";
    }
    record.later.clear();
  }
}

void Session::save() const {
  Json trials = Json::array();
  for (const TrialRecord& t : trials_) {
    Json seen = Json::array();
    for (const tune::Observation& o : t.seen) seen.push_back(to_json(o));
    Json later = Json::array();
    for (const tune::Observation& o : t.later) later.push_back(to_json(o));
    trials.push_back({{"setting", t.setting},
                      {"values", tuning_.space.values(t.setting)},
                      {"status", t.status},
                      {"reason", t.reason},
                      {"seen", seen},
                      {"later", later},
                      {"later_status", t.later_status},
                      {"core_seconds", t.core_seconds},
                      {"wall_seconds", t.wall_seconds}});
  }
  Json planned = Json::array();
  for (const auto& [trial, epochs] : planned_) planned.push_back({trial, epochs});
  Setup setup = tuning_.setup;
  spec::JobOptions job = job_;
  const Json state = {{"format", kFormat},
                      {"job", OptionSet(job).to_json()},
                      {"setup", OptionSet(setup).to_json()},
                      {"space", tuning_.space.to_json()},
                      {"best", best()},  // for whoever finds the folder (run/folder.h)
                      {"first", first_ ? Json(*first_) : Json()},
                      {"rules", rules_},
                      {"policy", policy_->save()},
                      {"trials", trials},
                      {"planned", planned},
                      {"over", over_},
                      {"finishing", finishing_},
                      {"earlier", earlier_},
                      {"wall_seconds", wall_seconds_}};
  write_file_atomic(folder_ / "tune.json", dump_json(state));
}

void Session::restore(const Json& state) {
  const std::string file = (folder_ / "tune.json").string();
  const JsonFields fields(state, file);
  policy_->restore(fields.at("policy"));
  const std::vector<tune::Trial>& known = policy_->searcher().trials();
  if (first_ && !known.empty() && known[0].setting != *first_)
    fail(ErrorCode::data_loss, "{}: first is not the setting of trial 0", file);
  for (const Json& t : fields.array("trials")) {
    const size_t number = trials_.size();
    trials_.push_back(trial_from(t, full(), fmt::format("{}: trial {}", file, number)));
    if (number >= known.size() || trials_.back().setting != known[number].setting)
      fail(ErrorCode::data_loss, "{}: trial {} is not that of the search", file, number);
  }
  // Saved between a drop and the start that was decided with it, there is one more, which never
  // ran.
  const bool is_asked_for = known.size() == trials_.size() + 1 && known.back().seen.empty();
  if (trials_.size() != known.size() && !is_asked_for)
    fail(ErrorCode::data_loss, "{}: trials has {}, and the search knows {}", file, trials_.size(),
         known.size());
  for (const Json& p : fields.array("planned")) {
    if (!p.is_array() || p.size() != 2) fields.wrong("planned", "a list of pairs", p);
    const int64_t trial = fields.as_integer(p[0], "planned", 0, std::ssize(trials_) - 1);
    const double epochs = fields.as_number(p[1], "planned", 0, full());
    if (!planned_.emplace(trial, epochs).second)
      fields.wrong("planned", "a list with each trial once", fields.at("planned"));
  }
  over_ = fields.text("over");
  finishing_ = fields.boolean("finishing");
  if (fields.has("earlier"))  // not in a session of an earlier version
    earlier_ = static_cast<size_t>(fields.integer("earlier", 0, std::ssize(trials_)));
  wall_seconds_ = fields.number("wall_seconds", 0, kMost);
}

}  // namespace ductile::trials
