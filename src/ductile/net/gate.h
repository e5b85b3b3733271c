#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "ductile/base/descriptor.h"
#include "ductile/net/frames.h"
#include "ductile/net/handshake.h"
#include "ductile/net/socket.h"

namespace ductile::net {

// A connection whose two ends have proved themselves.
struct Admission {
  Socket socket;
  Identity peer;
  SessionKeys keys;
};

// Somebody who was not let in.
struct Refusal {
  std::string address;  // of the peer
  std::string reason;
};
using OnRefusal = std::function<void(const Refusal&)>;

struct GateOptions {
  std::chrono::milliseconds handshake_deadline{3000};
  int max_pending = 128;       // half-open handshakes; beyond, see Gate
  int max_logs_a_second = 20;  // refusals told one by one; the rest as a number
};

// Lets authenticated peers in at a listener, many handshakes at once, on the thread of its caller.
//
// Strangers cost little and stop nobody: a handshake holds under 1 KB, ends at its deadline however
// slowly its bytes drip, and when max_pending are under way the oldest one of the address with the
// most is dropped. Each refusal is reported with its address and reason.
class Gate {
 public:
  Gate(Listener listener, const Secret& secret, Identity self, GateOptions options, Admit admit,
       OnRefusal on_refusal);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // The next peer let in, or nothing at the deadline or after wake().
  std::optional<Admission> accept(Deadline deadline);

  // Handles what is there without waiting; for callers with an event loop of their own, which wait
  // for fd() to become readable, but no longer than until next_deadline().
  std::optional<Admission> poll() { return accept(Clock::now()); }
  int fd() const { return epoll_.get(); }
  Deadline next_deadline() const;

  // Ends a waiting accept(), from any thread.
  void wake();

  Address address() const { return listener_.address(); }
  size_t num_pending() const { return pending_.size(); }

 private:
  struct Pending;
  using PendingList = std::list<Pending>;

  void pause(const Error& error);
  void take_up();
  void take_waiting();
  void advance(PendingList::iterator p, std::optional<Admission>& admitted);
  void drop(PendingList::iterator p, std::string reason);
  void drop_expired();
  void make_room();
  void refuse(const std::string& address, std::string reason);

  Listener listener_;
  Secret secret_;
  Identity self_;
  GateOptions options_;
  Admit admit_;
  OnRefusal on_refusal_;
  Descriptor epoll_;
  Descriptor wake_;
  bool paused_ = false;  // out of descriptors: not accepting until resume_at_
  Deadline resume_at_{};
  PendingList pending_;  // oldest first
  Deadline log_second_{};
  int logs_ = 0;
  int unlogged_ = 0;
};

struct DialOptions {
  SocketOptions socket;
  // Try again until the deadline where nobody listens there yet.
  bool wait_for_server = true;
};

// Connects and proves itself to `server`. Throws deadline; unavailable (nobody there, wrong
// secret); conflict (fenced out by a newer generation, another process at that address).
Admission dial(const Address& to, const Secret& secret, const Identity& self,
               const Identity& server, const DialOptions& options, Deadline deadline);

}  // namespace ductile::net
