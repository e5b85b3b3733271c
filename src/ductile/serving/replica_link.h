#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "ductile/net/dialing.h"
#include "ductile/net/gate.h"
#include "ductile/net/loop.h"
#include "ductile/net/relay.h"
#include "ductile/net/secret.h"
#include "ductile/net/socket.h"

// How requests reach a replica on another machine. Its server listens to its own machine alone, as
// everywhere. Beside it is a door, which lets in who proves that he knows the job's secret, and
// carries his bytes, by TLS 1.3, to the server.
namespace ductile::serving {

// What a front tells a replica that may be on another machine.
struct FrontPlace {
  std::string place;    // of the front: link::PeerAddress::place
  std::string towards;  // the address of the front's machine, as replicas see it
  std::string job;      // the name of the front's job in handshakes

  nlohmann::json to_json() const;
  // Throws invalid_argument.
  static FrontPlace from_json(const nlohmann::json& value);
};

// The replica's end. It belongs to the thread of its loop, as its server does.
class ReplicaDoor {
 public:
  // Listens on any port of `host`, an address of this machine, for the front of the job, which
  // wants the replica of this number; `server` is where that answers. Throws as net::Listener does.
  ReplicaDoor(net::Loop& loop, const std::string& host, const net::Secret& secret,
              const std::string& job, uint64_t replica, const net::Address& server);
  ReplicaDoor(const ReplicaDoor&) = delete;
  ReplicaDoor& operator=(const ReplicaDoor&) = delete;

  net::Address address() const { return gate_.address(); }
  size_t connections() const { return relays_.size(); }

 private:
  void admit(net::Admission admission);
  void refused(const net::Refusal& refusal);

  net::Loop& loop_;
  const net::Address server_;
  std::map<uint64_t, std::unique_ptr<net::Relay>> relays_;
  uint64_t last_ = 0;
  int64_t refusals_ = 0;
  net::Deadline next_line_{};
  net::Gate gate_;
};

// The door of a replica that runs in `place`: none where its front is in the same place, and
// reaches its server without one. `host`: the address of this machine for others; empty: the one
// that faces the front. The secret is that of Secret::load(). Throws unavailable.
std::unique_ptr<ReplicaDoor> open_door(net::Loop& loop, const FrontPlace& front,
                                       const std::string& place, const std::string& host,
                                       uint64_t replica, const net::Address& server);

// The front's end: connections to doors. It belongs to the thread of its loop.
class ReplicaLinks {
 public:
  // Why a connection could not be made, or was not let in: the replica, and a text that names the
  // address.
  using OnTrouble = std::function<void(uint64_t, const std::string&)>;

  ReplicaLinks(net::Loop& loop, const net::Secret& secret, std::string job, OnTrouble on_trouble)
      : loop_(loop), secret_(secret), job_(std::move(job)), on_trouble_(std::move(on_trouble)) {}
  ReplicaLinks(const ReplicaLinks&) = delete;
  ReplicaLinks& operator=(const ReplicaLinks&) = delete;

  // A stream to the server behind the door, which can be written to at once; the connection is
  // being made meanwhile. It ends where that fails. Throws unavailable where this process has no
  // descriptors for it, and invalid_argument, which is told as trouble, too, where the host of
  // `door` is no number.
  net::Socket open(uint64_t replica, const net::Address& door);
  size_t connections() const { return streams_.size(); }

 private:
  struct Stream {
    uint64_t replica = 0;
    net::Socket near;  // until there is a relay
    std::unique_ptr<net::Dialing> dialing;
    std::unique_ptr<net::Relay> relay;
  };
  void dialled(uint64_t number, net::Dialing::Outcome outcome);

  net::Loop& loop_;
  const net::Secret secret_;
  const std::string job_;
  const OnTrouble on_trouble_;
  std::map<uint64_t, Stream> streams_;
  uint64_t last_ = 0;
};

}  // namespace ductile::serving
