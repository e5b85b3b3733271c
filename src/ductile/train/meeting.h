#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/comm/arena.h"
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
  parallel::ExchangeLayout layout;  // but for the cut, which the plan gives
  std::function<net::Address()> store;
  // Between hosts a member that is silent for longer is lost.
  std::chrono::milliseconds deadline{1500};
  // Longer in one collective: `log` is told once, with the workers who are missing.
  std::chrono::milliseconds soft_deadline{10'000};
  std::function<bool()> given_up;  // true: the generation is over before it began
  std::function<void(const std::string&)> log;
};

// A generation that did not come together.
struct MeetingFailed : Error {
  MeetingFailed(std::string text, std::vector<control::WorkerId> who)
      : Error(ErrorCode::peer_lost, std::move(text)), suspects(std::move(who)) {}
  std::vector<control::WorkerId> suspects;  // members that are there and cannot be reached
};

// The members of one generation, connected: through one arena where all of them can share memory;
// else by messages, through shared memory inside a host and TCP between hosts, watched by a failure
// detector. (In an arena the controller's heartbeats and the kernel tell of losses.)
//
// Strangers cannot take part: the name of an arena and every connection derive from the secret; nor
// can members of other generations. One thread; the exchange has its own rules.
class Meeting {
 public:
  // Waits for all members, however long they take for what they are at. Throws MeetingFailed, also
  // when options.given_up says so. A member that is alone needs no secret.
  Meeting(const control::GenerationPlan& plan, const net::Secret* secret, MeetingOptions options);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Shared, since fail() may be called on it from another thread while the meeting ends.
  const std::shared_ptr<parallel::Exchange>& exchange() const { return exchange_; }
  // Of the members on this host: how many there are, and which of them this one is, in order.
  int64_t workers_here() const;
  int64_t place_here() const;
  // The members that were lost, as far as it is known.
  std::vector<control::WorkerId> lost() const;

 private:
  void meet_nobody();
  void meet_in_arena(const control::GenerationPlan& plan, const net::Secret& secret);
  void meet_by_messages(const control::GenerationPlan& plan, const net::Secret& secret);
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
