// Checkpoints: who writes one and when, and which ones count.
#include <algorithm>

#include <fmt/format.h>

#include "ductile/control/membership_impl.h"

namespace ductile::control {
namespace {

constexpr size_t kRemembered = 8;  // checkpoints to fall back to; the store may keep fewer
constexpr int kSaveShare = 10;     // a checkpoint takes at most one part in so many of the time

}  // namespace

// What a worker says about its checkpoint counts only in the newest generation: a writer that was
// replaced is doomed, or reports an old one.
void Membership::State::take_save_status(WorkerRecord& worker) {
  const SaveStatus& save = worker.report.save;
  save_attempts = std::max(save_attempts, save.attempt);
  const Generation generation = std::max(worker.report.generation, worker.report.promised);
  const bool member = plan->find(worker.id) != nullptr && generation >= plan->number;
  if (save.state == SaveStatus::State::written && member && save.attempt > offered_attempt) {
    if (publishing) return;  // it will be offered again
    offered_attempt = save.attempt;
    if (save.step > newest_checkpoint()) {
      publishing = PublishCheckpoint{worker.id, generation, save.step, save.figures};
      out.commands.emplace_back(*publishing);
      out.must_save = true;
    }
  }
  if (!save_task || save_task->worker != worker.id || save_task->attempt > save.attempt) return;
  if (save_task->attempt < save.attempt) {  // a number that a controller before this one gave too
    save_task.reset();
    return;
  }
  if (save.state == SaveStatus::State::written) {
    if (save_task->at_step < 0) save_asked = false;
    save_task.reset();
  } else if (save.state == SaveStatus::State::failed) {
    last_save_error = save.text;
    next_save = now + options.checkpoint_retry;
    note("checkpoint_failed", fmt::format("worker {}: {}", worker.id, save.text));
    save_task.reset();
  }
}

void Membership::State::on(const CheckpointPublished& event) {
  if (!publishing || publishing->step != event.step) return;
  publishing.reset();
  // A controller that starts again may know it from the store already.
  if (event.step > newest_checkpoint()) checkpoints.push_back(event.step);
  if (checkpoints.size() > kRemembered) checkpoints.erase(checkpoints.begin());
  unreadable.erase(event.step);
  last_checkpoint = now;
  save_took = now - save_began;
  if (save_began > Time{0}) longest_save = std::max(longest_save, save_took);
  last_save_error.clear();
  note("checkpoint", fmt::format("of step {}", event.step));
  out.must_save = true;
}

void Membership::State::on(const PublishFailed& event) {
  if (!publishing || publishing->step != event.step) return;
  publishing.reset();
  last_save_error = event.text;
  next_save = now + options.checkpoint_retry;
  note("checkpoint_failed", event.text);
  out.must_save = true;
}

// Bytes on disk went bad: the one before it is used, which the next generation starts from. Where
// there is none, the job does not begin anew by itself: that would throw away what may be mended.
void Membership::State::drop_unreadable(int64_t step, const std::string& why) {
  if (newest_checkpoint() != step) return;
  checkpoints.pop_back();
  unreadable[step] = why;
  out.must_save = true;
  if (!checkpoints.empty()) {
    note("checkpoint_unreadable",
         fmt::format("of step {}; falling back to step {}: {}", step, newest_checkpoint(), why));
    return;
  }
  std::string all;
  for (const auto& [bad, text] : unreadable) {
    all += fmt::format("; step {}: {}", bad, text);
    checkpoints.push_back(bad);  // a job that is resumed looks at all of them again
  }
  unreadable.clear();
  fail_job(fmt::format("none of the job's checkpoints can be used, and nothing was removed: put "
                       "back what is damaged or missing and resume, or start a new run{}",
                       all),
           ErrorCode::data_loss);
}

WorkerRecord* Membership::State::done_worker() {
  for (WorkerRecord* worker : participants())
    if (worker->reachable && worker->report.phase == WorkerPhase::done && can_save(*worker))
      return worker;
  return nullptr;
}

void Membership::State::start_save(WorkerRecord& writer, int64_t at_step, const std::string& why) {
  save_task = SaveTask{++save_attempts, writer.id, at_step};
  save_began = now;
  tell_to_save(writer, why);
}

void Membership::State::tell_to_save(WorkerRecord& writer, const std::string& why) {
  tell(writer, Save{std::max(writer.report.generation, writer.report.promised), save_task->attempt,
                    save_task->at_step, why});
}

// What was asked for at a step while the job ran is not begun where it stands still.
void Membership::State::drop_save_at_step() {
  if (!save_task || save_task->at_step < 0) return;
  const WorkerRecord* writer = find(save_task->worker);
  if (writer == nullptr || writer->report.save.attempt < save_task->attempt) save_task.reset();
}

void Membership::State::drive_saves() {
  if (save_task) {
    const WorkerRecord* writer = find(save_task->worker);
    const bool stands_still = phase == Phase::preempting || phase == Phase::finishing;
    if (writer == nullptr || !writer->live() ||
        (stands_still && (writer->report.step < 0 || !can_save(*writer))))
      save_task.reset();
  }
  if (phase == Phase::preempting)
    save_before_preempting();
  else if (phase == Phase::finishing)
    save_result();
  else if (ran && !change)
    save_while_running();
}

void Membership::State::save_before_preempting() {
  const bool late = due(preempt_since + options.preempt_deadline);
  if (!late && (!change || !halted())) return;
  if (!late && parts_are_apart()) return;  // another generation brings them together
  WorkerRecord* writer = nullptr;
  for (WorkerRecord* worker : participants())
    if (worker->reachable && worker->report.step >= 0 && (can_save(*worker) || late) &&
        (writer == nullptr || worker->report.step > writer->report.step))
      writer = worker;
  if (writer == nullptr) {
    wind_down_lost();
  } else if (writer->report.step <= newest_checkpoint()) {
    wind_down(Phase::preempted, "preempted");
  } else if (late) {
    preempt_without_saving(writer);
  } else if (!publishing && due(next_save)) {
    drop_save_at_step();
    if (!save_task) start_save(*writer, -1, "preemption");
  }
}

// Nobody who can be reached has the state.
void Membership::State::wind_down_lost() {
  unsaved_steps = std::max<int64_t>(0, high_water - std::max<int64_t>(newest_checkpoint(), 0));
  wind_down(Phase::preempted, "preempted");
}

void Membership::State::preempt_without_saving(const WorkerRecord* writer) {
  const int64_t step = writer != nullptr ? writer->report.step : high_water;
  unsaved_steps = std::max<int64_t>(0, step - std::max<int64_t>(newest_checkpoint(), 0));
  note("checkpoint_failed", fmt::format("preempted without saving: {} steps will be done again. {}",
                                        unsaved_steps, last_save_error));
  wind_down(Phase::preempted, "preempted");
}

// A checkpoint of a step before the last one that is on its way.
bool Membership::State::saves_earlier() {
  const auto saves = [](const WorkerRecord* worker) {
    const SaveStatus& save = worker->report.save;
    return worker->reachable && save.state == SaveStatus::State::saving &&
           save.step < worker->report.step;
  };
  return publishing || std::ranges::any_of(participants(), saves);
}

// Workers that wait for ever for room hold what others could use, and nobody learns of it.
void Membership::State::save_result() {
  WorkerRecord* writer = done_worker();
  if (writer == nullptr) return;
  if (newest_checkpoint() >= writer->report.step || (!options.save_result && !saves_earlier())) {
    reason = fmt::format("all {} steps are done", writer->report.step);
    wind_down(Phase::finished, "the job is finished");
  } else if (options.save_result && !publishing && due(next_save)) {
    drop_save_at_step();
    if (save_task) return;
    if (!last_save_error.empty() && due(finish_since + options.finish_deadline)) {
      fail_job(
          fmt::format(
              "all {} steps are done, but the result could not be saved within {} s: {}",
              writer->report.step,
              std::chrono::duration_cast<std::chrono::seconds>(options.finish_deadline).count(),
              last_save_error),
          ErrorCode::unavailable);
      result_unsaved = true;
      return;
    }
    start_save(*writer, -1, "the result");
  }
}

Time Membership::State::checkpoint_interval() const {
  if (options.checkpoint_soonest <= Time{0}) return options.checkpoint_every;
  const Time cheap = std::max(options.checkpoint_soonest, save_took * kSaveShare);
  return std::min(cheap, options.checkpoint_every);
}

void Membership::State::save_while_running() {
  if (publishing || !due(next_save)) return;
  // Where the members are now: after a return to a checkpoint, some way behind the highest step.
  int64_t reached = 0;
  for (const WorkerRecord* worker : participants())
    reached = std::max(reached, worker->report.step);
  const bool by_time = options.checkpoint_every > Time{0} &&
                       due(last_checkpoint + checkpoint_interval()) &&
                       reached > std::max<int64_t>(newest_checkpoint(), 0);
  const bool at_once = save_asked || by_time;
  if (save_task && (!at_once || save_task->at_step < 0)) return;
  WorkerRecord* writer = nullptr;
  for (WorkerRecord* worker : participants()) {
    if (!worker->reachable) continue;
    writer = worker;
    break;
  }
  // It would drop what is said to the generation before.
  if (writer == nullptr || writer->report.generation < plan->number) return;
  if (at_once) {
    start_save(*writer, -1, save_asked ? "asked for" : "time for one");
  } else if (options.checkpoint_steps > 0) {
    const int64_t done = std::max(reached, newest_checkpoint());
    start_save(*writer, (done / options.checkpoint_steps + 1) * options.checkpoint_steps,
               "at a multiple of so many steps");
  }
}

}  // namespace ductile::control
