#include "ductile/trials/session.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/machine.h"
#include "ductile/base/paths.h"
#include "ductile/page/numbers.h"
#include "ductile/run/new_folder.h"
#include "ductile/trials/report.h"
#include "ductile/trials/trial_process_impl.h"

namespace ductile::trials {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTries = 3;        // of a trial that fails for another reason than that it diverges
constexpr int kBusyTries = 120;  // of one whose run another process still has, as its lock says
constexpr auto kBusy = std::chrono::seconds(1);
constexpr double kSearchShare = 0.5;  // of the budget, with policy = "mltuner"
constexpr int kMostRefused = 50;      // settings in a row, or there are hardly any that are not
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr std::string_view kRefused = "refused: ";
constexpr std::string_view kDiverged = "the run diverged";  // of Replica::apply's message

int64_t places(const Setup& setup) {
  return setup.at_once > 0 ? setup.at_once
                           : std::max<int64_t>(1, static_cast<int64_t>(usable_cores().size()));
}

spec::JobOptions read_job(const std::string& toml, const std::string& name) {
  spec::JobOptions job;
  OptionSet(job).read_toml_text(toml, name, Moved::follow);
  return job;
}

std::string epochs_text(double epochs) {
  return fmt::format("{:g} epoch{}", epochs, epochs == 1 ? "" : "s");
}

bool is_unfinished(std::string_view name) {
  return run::is_unfinished(name, "job.toml") || run::is_unfinished(name, "tune.json");
}

// Whether a session of this folder was cut off before it was there: it has nothing but what
// create() makes first.
bool half_made(const fs::path& folder) {
  if (kind_of(folder) != FileKind::folder) return false;
  const fs::path lock = run::lock_file(folder).filename();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    if (name == "trials" && kind_of(entry.path()) == FileKind::folder && fs::is_empty(entry.path()))
      continue;
    if (name != "job.toml" && name != lock && !is_unfinished(name.string())) return false;
  }
  return true;
}

// What ends a session for now, such as a full disk, with how to go on where it does not say that.
Error with_way_on(const Error& error, const fs::path& folder) {
  const std::string what = error.what();
  if (error.code() != ErrorCode::unavailable || what.find("--resume") != std::string::npos)
    return error;
  const auto is = [&](int number) { return what.find(std::strerror(number)) != std::string::npos; };
  return {error.code(),
          fmt::format("{}\n{} and go on with `ductile tune --resume {}`", what,
                      is(ENOSPC) || is(EDQUOT) ? "Make room," : "Mend that,", folder.string())};
}

}  // namespace

struct Session::Running {
  std::unique_ptr<TrialProcess> process;
  size_t place = 0;           // of the cores
  uintmax_t events_size = 0;  // when they were read last
};

Session::Session(fs::path folder, Tuning tuning, const std::string& job_toml,
                 std::unique_ptr<run::RunLock> lock)
    : folder_(std::move(folder)),
      tuning_(std::move(tuning)),
      job_(read_job(job_toml, (folder_ / "job.toml").string())),
      lock_(std::move(lock)) {}
Session::Session(Session&&) noexcept = default;
Session::~Session() = default;

Session Session::create(const fs::path& folder, const std::string& job_toml, const Tuning& tuning) {
  check_search(tuning.setup, read_job(job_toml, "the job"));
  const auto check_free = [&] {
    if (kind_of(folder) != FileKind::none && !half_made(folder))
      fail(ErrorCode::conflict,
           "{0}: exists already; name another folder, or go on with `ductile tune --resume {0}`",
           folder.string());
  };
  check_free();
  std::error_code error;
  fs::create_directories(folder / "trials", error);
  if (error) fail(ErrorCode::unavailable, "{}: {}", folder.string(), error.message());
  auto lock = std::make_unique<run::RunLock>(folder, run::RunLock::kTuner);
  check_free();  // another one may have made its session and ended since
  Session out(folder, tuning, job_toml, std::move(lock));
  std::vector<fs::path> unfinished;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_unfinished(entry.path().filename().string())) unfinished.push_back(entry.path());
  for (const fs::path& file : unfinished) fs::remove(file, error);
  write_file_atomic(folder / "job.toml", job_toml);
  out.first_ = setting_of(out.tuning_.space, out.job_);
  out.make_policy();
  out.save();
  return out;
}

