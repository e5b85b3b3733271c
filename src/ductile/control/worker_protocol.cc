#include "ductile/control/worker_protocol.h"

#include <algorithm>
#include <new>
#include <system_error>

#include <fmt/format.h>

#include "ductile/base/error.h"

namespace ductile::control {
namespace {

// Reports whose Ack may still be on its way; older ones only delay the lease.
constexpr size_t kMaxUnacknowledged = 64;

}  // namespace

WorkerEvent event_of(const std::exception& error, Generation generation) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    switch (ours->code()) {
      case ErrorCode::peer_lost:
      case ErrorCode::deadline:
        return PeerLost{generation, {}, error.what()};
      case ErrorCode::unavailable:
        return Faulted{generation, error.what()};
      default:
        return JobError{error.what(), ours->code()};
    }
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return Faulted{generation, "there is no memory left (std::bad_alloc)"};
  if (dynamic_cast<const std::system_error*>(&error) != nullptr)
    return Faulted{generation, error.what()};
  return JobError{error.what()};
}

WorkerEvent restore_event_of(const std::exception& error, Generation generation) {
  if (const auto* ours = dynamic_cast<const Error*>(&error);
      ours != nullptr &&
      (ours->code() == ErrorCode::data_loss || ours->code() == ErrorCode::not_found))
    return RestoreFailed{generation, error.what()};
  return event_of(error, generation);
}

WorkerProtocol::WorkerProtocol(WorkerOptions options) : options_(std::move(options)) {}

std::vector<WorkerCommand> WorkerProtocol::apply(const WorkerEvent& event, Time now) {
  commands_.clear();
  if (exited_) return {};
  std::visit([&](const auto& e) { on(e, now); }, event);
  if (!exited_ && (report_due_ || now >= next_beat_)) send_report(now);
  return std::move(commands_);
}

void WorkerProtocol::send_report(Time now) {
  WorkerStatus report;
  report.worker = options_.worker;
  report.sequence = ++sequence_;
  report.address = options_.address;
  report.phase = phase_;
  report.generation = generation_;
  report.promised = promised_;
  report.step = step_;
  report.voted = voted_;
  report.num_parts = num_parts_;
  report.held = held_;
  if (voted_) report.next = next_;
  report.can_save = on_disk_ && (phase_ == WorkerPhase::done || phase_ == WorkerPhase::halted);
  report.suspects = suspects_;
  report.save = save_;
  report.unreadable = unreadable_;
  report.faulted = faulted_;
  report.leaving = leaving_;
  report.error = error_;
  report.error_code = error_code_;
  report.note = note_;
  if (sent_.size() >= kMaxUnacknowledged) sent_.erase(sent_.begin());
  sent_.emplace_back(sequence_, now);
  report_due_ = false;
  next_beat_ = now + options_.heartbeat;
  commands_.push_back(SendStatus{std::move(report)});
}

// ---- The controller.

void WorkerProtocol::on(const InstructionReceived& event, Time) {
  const Instruction& instruction = event.instruction;
  if (instruction.worker != options_.worker || instruction.controller < controller_) return;
  controller_ = instruction.controller;
  std::visit([&](const auto& what) { follow(what); }, instruction.what);
}

void WorkerProtocol::follow(const Ack& ack) {
  // The lease counts from when the report was sent: the controller, who counts from when it
  // acknowledged, never believes in an earlier end than the worker does.
  const auto found = std::find_if(sent_.begin(), sent_.end(),
                                  [&](const auto& sent) { return sent.first == ack.sequence; });
  if (found == sent_.end()) return;
  lease_until_ = std::max(lease_until_, found->second + options_.lease);
  sent_.erase(sent_.begin(), found + 1);
}

void WorkerProtocol::follow(const Halt& halt) {
  if (halt.generation <= generation_ || halt.generation < promised_) return;
  if (halt.at_boundary && phase_ == WorkerPhase::running) {
    stop_ = std::max(stop_, halt.generation);
    stop_gathers_ = halt.gather;
  } else {
    promise(halt.generation);
  }
}

void WorkerProtocol::follow(const Enter& enter) {
  if (!enter.plan || enter.plan->number < promised_ || enter.plan->number <= generation_) return;
  if (phase_ == WorkerPhase::loading || !error_.empty() || !enter.plan->find(options_.worker))
    return;
  promise(enter.plan->number);
  waiting_ = enter.plan;
  enter_if_free();
}

void WorkerProtocol::follow(const Save& save) {
  if (save.generation != std::max(generation_, promised_) || save.attempt <= save_.attempt) return;
  if (pending_save_ && pending_save_->attempt >= save.attempt) return;
  pending_save_ = save;
  if (phase_ != WorkerPhase::running) save_if_due();
}

void WorkerProtocol::follow(const Stop& stop) {
  exited_ = true;
  if (activity_ != Activity::none && activity_ != Activity::applying)
    commands_.push_back(Abandon{generation_});
  commands_.push_back(Exit{stop.reason});
}

