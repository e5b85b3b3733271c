#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/options.h"
#include "ductile/cluster/job_runner_impl.h"
#include "ductile/cluster/pause_meter_impl.h"
#include "ductile/cluster/service_spec_impl.h"
#include "ductile/link/membership_options.h"
#include "ductile/link/plan_change.h"
#include "ductile/link/saved_state.h"
#include "ductile/run/history.h"
#include "ductile/run/lock.h"
#include "ductile/run/progress.h"
#include "ductile/server/job_host.h"

namespace ductile::cluster {
namespace {

constexpr std::chrono::seconds kCheckpointSoonest{1};
constexpr std::chrono::milliseconds kLook{200};

std::string text_of_done(const run::DoneRun& done) {
  return done.target_reached ? fmt::format("It reached its target after {} steps.", done.steps)
                             : fmt::format("It is done after {} steps.", done.steps);
}

// How the run was done, by its own files, and nothing of it runs any more; none: it is not, or it
// has gone on since.
std::optional<run::DoneRun> done_before(const run::RunFolder& folder) try {
  const auto state = link::read_state(link::state_file(folder.path()));
  if (!state || state->value("phase", "") != control::to_string(control::Phase::finished))
    return {};
  return run::done_run(folder);
} catch (const std::exception&) {  // what is damaged is told by who begins there
  return {};
}

RunnerEnd end_of(const server::JobOutcome& outcome, const run::RunFolder& folder) {
  if (outcome.error) return end_by(outcome.error);
  if (outcome.end.phase == control::Phase::finished) {
    const auto done = done_before(folder);
    return {Phase::finished, text_of_done({outcome.end.step, done && done->target_reached})};
  }
  if (outcome.end.phase != control::Phase::failed) return {};
  // A job that is done, and whose result finds no room, is not lost: from its last checkpoint on it
  // is done again once there is some.
  const bool again =
      outcome.end.result_unsaved && outcome.end.step > std::max<int64_t>(outcome.end.checkpoint, 0);
  return {again ? Phase::queued : Phase::failed, outcome.end.reason, again, again};
}

// Workers that live tell it to nobody again: the pipe that they told it by is gone.
int64_t steps_before(const run::RunFolder& folder, const spec::JobOptions& job) try {
  const int64_t told = run::told_steps(folder);
  return told > 0 ? told : std::max<int64_t>(0, job.train.max_steps);
} catch (const Error&) {  // they cannot be read now
  return 0;
}

class TrainRunner : public JobRunner {
 public:
  TrainRunner(net::Loop& loop, Engine& engine, const run::RunFolder& folder,
              const spec::JobOptions& job, std::chrono::seconds alone, int64_t least)
      : loop_(loop),
        folder_(folder),
        lock_(folder.path(), run::RunLock::kController),
        least_(std::min(least, job.train.virtual_ranks)),
        total_steps_(steps_before(folder, job)) {
    folder.remove_leftovers();
    if (link::PlanChange::left_open(folder))
      fail(ErrorCode::conflict,
           "{0} was given another plan by hand, by which no step is done yet: `ductile train "
           "--resume {0}` goes on by it, or takes it back where it cannot be run",
           folder.path().string());
    auto launcher = engine.launcher(folder, !job.python.object.empty());
    launcher_ = launcher.get();
    server::JobHostOptions options;
    options.run = folder.path();
    options.membership = link::membership_options(job);
    options.membership.max_workers = job.train.virtual_ranks;
    options.membership.min_workers = least_;
    if (const std::chrono::seconds most(engine.checkpoint_every()); most.count() > 0) {
      control::Time& every = options.membership.checkpoint_every;
      every = every > control::Time{0} ? std::min<control::Time>(every, most) : most;
      options.membership.checkpoint_soonest = kCheckpointSoonest;
    }
    options.membership.num_hosts = engine.nodes();
    options.listen = engine.listen();
    options.alone = alone;
    options.keep_checkpoints = job.checkpoint.keep;
    options.on_line = [this](control::WorkerId, std::string_view line) { hear(line); };
    options.on_note = [this](const control::Note& note) {
      if (note.event == "lost" || note.event == "launch_failed") trouble_ = note.text;
      if (note.event != "generation") return;
      meter_.formed();
      first_.reset();
      last_.reset();
      trouble_.clear();
    };
    host_ = std::make_unique<server::JobHost>(loop, lock_, std::move(options), std::move(launcher));
  }

  void start(const std::vector<Holding>& devices, OnEnd on_end) override {
    // As of a store that was put back, or a service that was killed before it could say so.
    if (const auto done = done_before(folder_)) {
      look_ = loop_.after(std::chrono::milliseconds(0), [on_end = std::move(on_end), done] {
        const OnEnd tell = on_end;  // which may destroy this runner, and its timer
        tell({Phase::finished, text_of_done(*done)});
      });
      return;
    }
    launcher_->place(shares_of(devices));
    at_start_ = true;
    if (!devices.empty()) begin_pause();
    host_->start(count(devices),
                 [this, on_end = std::move(on_end)](const server::JobOutcome& outcome) {
                   on_end(end_of(outcome, folder_));
                 });
  }

  void resize(const std::vector<Holding>& devices, std::function<void(bool)> taken) override {
    host_->request(control::ResizeJob{count(devices), launcher_->place(shares_of(devices))},
                   [this, taken = std::move(taken)](const link::RequestAnswer& answer) {
                     // Before its first step what it waits for is its start.
                     at_start_ = at_start_ && !last_;
                     if (answer.refused.empty()) begin_pause();
                     taken(answer.refused.empty());
                   });
  }

