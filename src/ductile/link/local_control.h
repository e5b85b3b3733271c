#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ductile/base/files.h"
#include "ductile/control/membership.h"
#include "ductile/link/command_source.h"
#include "ductile/link/job_end.h"
#include "ductile/run/lock.h"

namespace ductile::link {

struct LocalControlOptions {
  fs::path run;  // the run directory; its checkpoints lie in checkpoints/
  // As for a controller of several workers; the number of workers is 1, and the deadlines for
  // workers that are silent do not count: the worker is the thread that asks.
  control::MembershipOptions membership;
  int64_t keep_checkpoints = 2;
  // What happened, as it is written to events.jsonl. May be empty.
  std::function<void(const control::Note&)> on_note;
};

// A job that is trained by the thread that asks: the same control::Membership and
// control::WorkerProtocol as of a job with workers, without sockets or further processes. The one
// worker hosts all virtual ranks.
//
//   LocalControl control(lock, {.run = folder.path(), .membership = ...});
//   control.tell(Loaded{});
//   while (auto command = control.next()) { ... }   // until Exit was handed out
//   JobEnd end = control.end();
//
// It keeps the same files in the run directory as a controller (membership.json, the control events
// in events.jsonl, at the end the report), so that a controller can go on with a run that was begun
// here, and the other way round. It publishes the checkpoints that the worker writes under
// checkpoint_tag(worker()).
//
// Threads: preempt() from any, and from a signal handler; all else from one.
class LocalControl : public CommandSource {
 public:
  // Starts the job, or goes on with it. Where a controller was killed whose workers may still run,
  // it first waits until their lease has ended (MembershipOptions). The lock is the run's, held by
  // the caller for this object's life. Throws data_loss where what is stored of the job is damaged
  // or gone, invalid_argument for options that fit no job, unavailable where the state cannot be
  // saved now.
  LocalControl(const run::RunLock& lock, LocalControlOptions options);
  ~LocalControl() override;

  control::WorkerId worker() const override;
  // LeaveAsked means the same as preempt(): there is no other worker.
  void tell(const control::WorkerEvent& event) override;
  std::optional<control::WorkerCommand> next(
      std::chrono::milliseconds wait = std::chrono::hours(1)) override;
  bool abandoned(control::Generation generation) const override;
  std::optional<net::Address> store() const override { return std::nullopt; }

  // The job is to finish its step, to save and to end as preempted. Noticed at the next call of
  // tell() or next(); a signal that asked is written down.
  void preempt(int signal = 0) noexcept;

  // After Exit was handed out, and what the worker had left to write is written: writes the run's
  // `end` event and its report, once. Before Exit: the job ends here without saving (killed).
  JobEnd end();

  // The job as it stands.
  const control::Membership& membership() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::link