// ---- Halting and entering.

// From here on nothing is voted or decided in an older generation. A step whose votes are all there
// is decided already: its Apply goes on, and (step, voted) means the same before and after it.
void WorkerProtocol::promise(Generation generation) {
  if (generation > promised_) report_due_ = true;
  promised_ = std::max(promised_, generation);
  if (phase_ == WorkerPhase::running || phase_ == WorkerPhase::restoring) halt("");
}

void WorkerProtocol::halt(std::string note) {
  if (activity_ == Activity::restoring || activity_ == Activity::stepping ||
      activity_ == Activity::voting) {
    activity_ = Activity::none;
    abandoning_ = true;
    commands_.push_back(Abandon{generation_});
  }
  phase_ = WorkerPhase::halted;
  note_ = std::move(note);
  report_due_ = true;
  save_if_due();
}

void WorkerProtocol::enter_if_free() {
  if (!waiting_ || abandoning_ || activity_ != Activity::none) return;
  plan_ = std::move(waiting_);
  waiting_ = nullptr;
  generation_ = plan_->number;
  stop_ = 0;
  agreed_ = 0;
  can_save_ = on_disk_ = false;
  suspects_.clear();
  unreadable_ = -1;
  faulted_ = false;
  note_.clear();
  report_due_ = true;
  const Member& self = *plan_->find(options_.worker);
  phase_ = WorkerPhase::restoring;
  const bool keeps = self.source == StateSource::keep || self.source == StateSource::apply_voted;
  // What it holds decides, not what it held when the plan was made: an Apply may have ended since.
  if (keeps && step_ == plan_->start) {
    voted_ = false;  // a step that too few voted for is redone
    activity_ = Activity::restoring;
    commands_.push_back(Restore{plan_, self});
  } else if (keeps && step_ + 1 == plan_->start && voted_) {
    activity_ = Activity::applying;
    commands_.push_back(Apply{generation_, step_});
  } else if (keeps) {
    halt(fmt::format("holds no state from which step {} can start", plan_->start));
  } else {
    step_ = -1;
    voted_ = false;
    done_ = false;
    held_.clear();
    activity_ = Activity::restoring;
    commands_.push_back(Restore{plan_, self});
  }
}

// Between two steps, with the state before step_.
void WorkerProtocol::go_on() {
  report_due_ = true;
  phase_ = done_ ? WorkerPhase::done : WorkerPhase::running;
  if (done_) pending_save_.reset();  // of a job that goes on; the controller says what it wants now
  save_if_due();
  if (agreed_ > generation_) {
    promised_ = std::max(promised_, agreed_);
    if (!done_) halt("pause after the step, as asked");
  } else if (!done_) {
    activity_ = Activity::stepping;
    commands_.push_back(RunStep{plan_, step_});
  }
}

void WorkerProtocol::save_if_due() {
  if (!pending_save_ || step_ < 0 || activity_ != Activity::none) return;
  if (pending_save_->generation != std::max(generation_, promised_)) {
    pending_save_.reset();
    return;
  }
  if (pending_save_->at_step >= 0 && phase_ == WorkerPhase::done) {
    pending_save_.reset();
    return;
  }
  if (step_ < pending_save_->at_step) return;
  if (!holds_all() && !can_save_) return;  // the next vote asks for the parts
  if (!on_disk_) can_save_ = false;        // the others save theirs once
  save_ = {pending_save_->attempt, SaveStatus::State::saving, step_, ""};
  pending_save_.reset();
  commands_.push_back(WriteCheckpoint{save_.attempt, std::max(generation_, promised_), step_});
  report_due_ = true;
}

// ---- The step loop.

CastVote::Gather WorkerProtocol::gather_wish() const {
  if (covers({&next_}, num_parts_)) return CastVote::Gather::no;  // it will have them anyway
  // First: what is saved here meanwhile may leave each with its parts.
  if (stop_ > generation_ && stop_gathers_) return CastVote::Gather::at_leader;
  if (pending_save_ && step_ + 1 >= pending_save_->at_step) return CastVote::Gather::here;
  return CastVote::Gather::no;
}

bool WorkerProtocol::may_step(Generation generation, int64_t step, Activity activity) const {
  return phase_ == WorkerPhase::running && activity_ == activity && generation == generation_ &&
         promised_ <= generation_ && step == step_;
}

bool WorkerProtocol::has_lease(Time now) {
  if (now <= lease_until_) return true;
  halt("lost touch with the controller: nothing may be decided before it answers");
  return false;
}

void WorkerProtocol::on(const Loaded&, Time) {
  if (phase_ != WorkerPhase::loading) return;
  phase_ = WorkerPhase::ready;
  report_due_ = true;
}

