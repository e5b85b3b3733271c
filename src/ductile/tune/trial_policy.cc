#include "ductile/tune/trial_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/text.h"
#include "ductile/tune/trial_policies_impl.h"

namespace ductile::tune {
namespace {

using Json = nlohmann::json;

constexpr PolicyEntry kPolicies[] = {
    {"full", make_full, "every trial is run to its end", false},
    {"one_epoch", make_one_epoch, "many trials for the least budget, the best of them to the end",
     true},
    {"halving", make_halving, "successive halving: of each rung the best go on", true},
    {"hyperband", make_hyperband,
     "brackets of successive halving with longer and longer first runs", false},
    {"asha", make_asha,
     "asynchronous halving: a trial goes on when it is among the best of its rung", false},
    {"mltuner", make_mltuner, "trials of a length that doubles until one converges; re-tuning",
     true},
    {"freeze_thaw", make_freeze_thaw,
     "a searcher that forecasts curves chooses among all paused trials and a new one", true, true},
};

constexpr std::pair<MoveKind, std::string_view> kMoveWords[] = {{MoveKind::start, "start"},
                                                                {MoveKind::resume, "resume"},
                                                                {MoveKind::drop, "drop"},
                                                                {MoveKind::wait, "wait"},
                                                                {MoveKind::stop, "stop"}};

}  // namespace

std::string_view to_string(MoveKind kind) { return kMoveWords[static_cast<size_t>(kind)].second; }

void describe(Describer& d, PolicyOptions::Full& o) {
  d.field("whole_only", o.whole_only,
          "begin no trial that what is left of the total budget does not run to its end, unless "
          "the total itself is less than such a run");
}

void describe(Describer& d, PolicyOptions::Halving& o) {
  d.field("eta", o.eta, "of each rung one in so many goes on, with so many times the budget")
      .range(1.5, 100);
  d.field("settings", o.settings,
          "halving: trials of a bracket; 0: as many as the total budget pays for, else eta to the "
          "number of rungs")
      .range(0, 1e6);
}

void describe(Describer& d, PolicyOptions::OneEpoch& o) {
  d.field("screened", o.screened, "share of the total budget for the short runs").range(0, 1);
  d.field("settings", o.settings, "short runs; 0: as many as that share pays for").range(0, 1e6);
  d.field(
       "keep", o.keep,
       "how many are run to the end; 0: as many as the total budget pays for, one without a total")
      .range(0, 1e6);
}

void describe(Describer& d, PolicyOptions::MlTuner& o) {
  d.field("trial_bound", o.trial_bound,
          "the longest trial of a search (an epoch); 0: a quarter of the full budget")
      .at_least(0);
  d.field("patience", o.patience,
          "values without a new best before the tuner searches again; one more: it stops")
      .range(1, 1e6);
  d.field("retunings", o.retunings, "how often it searches again at most").range(0, 1e6);
  d.field(
       "side_by_side", o.side_by_side,
       "trials that begin together, and with each doubling; above 1, of those that do not converge "
       "only the best goes on")
      .range(1, 1e6);
  d.field("search_share", o.search_share,
          "share of the total budget after which the best trial is trained on, without new ones")
      .range(0.01, 1);
  d.field("forks", o.forks, "trials of a later search take over the state of the best one");
}

void describe(Describer& d, PolicyOptions::FreezeThaw& o) {
  d.field("growth", o.growth, "factor between the budgets at which a trial is paused")
      .range(1.01, 100);
  d.field(
      "finish_best", o.finish_best,
      "whoever runs the trials runs the best one to its end after the search, beside the total "
      "budget: ends are forecast at the full budget, however little is left, and new trials begin "
      "as long as a first look at them is paid for");
}

void describe(Describer& d, PolicyOptions& o) {
  d.field("full_budget", o.full_budget, "budget of a trial that is run to its end").above(0);
  d.field("least_budget", o.least_budget, "budget of a short first run").above(0);
  d.field("unit", o.unit, "budgets are multiples of it").above(0);
  d.field("total_budget", o.total_budget, "budget of all trials together").above(0);
  d.section("full", o.full, "every trial to its end");
  d.section("halving", o.halving, "successive halving, Hyperband, ASHA");
  d.section("one_epoch", o.one_epoch, "the one-epoch baseline");
  d.section("mltuner", o.mltuner, "MLtuner's rule");
  d.section("freeze_thaw", o.freeze_thaw, "freeze-thaw");
}

TrialPolicy::TrialPolicy(std::string_view name, std::unique_ptr<Searcher> searcher,
                         const PolicyOptions& options)
    : name_(name), searcher_(std::move(searcher)), options_(options) {
  if (!(options_.least_budget <= options_.full_budget))
    fail(ErrorCode::invalid_argument, "least_budget is {}, which is above full_budget, {}",
         options_.least_budget, options_.full_budget);
  if (!(options_.unit <= options_.least_budget))
    fail(ErrorCode::invalid_argument, "unit is {}, which is above least_budget, {}", options_.unit,
         options_.least_budget);
}

double TrialPolicy::rounded(double budget) const {
  if (budget >= options_.full_budget) return options_.full_budget;  // which may be no multiple
  const double units = std::max(1.0, std::round(budget / options_.unit));
  return std::min(units * options_.unit, options_.full_budget);
}

double TrialPolicy::units_left() const { return std::floor(left() / options_.unit + kRounding); }

Move TrialPolicy::next() {
  if (drops_.empty() && !held_) {
    if (units_left() < 1) return wait_or_stop("the total budget is spent");
    Move move = decide();
    if (drops_.empty()) return committed(std::move(move));
    // Where nothing is run, the same is decided anew after the drops.
    if (move.kind == MoveKind::start || move.kind == MoveKind::resume) held_ = std::move(move);
  }
  if (drops_.empty()) return committed(*std::exchange(held_, std::nullopt));
  const int64_t trial = drops_.front();
  drops_.pop_front();
  return {MoveKind::drop, trial, 0, -1, "it will not be resumed"};
}

Move TrialPolicy::committed(Move move) {
  if (move.kind != MoveKind::start && move.kind != MoveKind::resume) return move;
  states_.resize(trials().size());
  State& state = states_[static_cast<size_t>(move.trial)];
  const double from = trials()[static_cast<size_t>(move.trial)].budget();
  if (move.budget - from > left() + kRounding * options_.unit) {
    move.budget = std::min(move.budget, rounded(from + units_left() * options_.unit));
    move.reason += "; the total budget ends there";
  }
  DUCTILE_CHECK(move.budget > from && state.status == Status::paused,
                "{} of trial {} to {} from {}", to_string(move.kind), move.trial, move.budget,
                from);
  spent_ += move.budget - from;
  state = {Status::running, move.budget};
  ++num_running_;
  return move;
}

void TrialPolicy::tell(const Result& result) {
  const int64_t trial = result.trial;
  if (trial < 0 || trial >= static_cast<int64_t>(states_.size()) ||
      states_[static_cast<size_t>(trial)].status != Status::running)
    fail(ErrorCode::conflict, "trial {} does not run, so it can have no result", trial);
  State& state = states_[static_cast<size_t>(trial)];
  const double from = trials()[static_cast<size_t>(trial)].budget();
  double last = from;
  bool diverged = false;
  for (const Observation& o : result.seen) {
    if (!std::isfinite(o.budget) || o.budget <= last || o.budget > state.planned || diverged)
      fail(ErrorCode::invalid_argument,
           "trial {}: a value at budget {}, after {} and with {} asked for", trial, o.budget, last,
           state.planned);
    last = o.budget;
    diverged = !std::isfinite(o.value);
  }
  if (result.refused && last > 0)
    fail(ErrorCode::invalid_argument,
         "trial {} is refused, and it has come as far as budget {} already", trial, last);
  diverged = diverged || result.refused;
  if (last < state.planned && !diverged && !result.ended)
    fail(ErrorCode::invalid_argument,
         "trial {}: its values end at budget {}, {} was asked for, and it neither diverged nor "
         "ended",
         trial, last, state.planned);
  for (const Observation& o : result.seen) searcher_->tell(trial, o);
  if (result.refused)
    searcher_->tell(trial, {options_.unit, std::numeric_limits<double>::quiet_NaN()});
  spent_ -= state.planned - last;
  --num_running_;
  state.planned = last;
  state.status = diverged                                              ? Status::diverged
                 : result.ended || last >= options_.full_budget - 1e-9 ? Status::finished
                                                                       : Status::paused;
  learn(result);
}

int64_t TrialPolicy::best() const {
  int64_t best = -1;
  for (size_t i = 0; i < trials().size(); ++i)
    if (std::isfinite(trials()[i].best()) &&
        (best < 0 || trials()[i].best() < trials()[static_cast<size_t>(best)].best()))
      best = static_cast<int64_t>(i);
  return best;
}

int64_t TrialPolicy::kept() const {
  int64_t best = -1;
  for (size_t i = 0; i < states_.size(); ++i) {
    const bool is_there =
        states_[i].status == Status::paused || states_[i].status == Status::finished;
    if (is_there && (best < 0 || trials()[i].best() < trials()[static_cast<size_t>(best)].best()))
      best = static_cast<int64_t>(i);
  }
  return best;
}

std::vector<int64_t> TrialPolicy::ranked(std::vector<int64_t> of, double up_to) const {
  // One that diverged cannot go on, whatever it had reached.
  const auto key = [&](int64_t t) {
    return std::pair(status(t) == Status::diverged, trials()[static_cast<size_t>(t)].best(up_to));
  };
  std::stable_sort(of.begin(), of.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });
  return of;
}

