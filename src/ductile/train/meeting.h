#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/engine.h"
#include "ductile/comm/failure_detector.h"
#include "ductile/control/protocol.h"
#include "ductile/net/secret.h"
#include "ductile/net/socket.h"
#include "ductile/parallel/exchange.h"

namespace ductile::train {

struct MeetingOptions {
  std::string job;                  // link::job_name
  control::WorkerId worker = 0;     // this one
  std::string address;              // where workers of other hosts reach it
  parallel::ExchangeLayout layout;  // of the plan's members
  std::function<net::Address()> store;
  // A member on another host that is silent for longer than this is lost.
  std::chrono::milliseconds deadline{1500};
  // If one collective takes longer than this, `log` gets one line that names the missing workers.
  std::chrono::milliseconds soft_deadline{10'000};
  std::function<bool()> given_up;  // true: the generation is over before it began
  std::function<void(const std::string&)> log;
};

// The members of a generation could not be connected.
struct MeetingFailed : Error {
  MeetingFailed(std::string text, std::vector<control::WorkerId> who)
      : Error(ErrorCode::peer_lost, std::move(text)), suspects(std::move(who)) {}
  std::vector<control::WorkerId> suspects;  // members that are there and cannot be reached
};

// The connections between all members of one generation. If all of them can share memory they are
// connected through one arena. Otherwise they send messages, through shared memory inside a host
// and by TCP between hosts, and a failure detector watches them. (In an arena losses are detected
// by the controller's heartbeats and by the kernel.)
//
// Strangers and members of other generations cannot take part, because the name of an arena and
// every connection derive from the secret. One thread uses a Meeting; the exchange has its own
// rules.
class Meeting {
 public:
  // Waits for all members, however long their present work takes. Throws MeetingFailed, also when
  // options.given_up returns true. A member that is alone needs no secret.
  Meeting(const control::GenerationPlan& plan, const net::Secret* secret, MeetingOptions options);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // The pointer is shared, since another thread may call fail() on the exchange while the meeting
  // ends.
  const std::shared_ptr<parallel::Exchange>& exchange() const { return exchange_; }
  // The number of members on this host, and the position of this one among them.
  int64_t workers_here() const;
  int64_t place_here() const;
  // The members that were lost, as far as it is known.
  std::vector<control::WorkerId> lost() const;

 private:
  void meet_nobody();
  void meet_in_arena(const control::GenerationPlan& plan, const net::Secret& secret);
  void meet_by_messages(const control::GenerationPlan& plan, const net::Secret& secret);
  comm::EngineOptions engine_options() const;
  comm::ArenaOptions arena_options(const std::vector<int>& ranks,
                                   const control::GenerationPlan& plan) const;

  const MeetingOptions options_;
  std::vector<control::WorkerId> members_;  // by rank
  std::vector<int> hosts_;                  // by rank: equal for members that can share memory
  int rank_ = 0;
  parallel::ExchangeLayout layout_;
  std::shared_ptr<comm::Arena> arena_;  // of all members
  std::shared_ptr<parallel::Exchange> exchange_;
  std::unique_ptr<comm::FailureDetector> detector_;  // last: its thread calls the exchange
};

}  // namespace ductile::train