void WorkerProtocol::on(const Reduced& event, Time now) {
  if (!may_step(event.generation, event.step, Activity::stepping) || !has_lease(now)) return;
  voted_ = true;
  next_ = event.next;
  activity_ = Activity::voting;
  commands_.push_back(CastVote{generation_, step_, stop_ > generation_ ? stop_ : 0, gather_wish()});
}

void WorkerProtocol::on(const AllVoted& event, Time now) {
  if (!may_step(event.generation, event.step, Activity::voting) || !has_lease(now)) return;
  // A wish that came after the own vote was cast waits for the next one: the others do not know of
  // it, and would wait in the next step for a worker that halted after this one.
  agreed_ = event.stop;
  activity_ = Activity::applying;
  commands_.push_back(Apply{generation_, step_});
}

void WorkerProtocol::on(const Restored& event, Time) {
  if (event.generation != generation_) return;
  if (activity_ == Activity::applying ? event.step != step_ + 1 : activity_ != Activity::restoring)
    return;
  const bool caught_up = activity_ == Activity::applying && phase_ == WorkerPhase::restoring;
  activity_ = Activity::none;
  step_ = event.step;
  voted_ = false;
  done_ = event.done;
  num_parts_ = event.num_parts;
  held_ = event.held;
  can_save_ = event.can_save;
  on_disk_ = event.can_save && event.on_disk;
  if (phase_ == WorkerPhase::halted) {
    report_due_ = true;
    // The next generation first completes a state whose evaluation a lost leader left undone.
    if (!waiting_) save_if_due();
    enter_if_free();
  } else if (caught_up) {
    activity_ = Activity::restoring;
    commands_.push_back(Restore{plan_, *plan_->find(options_.worker)});
  } else {
    go_on();
  }
}

void WorkerProtocol::on(const RestoreFailed& event, Time) {
  if (event.generation != generation_ || activity_ != Activity::restoring) return;
  activity_ = Activity::none;
  if (plan_->find(options_.worker)->source == StateSource::checkpoint) unreadable_ = plan_->start;
  halt(event.text);
  enter_if_free();
}

void WorkerProtocol::on(const PeerLost& event, Time) {
  if (event.generation != generation_ || activity_ == Activity::none ||
      activity_ == Activity::applying)
    return;
  activity_ = Activity::none;
  suspects_ = event.suspects;
  halt(event.text);
  enter_if_free();
}

void WorkerProtocol::on(const Faulted& event, Time) {
  if (activity_ == Activity::applying) {
    // The step loop could not end an apply: nobody knows what state this process has.
    exited_ = true;
    commands_.push_back(Exit{fmt::format("its state is unknown: {}", event.text)});
    return;
  }
  if (event.generation != generation_ || phase_ == WorkerPhase::loading) return;
  faulted_ = true;
  halt(event.text);
  enter_if_free();
}

void WorkerProtocol::on(const Abandoned& event, Time) {
  if (!abandoning_ || event.generation != generation_) return;
  abandoning_ = false;
  enter_if_free();
}

void WorkerProtocol::on(const Saved& event, Time) {
  if (save_.state != SaveStatus::State::saving || event.attempt != save_.attempt) return;
  save_.state = SaveStatus::State::written;
  save_.figures = event.figures;
  report_due_ = true;
}

void WorkerProtocol::on(const SaveFailed& event, Time) {
  if (save_.state != SaveStatus::State::saving || event.attempt != save_.attempt) return;
  save_.state = SaveStatus::State::failed;
  save_.text = event.text;
  // Then nobody has all of the state, and in the next generation all save their parts again.
  if (event.parts_lost) can_save_ = on_disk_ = false;
  report_due_ = true;
}

void WorkerProtocol::on(const JobError& event, Time) {
  if (error_.empty()) {
    error_ = event.text;
    error_code_ = event.code;
  }
  waiting_ = nullptr;
  halt(event.text);
}

void WorkerProtocol::on(const LeaveAsked&, Time) {
  leaving_ = true;
  report_due_ = true;
}

// Whoever starts another generation without this worker's word saves its number first, and then
// waits for a lease. So a look that did not find the number renews the lease from when it began.
void WorkerProtocol::on(const RecordRead& event, Time) {
  if (event.generation != generation_ || promised_ > generation_) return;
  lease_until_ = std::max(lease_until_, event.asked_at + options_.lease);
}

void WorkerProtocol::on(const Beat&, Time) {}

bool WorkerProtocol::misses_controller(Time now) const {
  return phase_ == WorkerPhase::running && promised_ <= generation_ &&
         now + options_.lease / 4 * 3 > lease_until_;
}

Time WorkerProtocol::next_deadline() const { return next_beat_; }
WorkerPhase WorkerProtocol::phase() const { return phase_; }
Generation WorkerProtocol::generation() const { return generation_; }
Generation WorkerProtocol::promised() const { return promised_; }
int64_t WorkerProtocol::step() const { return step_; }
bool WorkerProtocol::voted() const { return voted_; }
Time WorkerProtocol::lease_until() const { return lease_until_; }

}  // namespace ductile::control