Move TrialPolicy::start(double budget, std::string reason) {
  const std::optional<int64_t> trial = own_searcher().ask();
  if (!trial) return wait_or_stop("the space holds no other setting");
  states_.resize(trials().size());
  return {MoveKind::start, *trial, rounded(budget), -1, std::move(reason)};
}

Move TrialPolicy::resume(int64_t trial, double budget, std::string reason) const {
  return {MoveKind::resume, trial, rounded(budget), -1, std::move(reason)};
}

Move TrialPolicy::run_new_or_old(int64_t trial, double budget, std::string reason) const {
  const bool is_new = trials()[static_cast<size_t>(trial)].seen.empty();
  return {is_new ? MoveKind::start : MoveKind::resume, trial, rounded(budget), -1,
          std::move(reason)};
}

Move TrialPolicy::wait_or_stop(std::string reason) const {
  return {num_running_ > 0 ? MoveKind::wait : MoveKind::stop, -1, 0, -1, std::move(reason)};
}

void TrialPolicy::drop(int64_t trial) {
  State& state = states_[static_cast<size_t>(trial)];
  if (state.status != Status::paused) return;
  state.status = Status::dropped;
  drops_.push_back(trial);
}

Json TrialPolicy::save() const {
  Json states = Json::array(), held = nullptr;
  for (const State& s : states_) states.push_back({static_cast<int>(s.status), s.planned});
  if (held_)
    held = {{"kind", to_string(held_->kind)},
            {"trial", held_->trial},
            {"budget", held_->budget},
            {"parent", held_->parent},
            {"reason", held_->reason}};
  return {{"policy", name_},      {"spent", spent_}, {"trials", std::move(states)},
          {"drops", drops_},      {"held", held},    {"searcher", searcher_->save()},
          {"state", save_state()}};
}