void Session::make_policy() {
  tune::SearcherOptions searcher;
  searcher.seed = tuning_.setup.seed;
  searcher.full_budget = full();
  if (first_) searcher.first = {*first_};
  // How many trials others make depends on what comes of them.
  if (rules_ > 0 && tuning_.setup.policy == "full")
    searcher.asks = static_cast<int64_t>(budget() / full() + 1e-9);
  tune::PolicyOptions policy;
  policy.full_budget = full();
  policy.unit = unit();
  // One that was begun by an earlier version goes on as it was begun.
  policy.least_budget =
      rules_ > 0 ? first_run(tuning_.setup, job_) : std::min(std::max(1.0, unit()), full());
  policy.total_budget = budget();
  policy.full.whole_only = true;
  policy.mltuner.forks = false;  // a trial's state is its own
  policy.mltuner.trial_bound = std::max(full() / 4, kValuesOfASlope * unit());
  if (rules_ > 0) policy.mltuner.search_share = kSearchShare;
  policy.freeze_thaw.finish_best = tuning_.setup.finish;
  policy_ = tune::make_trial_policy(
      tuning_.setup.policy, tune::make_searcher(tuning_.setup.searcher, tuning_.space, searcher),
      policy);
}

double Session::full() const { return static_cast<double>(job_.train.epochs); }
double Session::unit() const { return std::min(job_.train.eval_every_epochs, full()); }
double Session::budget() const {
  return tuning_.setup.budget > 0 ? tuning_.setup.budget : 10 * full();
}
double Session::badness(double value) const {
  return tuning_.setup.metric == "accuracy" ? 1 - value : value;
}

fs::path Session::trial_folder(int64_t trial) const {
  return folder_ / "trials" / fmt::format("{:04}", trial);
}

// Once the best one has been run to its end, another that is not there yet may look better again:
// what it would be worth there is not known, so it is no result.
int64_t Session::best() const {
  const auto is_whole = [](const TrialRecord& t) { return t.status == "finished"; };
  const bool wants_whole = finishing_ && planned_.empty() && std::ranges::any_of(trials_, is_whole);
  int64_t out = -1;
  for (size_t i = 0; i < trials_.size(); ++i) {
    const auto value = value_of(static_cast<int64_t>(i));
    if (value && trials_[i].status != "diverged" && (!wants_whole || is_whole(trials_[i])) &&
        (out < 0 || badness(*value) < badness(*value_of(out))))
      out = static_cast<int64_t>(i);
  }
  return out;
}

std::optional<double> Session::value_of(int64_t trial) const {
  const std::vector<tune::Observation>& seen = trials_.at(static_cast<size_t>(trial)).seen;
  if (seen.empty() || !std::isfinite(seen.back().value)) return std::nullopt;
  return seen.back().value;
}

double Session::epochs_spent() const {
  double out = 0;
  for (const TrialRecord& t : trials_) out += t.seen.empty() ? 0 : t.seen.back().budget;
  return out;
}

double Session::core_seconds() const {
  double out = 0;
  for (const TrialRecord& t : trials_) out += t.core_seconds;
  return out;
}

std::string Session::job_with(int64_t trial) const {
  spec::JobOptions options = job_;
  OptionSet set(options);
  for (const std::string& a :
       assignments(tuning_.space, trials_.at(static_cast<size_t>(trial)).setting))
    set.set(a);
  return set.to_toml();
}

// ---- Running.

