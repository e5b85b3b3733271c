#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "ductile/net/handshake.h"
#include "ductile/net/loop.h"
#include "ductile/net/seal.h"
#include "ductile/net/socket.h"

namespace ductile::net {

// What becomes of a connection once its two ends have authenticated each other. Each end knows it
// by the role; it is not negotiated.
enum class Wire : uint8_t {
  sealed,  // it is encrypted
  plain,   // bytes as they are: for the bulk transports
};

// A connection whose two ends have authenticated each other. Nothing of what follows has been read.
struct Admission {
  Socket socket;
  Identity peer;
  std::optional<Seal> seal;  // its handshake is done; none of a plain one
};

// A peer that was refused.
struct Refusal {
  std::string address;  // of the peer
  std::string reason;
};
using OnRefusal = std::function<void(const Refusal&)>;

struct GateOptions {
  Wire wire = Wire::sealed;
  std::chrono::milliseconds handshake_deadline{3000};
  int max_pending = 128;       // half-open handshakes; beyond, see Gate
  int max_logs_a_second = 20;  // refusals told one by one; the rest as a number
};

// Accepts authenticated peers at a listener, with many handshakes at once, in a loop.
//
// Strangers cost little and block nobody: a handshake takes less than 1 KB, and that of TLS begins
// only after the other end has proved that it knows the secret; both end at one deadline, however
// slowly the bytes arrive. When max_pending handshakes are under way, the oldest
// one of the address that has most of them is dropped. Each refusal is reported with its address
// and reason. Out of descriptors, it rests and goes on later.
class Gate {
 public:
  // It must not destroy the gate.
  using OnAdmission = std::function<void(Admission)>;

  Gate(Loop& loop, Listener listener, const Secret& secret, Identity self, GateOptions options,
       Admit admit, OnRefusal on_refusal, OnAdmission on_admission);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  Address address() const { return listener_.address(); }
  size_t num_pending() const { return pending_.size(); }

 private:
  struct Pending;
  using PendingList = std::list<Pending>;

  void pause(const Error& error);
  void take_up();
  void take_waiting();
  void advance(PendingList::iterator p);
  bool take_step(Pending& pending);
  void drop(PendingList::iterator p, std::string reason);
  void await_deadline();
  void make_room();
  void refuse(const std::string& address, std::string reason);

  Loop& loop_;
  Listener listener_;
  Secret secret_;
  Identity self_;
  GateOptions options_;
  Admit admit_;
  OnRefusal on_refusal_;
  OnAdmission on_admission_;
  PendingList pending_;  // oldest first
  Deadline log_second_{};
  int logs_ = 0;
  int unlogged_ = 0;
  Loop::Watch watch_;   // of the listener
  Loop::Timer resume_;  // while it rests
  Loop::Timer expiry_;  // of the oldest handshake
};

// A gate for a thread that does nothing but wait for its peers.
class WaitingGate {
 public:
  WaitingGate(Listener listener, const Secret& secret, Identity self, GateOptions options,
              Admit admit, OnRefusal on_refusal);

  // The next accepted peer, or nothing at the deadline or after wake().
  std::optional<Admission> accept(Deadline deadline);
  void wake() { loop_.stop(); }  // any thread

  Address address() const { return gate_.address(); }
  size_t num_pending() const { return gate_.num_pending(); }

 private:
  Loop loop_;
  std::deque<Admission> admitted_;
  Gate gate_;
};

struct DialOptions {
  Wire wire = Wire::sealed;
  SocketOptions socket;
  // Try again until the deadline if nobody listens there yet.
  bool wait_for_server = true;
};

// Connects to `server` and authenticates. Throws deadline; unavailable (nobody listens, or the
// secret is wrong); conflict (fenced out by a newer generation, or another process is at that
// address).
Admission dial(const Address& to, const Secret& secret, const Identity& self,
               const Identity& server, const DialOptions& options, Deadline deadline);

}  // namespace ductile::net