void TrialPolicy::restore(const Json& saved) {
  auto old = std::make_tuple(spent_, num_running_, states_, drops_, held_);
  const Json old_searcher = searcher_->save(), old_state = save_state();
  try {
    const JsonFields fields(saved, "saved trial policy");
    if (fields.text("policy") != name_)
      fail(ErrorCode::data_loss, "it is of a policy \"{}\", not \"{}\"",
           JsonFields::shorten(to_utf8(fields.text("policy"))), name_);
    constexpr double kMost = std::numeric_limits<double>::max();
    searcher_->restore(fields.at("searcher"));
    spent_ = fields.number("spent", 0, kMost);
    states_.clear();
    drops_.clear();
    num_running_ = 0;
    for (const Json& json : fields.array("trials")) {
      if (!json.is_array() || json.size() != 2) fields.wrong("trials", "a list of pairs", json);
      const auto status = static_cast<Status>(
          fields.as_integer(json[0], "trials", 0, static_cast<int64_t>(Status::dropped)));
      states_.push_back({status, fields.as_number(json[1], "trials", 0, kMost)});
      num_running_ += status == Status::running;
    }
    if (states_.size() != trials().size())
      fail(ErrorCode::data_loss, "{} states, {} trials", states_.size(), trials().size());
    for (const Json& json : fields.array("drops"))
      drops_.push_back(
          fields.as_integer(json, "drops", 0, static_cast<int64_t>(states_.size()) - 1));
    held_.reset();
    if (!fields.at("held").is_null()) {
      const JsonFields held(fields.at("held"), "saved move");
      const int64_t last = static_cast<int64_t>(states_.size()) - 1;
      Move move;
      held.read("kind", move.kind, kMoveWords);
      move.trial = held.integer("trial", 0, last);
      move.budget = held.number("budget", 0, options_.full_budget);
      move.parent = held.integer("parent", -1, last);
      move.reason = held.text("reason");
      const bool runs = move.kind == MoveKind::start || move.kind == MoveKind::resume;
      if (!runs || status(move.trial) != Status::paused ||
          move.budget <= trials()[static_cast<size_t>(move.trial)].budget())
        fail(ErrorCode::data_loss, "saved move: trial {} cannot make it", move.trial);
      held_ = std::move(move);
    }
    restore_state(fields.at("state"));
  } catch (const Error& e) {
    std::tie(spent_, num_running_, states_, drops_, held_) = std::move(old);
    searcher_->restore(old_searcher);
    restore_state(old_state);
    throw Error(ErrorCode::data_loss,
                fmt::format("the saved trial policy cannot be read: {}", e.what()));
  }
}

Table<PolicyEntry> trial_policies() { return {"trial policy", kPolicies}; }

std::unique_ptr<TrialPolicy> make_trial_policy(std::string_view name,
                                               std::unique_ptr<Searcher> searcher,
                                               const PolicyOptions& options) {
  return trial_policies().at(name).make(std::move(searcher), options);
}

}  // namespace ductile::tune