  void preempt() override {
    host_->request(control::PreemptJob{}, [](const link::RequestAnswer&) {});
  }

  int64_t wanted() const override { return host_->wanted_workers(); }
  int64_t least() const override { return least_; }
  std::map<std::string, int64_t> used() const override { return launcher_->by_host(); }

  JobProgress progress() const override {
    const nlohmann::json status = host_->status();
    JobProgress progress;
    progress.total_steps = total_steps_;
    progress.pause = pause_;
    progress.pause_of_start = pause_of_start_;
    progress.pauses = pauses_;
    progress.save = status.value("save_seconds", 0.0);
    progress.first = first_;
    progress.last = last_;
    progress.trouble = trouble_.substr(0, trouble_.find('\n'));  // of a traceback, what it is of
    progress.step = status.value("step", int64_t{0});
    if (status.contains("generation"))
      progress.generation = status["generation"].value("number", int64_t{0});
    return progress;
  }

 private:
  double now() const {
    return std::chrono::duration<double>(loop_.now().time_since_epoch()).count();
  }
  void begin_pause() {
    look();  // how far it is
    meter_.begin(now());
    look_again();
  }
  void look_again() {
    look_ = loop_.after(kLook, [this] {
      look();
      if (meter_.measures()) look_again();
    });
  }
  void look() {
    const nlohmann::json status = host_->status();
    if (!status.contains("generation")) return;
    const nlohmann::json& generation = status["generation"];
    const auto pause = meter_.see(
        now(), {generation.value("number", int64_t{0}), generation.value("start", int64_t{0}),
                status.value("step", int64_t{0})});
    if (!pause) return;
    pause_ = *pause;
    pause_of_start_ = std::exchange(at_start_, false);
    ++pauses_;
  }

  void hear(std::string_view line) {
    const auto known = run::decode(line);
    const auto* progress = known ? std::get_if<run::Progress>(&*known) : nullptr;
    if (progress == nullptr) return;
    total_steps_ = progress->total_steps;
    // Several a second, from the end of the first step on, and none while it saves or evaluates.
    if (progress->phase != run::Phase::train) return;
    last_ = {progress->step, loop_.now()};
    if (!first_) first_ = last_;
  }

  static std::vector<server::HostShare> shares_of(const std::vector<Holding>& devices) {
    std::vector<server::HostShare> out;
    for (const Holding& h : devices) out.push_back({h.node, h.devices});
    return out;
  }
  static int64_t count(const std::vector<Holding>& devices) {
    int64_t sum = 0;
    for (const Holding& h : devices) sum += h.devices;
    return sum;
  }

  net::Loop& loop_;
  const run::RunFolder folder_;
  const run::RunLock lock_;
  const int64_t least_;
  int64_t total_steps_;                            // 0: not known
  server::Launcher* launcher_ = nullptr;           // the host's
  std::optional<JobProgress::Told> first_, last_;  // of the present processes
  PauseMeter meter_;
  net::Loop::Timer look_;
  double pause_ = 0;
  bool at_start_ = true, pause_of_start_ = true;
  int64_t pauses_ = 0;
  std::string trouble_;
  std::unique_ptr<server::JobHost> host_;
};

}  // namespace

std::unique_ptr<JobRunner> make_train_runner(net::Loop& loop, Engine& engine, const fs::path& run,
                                             spec::JobOptions& job, std::chrono::seconds alone,
                                             const std::string& plan, int64_t least) {
  std::error_code unknown;
  if (!fs::exists(run, unknown) && !unknown) end_strays(run, SIGKILL);
  const run::RunFolder folder = made_run(run, job, plan);
  // Who resumes a run by hand on fewer workers may plan it anew: its state is of other virtual
  // ranks then, and no damage.
  spec::JobOptions saved;
  OptionSet(saved).read_toml(folder.job_file(), Moved::follow);
  if (saved.train.virtual_ranks != job.train.virtual_ranks)
    fail(
        ErrorCode::conflict,
        "{0} was planned anew by hand, for {1} virtual ranks, and this job has {2}: finish the run "
        "with `ductile train --resume {0}` and cancel the job, or submit the new plan as a job of "
        "its own",
        run.string(), saved.train.virtual_ranks, job.train.virtual_ranks);
  return std::make_unique<TrainRunner>(loop, engine, folder, job, alone, least);
}

RunnerEnd end_by(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    // A full disk, or somebody else who runs it: it is tried again. Damage is not.
    if (known.code() == ErrorCode::unavailable || known.code() == ErrorCode::conflict)
      return {Phase::queued, known.what(), true};
    return {Phase::failed, known.what()};
  } catch (const std::system_error& refused) {  // no more threads: that is nothing of the job
    return {Phase::queued, refused.what(), true};
  } catch (const std::exception& other) {
    return {Phase::failed, other.what()};
  }
}

RunnerEnd unless_away(RunnerEnd end, const RunsFolder& runs, const fs::path& run) {
  if (end.phase != Phase::failed) return end;
  const std::string absence = absence_of_runs(runs, run);
  return absence.empty() ? end : RunnerEnd{Phase::queued, absence + ".", true};
}

}  // namespace ductile::cluster
