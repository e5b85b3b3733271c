#include "ductile/train/online_tuner.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/spec/live_options.h"
#include "ductile/spec/methods.h"
#include "ductile/tune/progress.h"

namespace ductile::train {
namespace {

using Json = nlohmann::json;

constexpr double kClocksOfAFirstRun = 10;
constexpr double kBeforeAClock = 0.1;  // when the loss before any training is said to be seen
constexpr double kAround[] = {1, 10, 0.1, 100, 0.01};  // learning rates that are tried first
constexpr int64_t kSideBySide = 3;                     // trials of the shortest length
const std::string kApart(kTunerPart);
const std::string kRoot = "root";         // the state from which a search begins
const std::string kGood = "good";         // after a search: the state to go back to
constexpr size_t kCurvePoints = 60;       // of a piece of a trial, in its event
constexpr double kAfterDivergence = 0.3;  // the largest rate then, of the one that diverged

tune::Scale scale_of(spec::LiveScale scale) {
  if (scale == spec::LiveScale::log) return tune::Scale::log;
  return scale == spec::LiveScale::linear ? tune::Scale::linear : tune::Scale::log_to_one;
}

tune::Space space_of(const spec::JobOptions& job) {
  using tune::Kind;
  using tune::Scale;
  std::vector<tune::Dimension> out;
  const auto range = [&](const char* name, const std::vector<double>& v, Scale scale) {
    if (!v.empty()) out.push_back({name, Kind::real, scale, v.front(), v.back()});
  };
  range("lr", job.tune.lr, Scale::log);
  range("momentum", job.tune.momentum, Scale::log_to_one);
  range("weight_decay", job.tune.weight_decay, Scale::log);
  const auto choice = [&](const char* name, const std::vector<int64_t>& values) {
    std::vector<std::string> texts;
    for (const int64_t value : values) texts.push_back(std::to_string(value));
    if (!texts.empty()) out.push_back({name, Kind::choice, Scale::linear, 0, 1, std::move(texts)});
  };
  choice("batch_size", job.tune.batch_size);
  choice("staleness", job.tune.staleness);
  for (const spec::TunedOption& tuned : spec::tuned_options(job)) {
    out.push_back({std::string(tuned.option->key), tuned.whole ? Kind::integer : Kind::real,
                   scale_of(tuned.option->scale), tuned.least, tuned.largest});
  }
  return tune::Space(std::move(out));
}

// A trial is to say something of the staleness that it is chosen for.
void check_staleness(const spec::JobOptions& job, double updates) {
  for (const int64_t staleness : job.tune.staleness) {
    if (staleness == 0 || 2 * static_cast<double>(staleness + 1) <= updates + 1e-9) continue;
    fail(ErrorCode::invalid_argument,
         "tune.staleness: weights can be {0} updates behind from update {1} on, and the shortest "
         "trial has {2:.0f}, of which that may be the half; set a larger tune.clock_epochs, or "
         "leave {0} out",
         staleness, staleness + 2, updates);
  }
}

// A trial in which an option is never read says nothing of it: it has two epochs, since what it
// begins in may be one that was planned before.
void check_by_epoch(const spec::JobOptions& job, double epochs) {
  for (const spec::TunedOption& tuned : spec::tuned_options(job)) {
    if (!tuned.option->by_epoch || epochs > 2 - 1e-9) continue;
    fail(ErrorCode::invalid_argument,
         "tune.options: {} is read as an epoch begins, and the shortest trial has {:g} epochs, of "
         "which it has to have two; set tune.clock_epochs = {:g} or more, or leave it out",
         tuned.option->key, epochs, 2 / kClocksOfAFirstRun);
  }
}

// The setting of the job file, by the names of the space.
Json setting_of(const spec::JobOptions& job) {
  Json out = to_json(optim::Hyper::of(job));
  for (const spec::TunedOption& tuned : spec::tuned_options(job)) {
    const double value = spec::live_value(job, tuned.option->key);
    // Without clipping: the largest norm is nearest to that.
    const bool is_open = tuned.option->key == "optimizer.clip_norm" && value == 0;
    out[std::string(tuned.option->key)] = is_open ? tuned.largest : value;
  }
  return out;
}

// Whether an epoch of the run is one of samples that are looked at, not of those that are trained.
bool counts_stream(const spec::JobOptions& job) {
  return job.train.method != "plain" && !spec::counts_updates(job);
}

std::string branch_of(int64_t trial) { return std::to_string(trial); }

Json json_of(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json& memory_of(JobState& state) { return state.extra(kApart).values; }

const Json* memory_of(const JobState& state) {
  const auto part = state.extras().find(kApart);
  return part == state.extras().end() || part->second.values.empty() ? nullptr
                                                                     : &part->second.values;
}

// Whether the last clock's loss is ten times what it was as the search began, and worse than that
// of weights that were never trained: nothing more has to be seen of such a trial (tune/progress.h
// judges by the end of the piece alone). Where a net has learnt its samples, one batch's loss may
// be ten times another one's without any step.
bool is_lost(const Json& memory) {
  const Json& seen = memory.at("seen");
  if (seen.empty() || !memory.contains("start")) return false;
  const double start = memory.at("start").get<double>(), last = seen.back()[1].get<double>();
  return last > memory.value("untrained", start) && tune::is_ten_times(last - start, start);
}

// Pairs of epochs and loss for the report: what a picture has room for.
Json curve_of(const std::vector<tune::Observation>& seen) {
  Json out = Json::array();
  const size_t each = seen.size() / kCurvePoints + 1;
  for (size_t i = 0; i < seen.size(); ++i)
    if (std::isfinite(seen[i].value) && (i % each == 0 || i + 1 == seen.size()))
      out.push_back({seen[i].budget, seen[i].value});
  return out;
}

// What is compared of the trials: how fast their losses fall.
std::string why_dropped(const tune::TrialPolicy& policy, int64_t trial) {
  const auto speed = [&](int64_t t) -> std::string {
    const auto& seen = policy.searcher().trials()[static_cast<size_t>(t)].seen;
    if (seen.empty()) return "nothing";
    const tune::Progress progress = tune::progress_of(seen[0], std::span(seen).subspan(1));
    return progress.slope ? fmt::format("{:.3g} per epoch", 0 - *progress.slope) : "nothing";
  };
  const int64_t kept = policy.kept();
  const std::string other =
      kept < 0 || kept == trial ? "" : fmt::format(", that of trial {} by {}", kept, speed(kept));
  const auto& seen = policy.searcher().trials()[static_cast<size_t>(trial)].seen;
  if (!seen.empty() &&
      tune::progress_of(seen[0], std::span(seen).subspan(1)).verdict == tune::Verdict::diverged)
    return "it diverged";
  return fmt::format("its loss fell by {}{}", speed(trial), other);
}

// Moves what was noted for the diary into an event.
void tell(Json& memory, const char* what) {
  memory["event"] = {{"what", what}, {"moves", std::exchange(memory["moves"], Json::array())}};
}

}  // namespace

// A clock has at least one batch in it.
OnlineTuner::OnlineTuner(const spec::JobOptions& job, int64_t train_size,
                         std::function<double()> epoch)
    : job_(job),
      train_size_(static_cast<double>(train_size)),
      space_(space_of(job)),
      clock_(job.tune.clock_epochs),
      epoch_(std::move(epoch)) {
  tune::searchers().at(job.tune.searcher);  // or it says which there are
  int64_t largest = job.train.batch_size;
  for (const int64_t size : job.tune.batch_size) {
    largest = std::max(largest, size);
    if (size > train_size) {
      fail(ErrorCode::invalid_argument,
           "tune.batch_size: {} is larger than the training set, which has {} samples", size,
           train_size);
    }
  }
  clock_ = std::max(clock_, static_cast<double>(largest) / train_size_);
  check_by_epoch(job, kClocksOfAFirstRun * clock_);
  check_staleness(job, kClocksOfAFirstRun * clock_ * train_size_ / static_cast<double>(largest));
  if (kClocksOfAFirstRun * clock_ > static_cast<double>(job.train.epochs)) {
    fail(ErrorCode::invalid_argument,
         "tune.online = true: the shortest trial has {} clocks of {:g} epochs, and the run has {} "
         "epochs; set a larger train.epochs, or a smaller tune.clock_epochs and train.batch_size",
         kClocksOfAFirstRun, clock_, job.train.epochs);
  }
}

double OnlineTuner::most_epochs_of_a_search() const {
  return std::min(job_.tune.budget, 1.0) * static_cast<double>(job_.train.epochs);
}

double OnlineTuner::trials_of_a_search() const {
  return most_epochs_of_a_search() / (kClocksOfAFirstRun * clock_);
}

std::string OnlineTuner::warning() const {
  const double trials = trials_of_a_search();
  if (trials >= kSideBySide - 1e-9) return "";
  return fmt::format(
      "tune.budget = {:g}: the {:g} epochs of a search are enough for {:.1f} of the shortest "
      "trials, which have {:g} epochs, and {} are compared at first; with a larger tune.budget or "
      "train.epochs, or a smaller tune.clock_epochs and train.batch_size, more are tried",
      job_.tune.budget, most_epochs_of_a_search(), trials, kClocksOfAFirstRun * clock_,
      kSideBySide);
}

// Without the learning rates at which the run diverged.
tune::Space OnlineTuner::space_now(const Json& memory) const {
  std::vector<tune::Dimension> dimensions = space_.dimensions();
  for (tune::Dimension& d : dimensions) {
    if (d.name == "lr" && !memory.at("largest_lr").is_null())
      d.high = std::clamp(memory.at("largest_lr").get<double>(), d.low, d.high);
  }
  return tune::Space(std::move(dimensions));
}

// As the memory has it; a new one where a search begins.
std::unique_ptr<tune::TrialPolicy> OnlineTuner::make_policy(const Json& memory) const {
  tune::SearcherOptions searcher;
  // Another one for each search, and none below 0 after the largest.
  searcher.seed = static_cast<int64_t>(
      (static_cast<uint64_t>(job_.seed) + memory.at("searches").get<uint64_t>()) & INT64_MAX);
  for (const Json& setting : memory.at("first"))
    searcher.first.push_back(setting.get<tune::Setting>());
  searcher.startup = std::max<int64_t>(4, std::ssize(searcher.first));
  tune::PolicyOptions policy;
  policy.unit = clock_;
  policy.least_budget = kClocksOfAFirstRun * clock_;
  policy.full_budget = searcher.full_budget = static_cast<double>(job_.train.epochs);
  policy.total_budget = std::max(memory.at("budget").get<double>(), clock_);
  policy.mltuner.trial_bound = std::max(1.0, policy.least_budget);
  policy.mltuner.side_by_side = kSideBySide;
  auto out = tune::make_trial_policy(
      "mltuner", tune::make_searcher(job_.tune.searcher, space_now(memory), searcher), policy);
  if (!memory.at("policy").is_null()) out->restore(memory.at("policy"));
  return out;
}

void OnlineTuner::begin(JobState& state) const {
  Json memory = {{"searches", 0}, {"setting", nullptr}, {"largest_lr", nullptr}, {"good", nullptr}};
  memory["moves"] = Json::array();
  begin_search(state, memory);
  memory_of(state) = std::move(memory);
}

// The present setting, moved into the space, and others that differ in the learning rate: a user's
// is more often wrong by a factor of ten or a hundred than by one of ten thousand.
Json OnlineTuner::first_settings(const Json& memory) const {
  const Json of_job = setting_of(job_);
  const Json& present = memory.at("setting");
  const tune::Space space = space_now(memory);
  tune::Setting setting;
  const tune::Dimension* lr = nullptr;
  for (const tune::Dimension& d : space.dimensions()) {
    const Json value = present.is_null() ? of_job.at(d.name) : present.at(d.name);
    if (d.name == "lr") lr = &d;
    if (d.kind == tune::Kind::choice) {
      const auto at = std::ranges::find(d.choices, dump_json(value));
      setting.push_back(at == d.choices.end() ? 0 : static_cast<double>(at - d.choices.begin()));
    } else {
      setting.push_back(d.name == "lr" ? value.get<double>()
                                       : std::clamp(value.get<double>(), d.low, d.high));
    }
  }
  Json out = Json::array();
  for (const double factor : kAround) {
    tune::Setting other = setting;
    if (lr != nullptr) other[static_cast<size_t>(lr - space.dimensions().data())] *= factor;
    if (space.contains(other)) out.push_back(other);
    if (lr == nullptr) break;
  }
  return out;
}

void OnlineTuner::begin_search(JobState& state, Json& memory) const {
  memory["before"] = memory["setting"];
  memory["first"] = first_settings(memory);
  memory["budget"] =
      std::min(job_.tune.budget * static_cast<double>(job_.train.epochs), epochs_left());
  memory["policy"] = nullptr;
  memory["trial"] = -1;
  memory["losses"] = Json::array();
  memory.erase("start");
  memory["searches"] = memory["searches"].get<int64_t>() + 1;
  state.save_branch(kRoot, kApart);
  const auto policy = make_policy(memory);
  move_on(state, memory, *policy);
}

bool OnlineTuner::is_searching(const JobState& state) const {
  const Json* memory = memory_of(state);
  return memory != nullptr && !memory->at("policy").is_null();
}

bool OnlineTuner::takes_divergence(const JobState& state) const {
  return is_searching(state) || state.branches().contains(kGood);
}

double OnlineTuner::epochs_left() const {
  return static_cast<double>(job_.train.epochs) - epoch_();
}

std::optional<double> OnlineTuner::search_share(const JobState& state) const {
  if (!is_searching(state)) return std::nullopt;
  const Json& memory = *memory_of(state);
  return memory.at("policy").at("spent").get<double>() / memory.at("budget").get<double>();
}

optim::Hyper OnlineTuner::adjusted(const JobState& state, optim::Hyper hyper, double epoch) const {
  const Json* memory = memory_of(state);
  if (is_searching(state) && epoch < job_.schedule.warmup_epochs) hyper.lr = job_.optimizer.lr;
  if (memory == nullptr || memory->at("setting").is_null()) return hyper;
  for (const auto& [name, value] : memory->at("setting").items()) {
    if (name == "lr") hyper.lr *= value.get<double>() / job_.optimizer.lr;
    if (name == "momentum") hyper.momentum = hyper.beta1 = value.get<double>();
    if (name == "weight_decay") hyper.weight_decay = value.get<double>();
    if (name == "batch_size") hyper.batch_size = value.get<int64_t>();
    if (name == "staleness") hyper.staleness = value.get<int64_t>();
    if (spec::find_live_option(name) != nullptr) hyper.set(name, value.get<double>());
  }
  return hyper;
}

void OnlineTuner::passed(JobState& state) const { memory_of(state).erase("event"); }

bool OnlineTuner::updated(JobState& state, const Update& update) const {
  Json memory = std::move(memory_of(state));
  memory.erase("event");
  bool has_changed = false;
  const bool is_between = memory.at("policy").is_null();
  if (is_between && !std::isfinite(update.loss) && state.branches().contains(kGood)) {
    go_back(state, memory);
    has_changed = true;
  } else if (is_between) {
    has_changed = !update.is_last && watch(state, memory);
    if (update.is_last) state.drop_branches();
  } else {
    note(memory, state, update.loss);
    const Json& seen = memory.at("seen");
    const bool is_through = !seen.empty() && seen.back()[0] == memory.at("until");
    if (is_through || is_lost(memory) || !std::isfinite(update.loss) || update.is_last)
      has_changed = end_piece(state, memory, update);
  }
  memory_of(state) = std::move(memory);
  return has_changed;
}

// What the trial under way has seen: the loss before any training, and the mean of each clock.
void OnlineTuner::note(Json& memory, const JobState& state, double loss) const {
  const double clock = clock_ * train_size_;
  const double before = memory["samples"];
  double after = before + static_cast<double>(state.last_hyper.batch_size);
  // A method that chooses samples comes further in the stream with an update than it trains, or
  // not at all while it trains on what waits. Samples are counted, since the share of an epoch that
  // a sample is depends on the batch, which trials may change.
  if (counts_stream(job_)) {
    const int64_t now = state.counters.cursor;
    after = before + static_cast<double>(now - memory.value("cursor", now));
    memory["cursor"] = now;
  }
  memory["samples"] = after;
  if (!std::isfinite(loss)) return;
  if (before == 0 && memory["seen"].empty()) {
    // All trials of a search begin in one state. Where batches are tuned it is judged by one sample
    // of it, since smaller batches would have noisier ones of their own.
    if (!memory.contains("start")) memory["start"] = loss;
    if (!memory.contains("untrained")) memory["untrained"] = loss;  // by the first search
    const double start = job_.tune.batch_size.empty() ? loss : memory["start"].get<double>();
    memory["seen"].push_back({kBeforeAClock * clock_, start});
  }
  memory["sum"] = memory["sum"].get<double>() + loss;
  memory["count"] = memory["count"].get<int64_t>() + 1;
  const double clocks = std::floor(after / clock + 1e-9);
  if (clocks <= std::floor(before / clock + 1e-9)) return;
  const double until = memory["until"];
  const double budget = clocks * clock_ < until * (1 - 1e-9) ? clocks * clock_ : until;
  memory["seen"].push_back({budget, memory["sum"].get<double>() / memory["count"].get<double>()});
  memory["sum"] = 0.0;
  memory["count"] = 0;
}

// The trial has run as far as it was to, or it cannot go on.
bool OnlineTuner::end_piece(JobState& state, Json& memory, const Update& update) const {
  const int64_t trial = memory["trial"];
  const bool has_diverged = !std::isfinite(update.loss) || is_lost(memory);
  const auto policy = make_policy(memory);
  tune::Result result{trial, {}, update.is_last && !has_diverged};
  for (const Json& s : memory["seen"])
    result.seen.push_back({s[0].get<double>(), s[1].get<double>()});
  Json told = {{"what", has_diverged ? "diverged" : "ran"}, {"trial", trial}};
  told["setting"] = memory["setting"];
  double reached = result.seen.empty() ? memory["from"].get<double>() : result.seen.back().budget;
  if (!result.seen.empty()) told["loss"] = result.seen.back().value;
  if (!std::isfinite(update.loss)) {
    reached = std::min(reached + clock_, memory["until"].get<double>());
    result.seen.push_back({reached, NAN});
  } else if (has_diverged) {
    result.seen.back().value = NAN;
  }
  if (has_diverged) {
    state.drop_branch(branch_of(trial));
  } else {
    state.save_branch(branch_of(trial), kApart);
  }
  told["epochs"] = reached;
  told["curve"] = curve_of(result.seen);
  memory["moves"].push_back(std::move(told));
  policy->tell(result);
  return move_on(state, memory, *policy) || has_diverged;
}

// Follows the policy to its next piece of training. Whether the state changed.
bool OnlineTuner::move_on(JobState& state, Json& memory, tune::TrialPolicy& policy) const {
  const int64_t last = memory["trial"];
  while (true) {
    const tune::Move move = policy.next();
    if (move.kind == tune::MoveKind::drop) {
      state.drop_branch(branch_of(move.trial));
      memory["moves"].push_back(
          {{"what", "dropped"}, {"trial", move.trial}, {"why", why_dropped(policy, move.trial)}});
      continue;
    }
    const bool is_trial = move.kind == tune::MoveKind::start || move.kind == tune::MoveKind::resume;
    if (!is_trial || !policy.is_searching()) {
      finish(state, memory, policy, is_trial ? move.trial : policy.kept(),
             is_trial ? "its loss falls fastest" : move.reason);
      return true;
    }
    const bool resumes = move.kind == tune::MoveKind::resume;
    const bool is_here = resumes && move.trial == last;
    if (!is_here) state.take_branch(resumes ? branch_of(move.trial) : kRoot, kApart);
    const tune::Trial& trial = policy.searcher().trials()[static_cast<size_t>(move.trial)];
    memory["trial"] = move.trial;
    memory["from"] = trial.budget();
    memory["until"] = move.budget;
    // Not less than its clocks took, or the last of them would end once more.
    memory["samples"] = std::ceil(trial.budget() * train_size_ - 1e-6);
    if (counts_stream(job_)) memory["cursor"] = state.counters.cursor;
    memory["sum"] = 0.0;
    memory["count"] = 0;
    memory["seen"] = Json::array();
    memory["setting"] = space_.values(trial.setting);
    memory["policy"] = policy.save();
    memory["moves"].push_back({{"what", resumes ? "resumed" : "started"},
                               {"trial", move.trial},
                               {"setting", memory["setting"]},
                               {"until", move.budget},
                               {"why", move.reason}});
    tell(memory, "trial");
    return !is_here;
  }
}

// The search is over: the winner's branch becomes the state, the others go.
void OnlineTuner::finish(JobState& state, Json& memory, const tune::TrialPolicy& policy,
                         int64_t winner, const std::string& why) const {
  if (winner >= 0) {
    state.take_branch(branch_of(winner), kApart);
    memory["setting"] =
        space_.values(policy.searcher().trials()[static_cast<size_t>(winner)].setting);
  } else {  // nothing was better than what there was
    state.take_branch(kRoot, kApart);
    memory["setting"] = memory["before"];
  }
  keep(state, memory);
  memory["policy"] = nullptr;
  memory["evaluated_at"] = state.evaluated_at;
  memory["moves"].push_back(
      {{"what", "chosen"}, {"trial", winner}, {"setting", memory["setting"]}, {"why", why}});
  tell(memory, "search_over");
}

// Of the branches only one to go back to, for as long as another search may begin there. The end of
// a trial is good only if nothing is that an evaluation says so of.
void OnlineTuner::keep(JobState& state, const Json& memory) const {
  std::vector<std::string> others;
  for (const auto& [name, image] : state.branches())
    if (name != kGood) others.push_back(name);
  for (const std::string& name : others) state.drop_branch(name);
  if (memory["searches"].get<int64_t>() > job_.tune.retunings || epochs_left() < clock_) {
    state.drop_branch(kGood);
  } else if (!state.branches().contains(kGood)) {
    state.save_branch(kGood, kApart);
  }
}

// The run diverged after a search.
void OnlineTuner::go_back(JobState& state, Json& memory) const {
  const double lr = state.last_hyper.lr;
  // What was done after that step is no part of the run any more.
  const Json step = state.branches().at(kGood).values().at("step");
  state.take_branch(kGood, kApart);
  double largest = job_.optimizer.lr;
  if (!memory["setting"].is_null() && memory["setting"].contains("lr"))
    largest = memory["setting"]["lr"];
  memory["largest_lr"] = kAfterDivergence * largest;
  memory["moves"].push_back({{"what", "went_back"},
                             {"step", step},
                             {"setting", memory["setting"]},
                             {"why", fmt::format("the loss was not finite at a learning rate of "
                                                 "{:g}",
                                                 lr)}});
  const Json first = first_settings(memory);
  if (!first.empty()) memory["setting"] = space_.values(first[0].get<tune::Setting>());
  begin_search(state, memory);
}

// Between searches: another one begins where the evaluations stand still.
bool OnlineTuner::watch(JobState& state, Json& memory) const {
  if (!state.last || state.evaluated_at == memory["evaluated_at"]) return false;
  memory["evaluated_at"] = state.evaluated_at;
  const bool by_loss = job_.data.format == "tokens" || std::isnan(state.last->accuracy);
  memory["losses"].push_back(json_of(by_loss ? state.last->loss : 1 - state.last->accuracy));
  std::vector<double> losses;
  for (const Json& l : memory["losses"]) losses.push_back(l.is_null() ? NAN : l.get<double>());
  const int64_t without_best = tune::values_without_best(losses);
  if (losses.back() < (memory["good"].is_null() ? INFINITY : memory["good"].get<double>())) {
    memory["good"] = losses.back();
    state.drop_branch(kGood);
    keep(state, memory);
  }
  if (memory["searches"].get<int64_t>() > job_.tune.retunings ||
      without_best < job_.tune.patience || epochs_left() < 2 * kClocksOfAFirstRun * clock_)
    return false;
  begin_search(state, memory);
  return true;
}

}  // namespace ductile::train
