#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/net/gate.h"
#include "ductile/net/store.h"

namespace ductile::comm {

// One generation of a job, as one of its processes sees it.
struct Group {
  std::string job;
  uint64_t generation = 1;  // at least 1; a process of an older one is refused by every newer one
  int rank = 0;
  int size = 1;
};

// An authenticated connection to `peer` over the link `lane`.
struct MeshLink {
  int peer = -1;
  int lane = 0;
  net::Socket socket;
  std::optional<net::Seal> seal;  // none of a plain one
};

struct MeshOptions {
  std::string role;  // what the connections are for; meshes of different roles do not mix
  // This host's addresses, one per link (network card). Peers are reached over link k from address
  // k; every rank must give as many.
  std::vector<std::string> links = {"127.0.0.1"};
  net::Wire wire = net::Wire::sealed;  // of each link
  net::SocketOptions socket;
  // The time limit for connecting to a peer whose address is known; a peer that takes longer cannot
  // be reached.
  std::chrono::milliseconds connect_patience = std::chrono::hours(24);
  // Called about ten times per second during the wait; if it returns true, connect_mesh() throws
  // peer_lost.
  std::function<bool()> given_up;
  net::OnRefusal on_refusal;  // strangers and late processes that were turned away meanwhile
};

// A peer that has published its address, but to which this rank cannot connect.
struct UnreachablePeer : Error {
  UnreachablePeer(const Error& error, int peer) : Error(error), rank(peer) {}
  int rank;
};

// Connects every pair of the group's ranks, once per link: addresses are exchanged through `store`,
// every connection authenticates both its ends, for this role, job, generation and these ranks.
// Sorted by peer, then lane. All ranks call it at about the same time.
//
// Throws deadline, naming the ranks that did not come; conflict if this process was fenced out;
// peer_lost if options.given_up returns true; UnreachablePeer (a deadline) after connect_patience;
// and invalid_argument if ranks have different numbers of links.
std::vector<MeshLink> connect_mesh(const Group& group, net::Store& store, const net::Secret& secret,
                                   const MeshOptions& options, net::Deadline deadline);

}  // namespace ductile::comm
