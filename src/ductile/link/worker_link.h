#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "ductile/base/descriptor.h"
#include "ductile/control/worker_protocol.h"
#include "ductile/link/addresses.h"
#include "ductile/link/command_queue.h"
#include "ductile/link/command_source.h"
#include "ductile/link/told_cost.h"
#include "ductile/net/channel.h"
#include "ductile/net/gate.h"
#include "ductile/net/secret.h"
#include "ductile/run/meters.h"

namespace ductile::link {

inline constexpr std::chrono::minutes kOrphanAfter{2};

struct WorkerLinkOptions {
  control::WorkerOptions worker;  // its id, its address for peers, heartbeat, lease
  std::string job;                // job_name(run folder)
  net::Address controller;        // --controller
  net::Address store;             // --store
  // The run folder: if connecting fails, its addresses_file() is read, since a controller may have
  // been started again elsewhere. Empty: `controller` and `store` are always used.
  fs::path run;
  // After this long without a word from any controller the worker is told to exit, since none will
  // come.
  std::chrono::milliseconds orphan_after = kOrphanAfter;
  // For so long it goes on without a controller as if one answered, where the run's saved state
  // (saved_state.h) lets it, and then waits no less before it exits. 0: it stops when its lease
  // ends.
  std::chrono::milliseconds alone{0};
  net::SocketOptions socket;
  // Called on the link's own thread; must not block and must not call the link. May be empty.
  std::function<void(const std::string& text)> log;
  // The step loop is to give up what it does in generations up to this one: make its communicator
  // fail (Transport::fail), so that it comes back at once. Called before the Abandon command is
  // handed out, from the thread that brought it about (the link's own, or one in tell()), without
  // locks. Must not block. See also WorkerLink::abandoned().
  std::function<void(control::Generation)> on_abandon;
};

// A worker's connection to the controller. It dials, authenticates, and dials again when the
// connection breaks. It sends reports and heartbeats, receives instructions, and drives the
// WorkerProtocol with both under one lock.
//
// When an Abandon is decided, commands of the step that the loop has not taken yet are withdrawn,
// so the loop sees Abandon next (WriteCheckpoint stays in its place). After Stop (Exit) the last
// report has been sent or given up. Reports that say no more than that steps were done wait a few
// milliseconds, so that many short steps are one report.
//
// Threads: any thread may call tell() and the getters; one thread calls next(). The clock is
// boot_time().
class WorkerLink : public CommandSource {
 public:
  // Returns at once; connecting goes on in the background. Throws invalid_argument for an
  // impossible id.
  WorkerLink(WorkerLinkOptions options, const net::Secret& secret);
  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;
  ~WorkerLink() override;  // closes the connection; waits a second at most for a dial under way

  control::WorkerId worker() const override { return options_.worker.worker; }
  void tell(const control::WorkerEvent& event) override;
  std::optional<control::WorkerCommand> next(
      std::chrono::milliseconds wait = std::chrono::hours(1)) override;
  // For work that on_abandon cannot reach: check it before building a communicator and after it was
  // built.
  bool abandoned(control::Generation generation) const override;
  // As the run folder says now, or else the options.
  std::optional<net::Address> store() const override;
  std::optional<run::Cost> job_cost() const override;

  bool connected() const;
  control::WorkerPhase phase() const;
  int64_t step() const;
  control::Generation generation() const;

 private:
  void apply(const control::WorkerEvent& event);
  void run();
  std::optional<net::Channel> connect();
  void converse(net::Channel& channel);
  bool take_reports(std::optional<control::WorkerStatus>& report);
  void look_at_record();
  void say(const std::string& text);
  void wake();
  control::Time beat_in() const;
  std::chrono::milliseconds within_lease(std::chrono::milliseconds wait) const;

  const WorkerLinkOptions options_;
  const net::Secret secret_;
  Descriptor wake_;  // an eventfd: a report is due, or the end

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  control::WorkerProtocol protocol_;
  CommandQueue commands_;
  ToldCost job_cost_;
  run::CostMeter cost_;                          // of this process
  std::optional<control::WorkerStatus> report_;  // the newest, not sent yet
  bool urgent_ = false;                          // it says more than that steps were done
  control::WorkerStatus taken_;                  // the last one that was taken to be sent, and when
  control::Time taken_at_{0};
  control::Time heard_at_{0};
  bool connected_ = false;
  bool stopping_ = false;

  // Of the link's thread.
  std::string said_;
  std::string said_alone_;                       // since the controller was last heard
  control::Time look_again_{0};                  // at the run's saved state
  std::optional<control::WorkerStatus> newest_;  // the last one that was taken to be sent

  std::jthread thread_;
};

}  // namespace ductile::link
