#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ductile/net/loop.h"
#include "ductile/net/socket.h"
#include "ductile/serving/http_server.h"

namespace ductile::serving {

struct RouterOptions {
  HttpOptions http;
  size_t most_waiting = 1024;                                     // requests without a replica
  std::chrono::milliseconds patience = std::chrono::seconds(60);  // for an answer, with all tries
  size_t most_answer = size_t{256} << 20;                         // bytes of a replica's answer
  // A replica that answers no question about its health for this long gets no requests until it
  // does, and those that it has go to others. After `lost` of these it counts as lost. The time
  // for which this process was stopped itself does not count.
  std::chrono::milliseconds silence = std::chrono::seconds(2);
  int lost = 15;
  // All replicas of this model are kept at the same weights. Empty: each has those that it has, as
  // where they follow a run by themselves.
  std::string model;
};

// One address in front of several servers of the same model (InferenceServer). Each request goes to
// the replica that has the fewest; if that one is lost, or is ending, before its whole answer has
// arrived, the request goes to another one, which is safe since a prediction changes nothing; the
// same holds for one that is silent, as a stopped process is. A request under which three replicas
// ended is answered with 502, since it may be what ends them. While there is no replica, requests
// wait. A request to load weights goes to one replica after the other, and one such request waits
// for the one before it. All methods and callbacks belong to the loop's thread. Replicas are on
// this machine, or are reached through streams that somebody else makes (replica_link.h).
class Router {
 public:
  using ReplicaId = uint64_t;
  // A new stream to the replica's server, in a socket that does not block; it may still be being
  // made, and ends where that fails. Throws unavailable where this process has no descriptors for
  // it, which says nothing of the replica; any other error counts as silence.
  using Connect = std::function<net::Socket()>;

  // Throws as HttpServer does.
  Router(net::Loop& loop, RouterOptions options);
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;
  ~Router();

  net::Address address() const;

  // `version`: of its weights; none: unknown. The first one decides what all are to have, until a
  // request to load has succeeded in one replica. One that comes with other weights gets no
  // requests until it has loaded those; if they are there no more, the others load its own. At an
  // address nobody is believed but processes of this user and of root, as far as the kernel says.
  void add(ReplicaId id, const net::Address& address, std::optional<int64_t> version = {});
  void add(ReplicaId id, Connect connect, std::optional<int64_t> version = {});
  // It gets no more requests; `on_idle` is called when it has answered those that it has.
  void retire(ReplicaId id, std::function<void()> on_idle);
  // It is gone; what it has not answered goes to others.
  void remove(ReplicaId id);
  // It is there, answers questions about its health, has the right weights, and is not to go.
  bool takes_requests(ReplicaId id) const;

  // What all are to have; none: what the next one has that is added.
  void want(std::optional<int64_t> version);
  std::optional<int64_t> wanted() const;

  // The same as a request of its user to load weights of the model: `version`, or the newest. The
  // answer is 503 where there is no replica, and 409 or 503 where none can load any just now.
  void load_weights(const std::string& model, std::optional<int64_t> version,
                    HttpServer::Reply reply);

  // Of a replica that counts as lost although nobody removed it, or cannot load what all are to
  // have: to be ended and replaced. It gets no requests any more, also where that takes long.
  void call_when_lost(std::function<void(ReplicaId)> on_lost);

  // With each replica that has loaded weights, and their version; wanted() may be another one now.
  void call_when_changed(std::function<void(ReplicaId, int64_t)> on_changed);
  // With the version that all replicas have loaded at somebody's request.
  void call_when_loaded(std::function<void(int64_t)> on_loaded);

  // Since the beginning: from it a scheduler takes how many replicas there should be.
  struct Load {
    int64_t arrived = 0, answered = 0, retried = 0;
    int64_t in_flight = 0, waiting = 0;  // now: at replicas, and without one
    double busy_seconds = 0;             // summed over all requests: at a replica
    double replica_seconds = 0;          // summed over replicas: with one request at least
  };
  Load load() const;

  // Of what waits although no replica will come.
  void refuse_waiting();
  // Answers what was accepted, refuses what comes, and calls `on_drained`.
  void drain(std::function<void()> on_drained);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ductile::serving
