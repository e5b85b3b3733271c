#include "ductile/link/job_driver.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <string.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/link/boot_clock.h"
#include "ductile/link/saved_state.h"
#include "ductile/run/history.h"
#include "ductile/run/report.h"

namespace ductile::link {
namespace {

using namespace control;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kSaveRetry{500};
constexpr milliseconds kPatience{500};
constexpr std::chrono::seconds kSlowSave{2};

double rounded(double seconds) { return std::round(seconds * 1000) / 1000; }

// The steps of the checkpoints that lie there, ascending. Throws where they cannot be told now, or
// where all are damaged: a job does not begin anew while there is something to mend.
std::vector<int64_t> stored_checkpoints(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  std::string damaged;
  for (const ckpt::CheckpointSummary& c : ckpt::list(checkpoints)) {
    if (c.error.empty()) {
      steps.push_back(c.step);
    } else if (c.error_code == ErrorCode::data_loss) {
      damaged += fmt::format("\n  step {}: {}", c.step, c.error);
    } else if (c.error_code != ErrorCode::not_found) {
      fail(c.error_code,
           "{}: the checkpoint of step {} cannot be read now; nothing was changed: {}",
           checkpoints.string(), c.step, c.error);
    }
  }
  if (steps.empty() && !damaged.empty())
    fail(
        ErrorCode::data_loss,
        "{}: no checkpoint can be used; put back what is damaged and resume, or start a new run:{}",
        checkpoints.string(), damaged);
  std::reverse(steps.begin(), steps.end());
  return steps;
}

// What a run that had no control yet had cost when the checkpoint was made.
run::Cost cost_of(const fs::path& checkpoints, int64_t step) {
  try {
    return run::cost_from_json(ckpt::Checkpoint::open(checkpoints, step).state().at("cost"));
  } catch (const std::exception&) {  // none was written
    return {};
  }
}

}  // namespace

JobDriver::JobDriver(JobDriverOptions options, JobWorld& world, Disk* disk)
    : options_(std::move(options)),
      world_(world),
      disk_(disk != nullptr ? *disk : here_),
      folder_(run::RunFolder::open(options_.run)),
      events_(std::make_shared<run::Diary>(folder_.events_file())),
      epoch_(boot_time()),
      publisher_(options_.run / "checkpoints", options_.keep_checkpoints) {}

JobDriver::~JobDriver() { *alive_ = false; }

// From 0 on: a new job's first checkpoint by time is due when that time has passed.
Time JobDriver::now() const { return boot_time() - epoch_; }

double JobDriver::seconds() const {
  return seconds_before_ +
         std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

run::Cost JobDriver::cost() const {
  run::Cost cost = membership_->cost();
  cost.wall_seconds = rounded(seconds());
  return cost;
}

// ---- The beginning.

JobDriver::Found JobDriver::look(const fs::path& run) {
  const run::RunFolder folder = run::RunFolder::open(run);
  Found found;
  found.diaries = run::end_of_diaries(folder);
  if (std::optional<json> state = read_state(state_file(run)))
    found.state = std::make_shared<const json>(std::move(*state));
  found.checkpoints = stored_checkpoints(folder.checkpoints());
  if (!found.checkpoints.empty()) {
    found.spent = cost_of(folder.checkpoints(), found.checkpoints.back());
  } else if (const auto step = run::last_saved_step(folder); step && !found.state) {
    fail(ErrorCode::data_loss,
         "{}: the run had a checkpoint of step {}, and now there is none: put it back and resume, "
         "or start a new run",
         folder.checkpoints().string(), *step);
  }
  return found;
}

void JobDriver::restore(const Found& found) {
  heard_ = now();
  options_.membership.last_generation = static_cast<Generation>(found.diaries.generation);
  seconds_before_ = found.diaries.seconds;
  MembershipOptions wishes = options_.membership;
  wishes.checkpoints = found.checkpoints;
  wishes.spent = found.spent;
  if (found.state) {
    const json& saved = *found.state;
    const fs::path file = state_file(options_.run);
    try {
      membership_.emplace(Membership::restore(wishes, saved, heard_, first_));
    } catch (const Error& e) {
      if (e.code() == ErrorCode::not_found)
        fail(ErrorCode::data_loss, "{}: {}", folder_.checkpoints().string(), e.message());
      if (e.code() != ErrorCode::data_loss) throw;
      fail(ErrorCode::data_loss, "{}: {}; {}", file.string(), e.message(), state_remedy(file));
    }
    std::vector<WorkerStatus> known;
    for (const json& worker : saved.at("workers")) {
      WorkerStatus& report = known.emplace_back();
      report.worker = worker.at("report").at("worker").get<WorkerId>();
      report.address = worker.at("report").at("address").get<std::string>();
    }
    world_.adopt(known);
  }
  if (membership_ && membership_->phase() == Phase::finished) {
    wishes.spent = membership_->cost();
    wanted_before_ = membership_->wanted_workers();
    membership_.reset();
  }
  if (!membership_) membership_.emplace(wishes);
}

void JobDriver::start(int64_t workers, OnAnswer on_answer) {
  if (!on_answer)
    on_answer = [](const RequestAnswer& a) {
      if (!a.refused.empty()) fail(ErrorCode::invalid_argument, "{}", a.refused);
    };
  publishes_again_ = std::ranges::any_of(first_.commands, [](const Command& command) {
    return std::holds_alternative<PublishCheckpoint>(command);
  });
  first_.must_save = true;  // also: that this job has a control
  if (membership_->phase() == Phase::queued)
    return begin(workers > 0 ? workers : wanted_before_, std::move(on_answer));
  handle(std::exchange(first_, {}));
  const Phase phase = membership_->phase();
  if (phase == Phase::preempted || phase == Phase::failed || phase == Phase::preempting) {
    request(ResumeJob{workers}, on_answer);
  } else if (workers > 0 && workers != membership_->wanted_workers()) {
    request(ResizeJob{workers}, on_answer);
  }
}

// What is saved first says how many workers are wanted: nobody who is killed at once leaves a state
// by which that is one, and a beginning that is refused leaves none.
void JobDriver::begin(int64_t workers, OnAnswer on_answer) {
  Outcome outcome = membership_->apply(StartJob{workers}, heard_);
  if (membership_->phase() == Phase::queued) {
    std::string why;
    for (const Command& command : outcome.commands)
      if (const auto* note = std::get_if<Note>(&command)) why = note->text;
    return on_answer({why, ""});
  }
  answering_ = std::move(on_answer);
  outcome.must_save = true;
  outcome.commands.insert(outcome.commands.begin(), first_.commands.begin(), first_.commands.end());
  first_ = {};
  handle(std::move(outcome));
}

// ---- The course.

void JobDriver::add(Event event) {
  // The newest report replaces all before it; without a word to the machine they would pile up.
  if (const auto* reported = std::get_if<WorkerReported>(&event);
      reported && (!saved() || !membership_)) {
    std::erase_if(inbox_, [&](const Event& earlier) {
      const auto* other = std::get_if<WorkerReported>(&earlier);
      return other != nullptr && other->report.worker == reported->report.worker &&
             other->report.sequence <= reported->report.sequence;
    });
  }
  inbox_.push_back(std::move(event));
}

// Until nothing is left to tell the machine, or its state has to be saved first. What came together
// is told together, and as of the time at which all had been heard: whose report is still to be
// read is never taken for silent.
void JobDriver::drain() {
  while (has_work()) {
    if (!inbox_.empty()) {
      apply(std::exchange(inbox_, {}));
      continue;
    }
    Asked asked = std::move(asked_.front());
    asked_.pop_front();
    refused_.clear();
    answering_ = std::move(asked.on_answer);
    apply({asked.event});
    if (saved()) answer({refused_, ""});
  }
}

void JobDriver::apply(const std::vector<Event>& events) {
  for (const Event& event : events) {
    if (const auto* reported = std::get_if<WorkerReported>(&event))
      reports_[reported->report.worker] = reported->report;
    if (const auto* exited = std::get_if<WorkerExited>(&event)) reports_.erase(exited->worker);
  }
  handle(membership_->apply(events, heard_));
}

void JobDriver::answer(const RequestAnswer& answer) {
  if (const OnAnswer on_answer = std::exchange(answering_, {})) on_answer(answer);
}

void JobDriver::handle(Outcome outcome) {
  if (outcome.must_save) {
    held_ = std::move(outcome.commands);
    held_since_ = now();
    return save();
  }
  carry_out(outcome.commands);
  note_size();
}

void JobDriver::save() {
  saving_ = Saving::under_way;
  disk_.run([file = state_file(options_.run),
             text = sealed(membership_->save())] { write_file_atomic(file, text); },
            [this, alive = alive_](std::exception_ptr error) {
              if (!*alive || ended_) return;
              try {
                if (error) std::rethrow_exception(error);
              } catch (const Error& e) {
                return on_saved(e.what());
              }
              on_saved("");
            });
}

void JobDriver::on_saved(const std::string& error) {
  if (error.empty()) {
    saving_ = Saving::none;
    save_error_.clear();
    end_asked_.reset();         // the machine is told of it now
    membership_->saved(now());  // when anything was heard last may be long ago
    carry_out(std::exchange(held_, {}));
    note_size();
    return answer({refused_, ""});
  }
  if (save_error_.empty())
    held_.emplace_back(
        Note{"disk", fmt::format("the job waits: its state could not be saved: {}", error)});
  saving_ = Saving::failed;
  save_error_ = error;
  save_again_ = now() + kSaveRetry;
  answer({"", waits_for_disk()});
  for (const Asked& asked : std::exchange(asked_, {})) request(asked.event, asked.on_answer);
}

void JobDriver::carry_out(const std::vector<Command>& commands) {
  for (const Command& command : commands) std::visit([&](const auto& c) { on(c); }, command);
}

// Whoever gets one learns what only the controller can know.
void JobDriver::on(const SendInstruction& command) {
  Instruction instruction = command.instruction;
  if (auto* ack = std::get_if<Ack>(&instruction.what)) ack->cost = cost();
  world_.send(instruction);
}

void JobDriver::look_at_clock() {
  if (ended_) return;
  if (saving_ == Saving::failed && now() >= save_again_) save();
  if (saved() && membership_->next_deadline() <= heard_) inbox_.emplace_back(Tick{});
}

void JobDriver::take_published() {
  for (Event& event : publisher_.take()) {
    if (const auto* published = std::get_if<CheckpointPublished>(&event))
      note_published(published->step);
    inbox_.push_back(std::move(event));
  }
}

milliseconds JobDriver::patience() const {
  if (has_work()) return milliseconds{0};
  // Until the state is saved, nothing is told to the machine, whatever it waits for.
  if (saving_ == Saving::under_way) return kPatience;
  const Time next = saved() ? membership_->next_deadline() : save_again_;
  const Time wait = next == Time::max() ? kPatience : next - now();
  return std::clamp(std::chrono::ceil<milliseconds>(wait), milliseconds{0}, kPatience);
}

// Each is told to the machine alone, since it does not say which one it refuses.
void JobDriver::request(const Event& event, OnAnswer on_answer) {
  if (saving_ == Saving::failed) {
    inbox_.push_back(event);
    if (std::holds_alternative<control::PreemptJob>(event) && !end_asked_) end_asked_ = now();
    return on_answer({"", waits_for_disk()});
  }
  asked_.push_back({event, std::move(on_answer)});
  drain();
}

std::string JobDriver::request(const Event& event) {
  std::string why;
  request(event, [&](const RequestAnswer& a) { why = a.refused + a.waits; });
  return why;
}

void JobDriver::signal(int number) {
  const char* name = ::sigabbrev_np(number);
  write_event("signal", {{"step", membership_->step()},
                         {"signal", name ? fmt::format("SIG{}", name) : std::to_string(number)}});
}

std::string JobDriver::waits_for_disk() const {
  return "waits for room to save its state: " + save_error_;
}

std::string JobDriver::why() const {
  if (!save_error_.empty()) return waits_for_disk();
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now() - held_since_);
  if (saving_ == Saving::under_way && waited >= kSlowSave)
    return fmt::format("waits for its disk: saving its state has taken {} s so far",
                       waited.count());
  return membership_->why(now());
}

// ---- The log.

void JobDriver::on(const Note& command) {
  if (command.event == "refused") refused_ = command.text;
  note(command);
}

void JobDriver::note(const Note& note) {
  log(note.event, note.text);
  if (options_.on_note) options_.on_note(note);
}

void JobDriver::log(std::string_view event, const std::string& text) {
  json fields = {{"event", event}, {"text", text}};
  // From here on lines of workers of earlier generations are void (run/diary.h).
  if (event == "generation") fields["generation"] = membership_->generation().number;
  write_event("control", std::move(fields));
}

json JobDriver::stamped(std::string_view kind, json fields) const {
  fields["kind"] = kind;
  fields["time"] = rounded(wall_seconds());
  fields["seconds"] = rounded(seconds());
  return fields;
}

void JobDriver::write_event(std::string_view kind, json fields) {
  disk_.run(
      [events = events_, event = stamped(kind, std::move(fields))] { events->append(event); });
}

namespace {

// Of a diary that cannot be read now it is not known: an event too many is better than one too few.
bool has_checkpoint_event(const run::RunFolder& folder, int64_t step) {
  bool found = false;
  try {
    run::for_each_diary_line(folder.events_file(), [&](const json& line) {
      found |= line.value("kind", json()) == "checkpoint" && line.value("step", json()) == step;
    });
  } catch (const Error&) {
  }
  return found;
}

}  // namespace

void JobDriver::on(const PublishCheckpoint& command) {
  publishing_ = command;
  publisher_.publish(command);
}

// The diary tells of a checkpoint when it is there, and not when its writer has done its part. What
// a control before this one had published it may have written down, too. The line has no
// generation: with the one that was formed last, which may never begin where its state cannot be
// saved, it would void lines of workers that go on; with its writer's it would be void where
// another one has begun.
void JobDriver::note_published(int64_t step) {
  json fields = {{"step", step}};
  const SaveFigures& figures = publishing_.figures;
  if (publishing_.step == step && figures.bytes > 0) {
    fields.update({{"bytes", figures.bytes},
                   {"bytes_written", figures.bytes_written},
                   {"blocking_ms", 1e3 * figures.blocking_seconds},
                   {"write_seconds", figures.write_seconds},
                   {"write_core_seconds", figures.write_core_seconds}});
    if (figures.parts > 1) fields["parts"] = figures.parts;
  }
  const bool again = std::exchange(publishes_again_, false);
  disk_.run([events = events_, folder = folder_, again, step,
             event = stamped("checkpoint", std::move(fields))] {
    if (!again || !has_checkpoint_event(folder, step)) events->append(event);
  });
}

// The report draws the number of workers over time by these events.
void JobDriver::note_size() {
  const size_t size = membership_->generation().members.size();
  if (size == members_ || size == 0) return;
  if (members_ > 0)
    write_event("resize", {{"from", members_}, {"to", size}, {"step", membership_->step()}});
  members_ = size;
}

// ---- The end.

bool JobDriver::over() const {
  const Phase phase = membership_->phase();
  return phase == Phase::preempted || phase == Phase::finished || phase == Phase::failed;
}

bool JobDriver::at_rest() const { return over() && saved() && inbox_.empty() && asked_.empty(); }

// A state that cannot be saved is waited for as long as the job runs. One that is done, or is to
// end, has nothing to gain by it: without the save it is as if all had been killed.
bool JobDriver::gives_up() const {
  if (save_error_.empty()) return false;
  if (end_asked_ && now() >= *end_asked_ + options_.membership.preempt_deadline) return true;
  switch (membership_->phase()) {
    case Phase::failed:
      return true;
    case Phase::finishing:
    case Phase::finished:
      return now() >= held_since_ + options_.membership.finish_deadline;
    case Phase::preempting:
    case Phase::preempted:
      return now() >= held_since_ + options_.membership.preempt_deadline;
    default:
      return false;
  }
}

// Where its state could not be saved, the machine has not been told what came since.
JobEnd JobDriver::end_here() const {
  JobEnd end{membership_->phase(), membership_->reason(), membership_->step(),
             membership_->checkpoint()};
  for (const Event& event : inbox_) {
    if (const auto* reported = std::get_if<WorkerReported>(&event))
      end.step = std::max(end.step, reported->report.step);
    if (const auto* published = std::get_if<CheckpointPublished>(&event))
      end.checkpoint = std::max(end.checkpoint, published->step);
  }
  return end;
}

JobEnd JobDriver::end(bool killed) {
  if (killed) log("killed", "all workers were killed on request");
  ended_ = true;
  save();
  JobEnd end = end_here();
  end.killed = killed;
  // A checkpoint may have come after it was counted.
  end.unsaved_steps = std::max<int64_t>(0, end.step - std::max<int64_t>(end.checkpoint, 0));
  if (!killed) end.unsaved_steps = std::min(end.unsaved_steps, membership_->unsaved_steps());
  end.crashed = membership_->crashed();
  end.result_unsaved = membership_->result_unsaved();
  if (end.phase == Phase::failed) end.error_code = membership_->error_code();
  return end;
}

JobEnd JobDriver::end_unsaved() {
  ended_ = true;
  JobEnd end = end_here();
  const int64_t again = end.step - std::max<int64_t>(end.checkpoint, 0);
  note({"unsaved",
        fmt::format("all workers were ended, since the job's state could not be saved: {}{}",
                    save_error_,
                    again > 0 ? fmt::format("; {} steps will be done again", again) : "")});
  const bool goes_on =
      end.phase != Phase::failed && end.phase != Phase::finishing && end.phase != Phase::finished;
  if (goes_on) {
    end.phase = Phase::preempted;
    end.unsaved_steps = again;
  }
  if (end.phase == Phase::failed) end.error_code = membership_->error_code();
  end.result_unsaved = membership_->result_unsaved() || end.phase == Phase::finishing;
  if (end.phase != Phase::finishing) return end;
  end.phase = Phase::failed;
  end.error_code = ErrorCode::unavailable;
  end.reason = fmt::format(
      "all {} steps are done, but the job's state could not be saved within {} s: {}", end.step,
      std::chrono::duration_cast<std::chrono::seconds>(options_.membership.finish_deadline).count(),
      save_error_);
  return end;
}

namespace {

// The last figures that a leader wrote down, without those that are void at the end of this run.
json last_summary(const run::RunFolder& folder, int64_t step) {
  json fields = json::object();
  run::for_each_diary_line(folder.events_file(), [&](json& line) {
    const json kind = line.value("kind", json());
    if (kind == "end") fields = json::object();  // of an earlier part of the run
    if (kind == "summary") fields = std::move(line);
  });
  for (const char* key : {"kind", "time", "seconds", "generation"}) fields.erase(key);
  // A later leader may have died without a word: the hash of an earlier state is not this one's.
  if (fields.value("step", int64_t{-1}) != step) {
    for (const char* digest : {"digest", "weights_digest"}) fields.erase(digest);
  }
  return fields;
}

json end_event(const JobEnd& end, json fields, const run::Cost& cost) {
  const json status = fields.value("status", json());
  if (end.killed || end.phase == Phase::preempted) {
    fields["status"] = "interrupted";
  } else if (end.phase == Phase::finished) {
    fields["status"] = status == "target_reached" ? "target_reached" : "done";
  } else {
    fields["status"] = "failed";
    fields["message"] = end.reason;
  }
  fields["step"] = end.step;
  if (end.checkpoint >= 0) fields["checkpoint"] = end.checkpoint;
  if (end.unsaved_steps > 0) fields["unsaved_steps"] = end.unsaved_steps;
  fields["cost"] = run::to_json(cost);
  return fields;
}

}  // namespace

// Only the controller knows how a run ended, and what all its workers cost. The other figures are
// the last ones that a leader wrote down.
void JobDriver::write_end(const JobEnd& end, std::function<void()> on_written) {
  struct Told {
    json summary = json::object();
    std::string trouble, report;
  };
  const auto told = std::make_shared<Told>();
  disk_.run(
      [folder = folder_, end, told] {
        try {
          told->summary = last_summary(folder, end.step);
          ckpt::remove_leftovers(folder.checkpoints());
        } catch (const Error& e) {
          told->trouble = e.what();
        }
      },
      [this, alive = alive_, end, told, on_written](std::exception_ptr error) {
        if (!*alive) return;
        if (error) std::rethrow_exception(error);
        if (!told->trouble.empty()) log("end", told->trouble);
        write_event("end", end_event(end, std::move(told->summary), cost()));
        disk_.run(
            [events = events_, folder = folder_, told] {
              events->sync();
              told->report = run::leave_report(folder);
            },
            [this, alive, told, on_written](std::exception_ptr e) {
              if (!*alive) return;
              if (e) std::rethrow_exception(e);
              if (!told->report.empty()) note({"report", told->report});
              if (on_written) on_written();
            });
      });
}

}  // namespace ductile::link
