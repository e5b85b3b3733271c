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

// A connection whose two ends have authenticated each other.
struct Admission {
  Socket socket;
  Identity peer;
  SessionKeys keys;
};

// A peer that was refused.
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

// Accepts authenticated peers at a listener, with many handshakes at once, on the thread of its
// caller.
//
// Strangers cost little and block nobody: a handshake takes less than 1 KB and ends at its
// deadline, however slowly its bytes arrive. When max_pending handshakes are under way, the oldest
// one of the address that has most of them is dropped. Each refusal is reported with its address
// and reason.
class Gate {
 public:
  Gate(Listener listener, const Secret& secret, Identity self, GateOptions options, Admit admit,
       OnRefusal on_refusal);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // The next accepted peer, or nothing at the deadline or after wake().
  std::optional<Admission> accept(Deadline deadline);

  // Handles what has arrived, without waiting. It is for callers with their own event loop, which
  // wait until fd() is readable, but not beyond next_deadline().
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
  // Try again until the deadline if nobody listens there yet.
  bool wait_for_server = true;
};

// Connects to `server` and authenticates. Throws deadline; unavailable (nobody listens, or the
// secret is wrong); conflict (fenced out by a newer generation, or another process is at that
// address).
Admission dial(const Address& to, const Secret& secret, const Identity& self,
               const Identity& server, const DialOptions& options, Deadline deadline);

}  // namespace ductile::net
