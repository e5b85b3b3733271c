#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <signal.h>

#include "ductile/base/files.h"
#include "ductile/run/lock.h"
#include "ductile/spec/job.h"
#include "ductile/trials/setup.h"
#include "ductile/tune/trial_policy.h"

namespace ductile::trials {

inline constexpr const char* kOthers = "others promised more";  // why a trial is paused

class TrialProcess;

// One setting and what came of it.
struct TrialRecord {
  tune::Setting setting;
  std::string status = "waiting";  // waiting, running, paused, finished, diverged, refused, dropped
  std::string reason;              // why it is in that state
  std::vector<tune::Observation>
      seen;  // epochs, and the metric as it is (accuracy: higher is better)
  // Where a search that was over goes on: what came after it, of which the policy does not know,
  // and the state that was reached.
  std::vector<tune::Observation> later = {};
  std::string later_status = {};
  double core_seconds = 0;
  double wall_seconds = 0;
};

// A tuning session: a folder with the job, the tuning, a run directory for each trial, and the
// state of the search, from which it goes on however it was ended:
//
//   job.toml     the job, resolved            trials/0007/  the run of trial 7
//   tune.json    job, tuning and search       best.toml     the job with the best setting
//   report.html  all of it, for people
//
// Trials are ordinary runs: they are paused by a checkpoint and resumed from it, bit for bit. One
// session drives a folder at a time. One thread.
class Session {
 public:
  // Makes the folder. Throws conflict where there is something already.
  static Session create(const fs::path& folder, const std::string& job_toml, const Tuning& tuning);
  // Throws not_found where there is no session, data_loss for one that cannot be read, conflict
  // where another process drives it, or where its job was changed in what shapes the result.
  static Session open(const fs::path& folder);
  // What may change when a session is resumed, as --tune takes it: budget, at_once and finish. With
  // another budget a search that was over goes on, from what the policy knew when it ended. Throws
  // invalid_argument for anything else, which would make another search.
  void change(const std::vector<std::string>& assignments);
  Session(Session&&) noexcept;
  ~Session();

  struct Environment {
    fs::path program;                                      // ductile
    bool trust = false;                                    // go on with runs of another user, too
    const sigset_t* mask = nullptr;                        // of the trials' processes
    std::function<void(const std::string& text)> on_news;  // a line for people
    std::function<bool()> interrupted;                     // looked at several times per second
    double seconds_between_saves = 60;  // at most: what a kill takes from wall_seconds()
  };
  // Runs trials until the search is over and, if the tuning says so, the best one is finished.
  // False if it was interrupted; run() may be called again, in another process too. Throws
  // unavailable if trials fail for another reason than that they diverge, invalid_argument for a
  // setting that the job refuses.
  bool run(const Environment& environment);

  const fs::path& folder() const { return folder_; }
  const Tuning& tuning() const { return tuning_; }
  const std::vector<TrialRecord>& trials() const { return trials_; }
  fs::path trial_folder(int64_t trial) const;
  double badness(double value) const;  // of a value of the metric: lower is better
  // Of those that did not diverge the one with the best value_of(), and where the best one has been
  // run to its end the best of those that have been; -1: none of them has a value.
  int64_t best() const;
  // What a trial's weights are worth now: its last evaluation. Nothing before its first one, or
  // where that was not finite.
  std::optional<double> value_of(int64_t trial) const;
  double epochs_spent() const;
  double budget() const;
  double core_seconds() const;
  double wall_seconds() const { return wall_seconds_; }  // of this and all earlier run() calls
  std::string state_of_search() const { return over_; }  // why it is over; empty: it is not
  const spec::JobOptions& job() const { return job_; }
  // The job with the setting of a trial.
  std::string job_with(int64_t trial) const;

 private:
  Session(fs::path folder, Tuning tuning, const std::string& job_toml,
          std::unique_ptr<run::RunLock> lock);
  void make_policy();
  void save() const;
  void set_aside_the_end();
  void take_back_the_end();

  static constexpr int64_t kRules = 1;
  struct Running;
  void restore(const nlohmann::json& state);
  double full() const;  // epochs of a whole run
  double unit() const;  // epochs between two evaluations
  void say(const Environment& environment, int64_t trial, const std::string& text) const;
  std::string shown_value(int64_t trial) const;  // "accuracy 64.00 %"
  std::string why_dropped(int64_t trial) const;
  void fill(const Environment& environment);
  void launch(int64_t trial, const Environment& environment);
  bool poll(const Environment& environment);
  bool reached(int64_t trial) const;   // whether its evaluations go as far as it is to run
  bool complete(int64_t trial) const;  // whether there is nothing left to do until then
  void ended(int64_t trial, const TrialProcess& process, const Environment& environment);
  void refused(int64_t trial, const std::string& why);
  bool judge_refused(const Environment& environment);
  bool is_job_right() const;
  int64_t refused_in_a_row() const;
  [[noreturn]] void refuse(int64_t trial, const std::string& why) const;
  void retry(int64_t trial, const std::string& why, std::map<int64_t, int>& times, int most,
             const Environment& environment);
  void stop_all();
  void tell(int64_t trial, bool is_over, bool has_diverged, const Environment& environment);
  std::map<double, double> values(int64_t trial) const;  // by budget

  fs::path folder_;
  Tuning tuning_;
  spec::JobOptions job_;
  std::unique_ptr<run::RunLock> lock_;
  std::optional<tune::Setting> first_;  // the job's own, where the session begins with it
  int64_t rules_ = kRules;              // of make_policy(); 0: those before there were such
  std::unique_ptr<tune::TrialPolicy> policy_;
  std::vector<TrialRecord> trials_;
  std::map<int64_t, double> planned_;       // trials under way and their budgets
  std::map<int64_t, std::string> refused_;  // of these: why, until it is known what that means
  size_t earlier_ = 0;  // trials that were there when the session got its present budget
  std::map<int64_t, int> failures_, waits_;  // and how often its run was another process's
  std::map<int64_t, std::string> told_;      // why it failed last
  std::string over_;
  bool finishing_ = false;  // the best trial runs to its end
  double wall_seconds_ = 0;
  std::map<int64_t, std::unique_ptr<Running>> running_;
};

}  // namespace ductile::trials
