#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <poll.h>

#include "ductile/control/membership.h"
#include "ductile/net/frames.h"
#include "ductile/net/gate.h"
#include "ductile/net/secret.h"

namespace ductile::server {

// The controller's connections to its workers, one each: lets them in, cuts what they say into
// reports, sends instructions without ever waiting for anybody. One thread.
class Connections {
 public:
  using OnEvent = std::function<void(const control::Event&)>;

  Connections(const net::Address& listen, const net::Secret& secret, const std::string& job,
              net::OnRefusal on_refusal, OnEvent on_event);

  net::Address address() const { return gate_.address(); }
  bool has(control::WorkerId worker) const { return channels_.contains(worker); }

  // Dropped where the worker is not connected; a connection that takes nothing more is closed.
  void send(const control::Instruction& instruction);

  void add_to(std::vector<pollfd>& watched) const;
  net::Deadline next_deadline() const { return gate_.next_deadline(); }
  // Takes everything that is there: WorkerReported, ConnectionClosed.
  void serve();

 private:
  void admit();
  void receive(control::WorkerId worker);
  void close(control::WorkerId worker, const std::string& why);

  net::Gate gate_;
  net::OnRefusal on_refusal_;
  OnEvent on_event_;
  std::map<control::WorkerId, net::Channel> channels_;
};

}  // namespace ductile::server
