#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "ductile/control/membership.h"
#include "ductile/net/channel.h"
#include "ductile/net/gate.h"
#include "ductile/net/loop.h"
#include "ductile/net/secret.h"

namespace ductile::server {

// The controller's connections to its workers, one each: lets them in, cuts what they say into
// reports, sends instructions without ever waiting for anybody. What a worker does not take at once
// is sent as it takes it: of each worker one instruction, so that memory is bounded. It belongs to
// a loop's thread.
class Connections {
 public:
  using OnEvent = std::function<void(const control::Event&)>;

  // `on_ready` is called when serve() has something to take; it must only note this.
  Connections(net::Loop& loop, const net::Address& listen, const net::Secret& secret,
              const std::string& job, net::OnRefusal on_refusal, OnEvent on_event,
              std::function<void()> on_ready);

  net::Address address() const { return gate_.address(); }
  bool has(control::WorkerId worker) const { return peers_.contains(worker); }

  // Dropped where the worker is not connected, or has not taken all of an earlier one yet. A
  // connection that took no byte of that for kPatience is closed.
  void send(const control::Instruction& instruction);
  static constexpr std::chrono::seconds kPatience{10};

  // Takes everything that is there: WorkerReported, ConnectionClosed. Sends what was left.
  void serve();

 private:
  struct Peer {
    net::Channel channel;
    net::Loop::Watch watch;
    net::Deadline took{};  // when it last took a byte of what it was sent
  };

  void admit(net::Admission admission);
  static void look_for_room(Peer& peer);
  void flush(control::WorkerId worker);
  void receive(control::WorkerId worker);
  void close(control::WorkerId worker, const Error& why);

  net::Loop& loop_;
  net::OnRefusal on_refusal_;
  OnEvent on_event_;
  std::function<void()> on_ready_;
  std::map<control::WorkerId, Peer> peers_;
  net::Gate gate_;
};

}  // namespace ductile::server