bool Session::run(const Environment& environment) {
  const Clock::time_point begin = Clock::now();
  const double before = wall_seconds_;
  double saved = before;  // of the time
  const auto note_time = [&] {
    wall_seconds_ = before + std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto leave = [&] {
    stop_all();
    note_time();
    try {
      save();
    } catch (const Error&) {  // what was saved last is enough to go on, and the first error is told
    }
  };
  try {
    refused_.clear();
    const std::map<int64_t, double> under_way = planned_;
    for (const auto& [trial, epochs] : under_way) launch(trial, environment);
    while (true) {
      if (environment.interrupted && environment.interrupted()) {
        stop_all();
        note_time();
        save();
        leave_report(*this);
        return false;
      }
      fill(environment);
      if (running_.empty()) {
        if (over_.empty())
          fail(ErrorCode::internal, "{}: the search waits for a trial that does not run",
               folder_.string());
        break;
      }
      const bool has_happened = poll(environment);
      note_time();
      if (has_happened || wall_seconds_ - saved >= environment.seconds_between_saves) {
        save();
        saved = wall_seconds_;
      }
      if (has_happened) leave_report(*this);
      std::this_thread::sleep_for(kLook);
    }
    note_time();
    save();
    if (const int64_t winner = best(); winner >= 0)
      write_file_atomic(folder_ / "best.toml", job_with(winner));
  } catch (const Error& error) {
    leave();
    throw with_way_on(error, folder_);
  } catch (...) {
    leave();
    throw;
  }
  leave_report(*this);
  return true;
}

// Each trial saves and ends.
void Session::stop_all() {
  for (const auto& [trial, running] : running_) running->process->pause();
  running_.clear();
}

void Session::say(const Environment& environment, int64_t trial, const std::string& text) const {
  if (!environment.on_news) return;
  // What is run after the search is not of its budget.
  const std::string spent =
      finishing_ ? "" : fmt::format("{:.1f} of {:g} epochs: ", epochs_spent(), budget());
  environment.on_news(fmt::format("{}trial {}: {}", spent, trial, text));
}

std::string Session::shown_value(int64_t trial) const {
  const auto value = value_of(trial);
  const std::string& metric = tuning_.setup.metric;
  return value ? fmt::format("{} {}", metric, page::as_metric(metric, *value)) : "no " + metric;
}

std::string Session::why_dropped(int64_t trial) const {
  const auto after = [&](int64_t t) {
    const std::vector<tune::Observation>& seen = trials_[static_cast<size_t>(t)].seen;
    return fmt::format("{} after {}", shown_value(t),
                       epochs_text(seen.empty() ? 0 : seen.back().budget));
  };
  const int64_t winner = best();
  return winner < 0 || winner == trial
             ? after(trial)
             : fmt::format("{}; trial {} has {}", after(trial), winner, after(winner));
}

// Starts and resumes trials as long as there is a place for one.
void Session::fill(const Environment& environment) {
  while (over_.empty() && std::ssize(running_) + std::ssize(refused_) < places(tuning_.setup)) {
    if (refused_in_a_row() >= kMostRefused) {
      over_ = fmt::format("the job refused the last {} settings", kMostRefused);
      break;
    }
    const tune::Move move = policy_->next();
    if (move.kind == tune::MoveKind::wait) return;
    if (move.kind == tune::MoveKind::stop) {
      over_ = move.reason.empty() ? "the search is over" : move.reason;
      break;
    }
    const auto trial = static_cast<size_t>(move.trial);
    if (move.kind == tune::MoveKind::drop) {
      trials_[trial].status = "dropped";
      trials_[trial].reason = why_dropped(move.trial);
      save();
      continue;
    }
    const bool is_new = trial >= trials_.size();
    if (is_new) trials_.resize(trial + 1);
    trials_[trial].setting = policy_->searcher().trials()[trial].setting;
    trials_[trial].status = "running";
    trials_[trial].reason = move.reason;
    planned_[move.trial] = move.budget;
    save();
    if (is_new) {
      // What an earlier session began and did not note; there is nothing to keep of it.
      std::error_code ignored;
      fs::remove_all(trial_folder(move.trial), ignored);
      say(environment, move.trial,
          fmt::format("{}; {}", fmt::join(shown(tuning_.space, trials_[trial].setting), " "),
                      epochs_text(move.budget)));
    }
    launch(move.trial, environment);
  }
  // If the best one diverges there, the next one is.
  if (over_.empty() || !running_.empty()) return;
  take_back_the_end();
  if (!tuning_.setup.finish) return;
  const int64_t winner = best();
  finishing_ = true;
  if (winner < 0) return;
  TrialRecord& record = trials_[static_cast<size_t>(winner)];
  if (record.status == "finished" || record.seen.back().budget >= full()) return;
  record.status = "running";
  record.reason = "the best one is run to its end";
  planned_[winner] = full();
  save();
  say(environment, winner, record.reason);
  launch(winner, environment);
  if (running_.empty()) fill(environment);  // its run was over already, and may have diverged
}

void Session::launch(int64_t trial, const Environment& environment) {
  // A short run may have done more than it was asked for before it paused.
  if (complete(trial)) return tell(trial, false, false, environment);
  const std::vector<int> cores = usable_cores();
  const auto at_once = static_cast<size_t>(places(tuning_.setup));
  size_t place = 0;  // the first that is free
  while (std::ranges::any_of(running_, [&](const auto& r) { return r.second->place == place; }))
    ++place;
  TrialProcess::Launch launch;
  launch.program = environment.program;
  launch.trust = environment.trust;
  launch.job = folder_ / "job.toml";
  launch.options = assignments(tuning_.space, trials_[static_cast<size_t>(trial)].setting);
  launch.folder = trial_folder(trial);
  launch.log = folder_ / "trials" / fmt::format("{:04}.log", trial);
  launch.mask = environment.mask;
  // A run that is alone, as the last one is, has all cores where the result does not depend on
  // their number.
  const bool is_alone =
      (finishing_ || (policy_->runs_one() && running_.empty())) && has_built_in_model(job_);
  const size_t shares = is_alone ? 1 : std::max<size_t>(1, std::min(at_once, cores.size()));
  launch.cpus =
      core_share(static_cast<int64_t>(place % shares), static_cast<int64_t>(shares), cores);
  auto running = std::make_unique<Running>();
  running->place = place;
  running->process = std::make_unique<TrialProcess>(launch);
  running_[trial] = std::move(running);
}

// Whether something happened.
bool Session::poll(const Environment& environment) {
  std::vector<int64_t> done;
  bool has_news = false;
  for (const auto& [trial, running] : running_) {
    if (running->process->ended()) {
      done.push_back(trial);
      continue;
    }
    std::error_code none;
    const uintmax_t size = fs::file_size(trial_folder(trial) / "events.jsonl", none);
    if (none || size == running->events_size) continue;
    running->events_size = size;
    has_news = true;
    if (planned_[trial] < full() && reached(trial)) running->process->pause();
  }
  for (const int64_t trial : done) {
    const std::unique_ptr<Running> was = std::move(running_[trial]);
    running_.erase(trial);
    ended(trial, *was->process, environment);
  }
  const bool is_judged = (has_news || !done.empty()) && judge_refused(environment);
  return is_judged || !done.empty();
}

bool Session::reached(int64_t trial) const {
  const std::map<double, double> seen = values(trial);
  return !seen.empty() && seen.rbegin()->first >= planned_.at(trial);
}

// A whole run has its result saved, too.
bool Session::complete(int64_t trial) const {
  if (!reached(trial)) return false;
  if (planned_.at(trial) < full()) return true;
  const std::string status = end_of(trial_folder(trial)).status;
  return status == "done" || status == "target_reached";
}

// The run's evaluations, at multiples of the unit: an evaluation takes place at a whole step, so
// two may belong to one multiple. The first one counts there, since how many more a trial has
// before it pauses depends on the machine; at the end of the run the last one does.
std::map<double, double> Session::values(int64_t trial) const {
  std::map<double, double> out;
  for (const auto& [epoch, value] : evaluations(trial_folder(trial), tuning_.setup.metric)) {
    if (epoch >= full() * (1 - 1e-9)) {
      out[full()] = value;
    } else {
      out.try_emplace(std::min(std::max(1.0, std::round(epoch / unit())) * unit(), full()), value);
    }
  }
  return out;
}

void Session::ended(int64_t trial, const TrialProcess& process, const Environment& environment) {
  const RunEnd end = end_of(trial_folder(trial));
  TrialRecord& record = trials_[static_cast<size_t>(trial)];
  record.core_seconds = std::max(record.core_seconds, end.core_seconds);
  record.wall_seconds = std::max(record.wall_seconds, end.wall_seconds);
  if (complete(trial)) return tell(trial, false, false, environment);
  if (end.status == "failed" && end.message.find(kDiverged) != std::string::npos)
    return tell(trial, true, true, environment);
  if (end.status == "done" || end.status == "target_reached")
    return tell(trial, true, false, environment);
  const std::string log = process.said(5);
  if (process.exit_status() == 2) return refused(trial, log);
  // What a killed session left behind still saves.
  if (process.exit_status() == 4) {
    const bool was_held = run::lock_holder(trial_folder(trial)).has_value();
    std::this_thread::sleep_for(kBusy);  // on another host, too, whose lock is not seen here
    if (was_held || run::lock_holder(trial_folder(trial)))
      return retry(trial, log, waits_, kBusyTries, environment);
  }
  retry(trial,
        end.status == "failed" && process.has_events() ? end.message
        : log.empty()                                  ? "it ended"
                                                       : log,
        failures_, kTries, environment);
}

// Values that contradict one another are a result, as a divergence is: each of them was allowed by
// itself. Where no trial has got anywhere yet, it may be the job that is wrong: that shows once one
// of those that run has a value or diverges, and a trial that is refused before keeps its place
// until then.
void Session::refused(int64_t trial, const std::string& why) {
  if (!trials_[static_cast<size_t>(trial)].seen.empty()) refuse(trial, why);
  refused_[trial] = why;
}

// Whether those that were refused are settled now.
bool Session::judge_refused(const Environment& environment) {
  if (refused_.empty()) return false;
  if (!is_job_right()) {
    if (!running_.empty()) return false;
    refuse(refused_.begin()->first, refused_.begin()->second);
  }
  for (const auto& [trial, why] : std::exchange(refused_, {})) {
    tune::Result result;
    result.trial = trial;
    result.refused = true;
    policy_->tell(result);
    planned_.erase(trial);
    trials_[static_cast<size_t>(trial)].status = "refused";
    trials_[static_cast<size_t>(trial)].reason = std::string(kRefused) + why;
    say(environment, trial, "is refused, and left out: " + why);
  }
  return true;
}

// Whether a trial has trained, one that runs included; one that diverged has.
bool Session::is_job_right() const {
  return std::ranges::any_of(trials_, [](const TrialRecord& t) { return !t.seen.empty(); }) ||
         std::ranges::any_of(running_,
                             [&](const auto& running) { return !values(running.first).empty(); });
}

// Of the latest trials, without those of which nothing is known yet. Those before the budget was
// changed do not count: the session was asked to go on with others.
int64_t Session::refused_in_a_row() const {
  int64_t out = 0;
  for (size_t i = trials_.size(); i-- > earlier_;) {
    const TrialRecord& trial = trials_[i];
    if (trial.reason.starts_with(kRefused)) {
      ++out;
    } else if (!trial.seen.empty()) {
      break;
    }
  }
  return out;
}

void Session::refuse(int64_t trial, const std::string& why) const {
  fail(ErrorCode::invalid_argument,
       "trial {} ({}) is refused: {}\nCorrect the job or the tuning file, and begin another "
       "session",
       trial, fmt::join(shown(tuning_.space, trials_[static_cast<size_t>(trial)].setting), " "),
       why);
}

void Session::retry(int64_t trial, const std::string& why, std::map<int64_t, int>& times, int most,
                    const Environment& environment) {
  if (++times[trial] >= most) {
    fail(ErrorCode::unavailable,
         "trial {} failed {} times: {}\nWhen that is mended, or {} is removed (the trial then "
         "begins "
         "anew), go on with `ductile tune --resume {}`",
         trial, most, why, trial_folder(trial).string(), folder_.string());
  }
  std::string& told = told_[trial];
  if (told != why) say(environment, trial, "failed and is tried again: " + why);
  told = why;
  launch(trial, environment);
}

void Session::tell(int64_t trial, bool is_over, bool has_diverged, const Environment& environment) {
  TrialRecord& record = trials_[static_cast<size_t>(trial)];
  const double planned = planned_.at(trial);
  const double told = record.seen.empty() ? 0 : record.seen.back().budget;
  std::vector<tune::Observation> seen;
  for (const auto& [epochs, value] : values(trial)) {
    if (epochs <= told) continue;
    // The value at the budget, or the first one after it: not every multiple has an evaluation.
    seen.push_back({std::min(epochs, planned), value});
    has_diverged |= !std::isfinite(value);
    if (epochs >= planned || has_diverged) break;
  }
  if (has_diverged && (seen.empty() || std::isfinite(seen.back().value))) {
    const double last = seen.empty() ? told : seen.back().budget;
    if (last < planned) seen.push_back({std::min(planned, last + unit()), NAN});
  }
  tune::Result result{trial, {}, is_over && !has_diverged};
  for (const tune::Observation& o : seen) result.seen.push_back({o.budget, badness(o.value)});
  if (has_diverged && !result.seen.empty()) result.seen.back().value = NAN;
  // Until the policy has taken them the trial is under way: an error here loses none of them.
  if (!finishing_) policy_->tell(result);
  planned_.erase(trial);
  failures_.erase(trial);  // what was mended since is no reason to end the session later
  waits_.erase(trial);
  told_.erase(trial);
  record.seen.insert(record.seen.end(), seen.begin(), seen.end());
  record.status = has_diverged ? "diverged" : is_over || planned >= full() ? "finished" : "paused";
  const double epochs = record.seen.empty() ? 0 : record.seen.back().budget;
  if (has_diverged) {
    record.reason = "the loss was not finite";
    say(environment, trial, fmt::format("diverged in epoch {:g}", epochs));
    finishing_ = false;  // the next one is the best then
    return;
  }
  record.reason = record.status == "paused" ? kOthers
                  : is_over                 ? "its run is over"
                                            : "it has run to its end";
  say(environment, trial, fmt::format("{} after {}", shown_value(trial), epochs_text(epochs)));
}

}  // namespace ductile::trials
