#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ductile/comm/mesh.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

struct TcpOptions {
  // This host's addresses, one per link; a message goes over link rail_of(tag) % links.size().
  std::vector<std::string> links = {"127.0.0.1"};
  // Socket buffers; 0 leaves them to the kernel's auto-tuning. A user_timeout also ends connections
  // whose receiver is alive but does not read, so none is set: the failure detector decides.
  net::SocketOptions socket;
  // Bytes a connection that nobody has posted a receive for. Beyond the first bound reading stops
  // until a receive is posted, unless one is posted already and must be searched for behind them;
  // beyond the second the transport fails.
  size_t unexpected_soft = 1 << 20;
  size_t unexpected_hard = size_t{1} << 30;
  // How long progress() looks again and again before it sleeps. 20-60 us save 5 % of a small sum
  // where every rank has a core; where ranks share cores they cost a factor of two.
  std::chrono::microseconds spin{0};
  std::function<bool()> given_up;  // as MeshOptions has it, and the next
  std::chrono::milliseconds connect_patience = std::chrono::hours(24);
  net::OnRefusal on_refusal;
};

// A Transport over TCP connections that have authenticated both ends (see mesh.h): one connection a
// pair of ranks and link. The bytes themselves are neither encrypted nor under a code: whoever can
// alter packets on the way can alter gradients, as with every collectives library over TCP.
//
// A payload is read by the kernel straight into the posted buffer, but for at most 4 KB that came
// together with its header. Sends are tried at once and finished by progress(). send() is done once
// the kernel has the bytes.
//
// Blocks until all ranks are connected; throws as connect_mesh does.
std::unique_ptr<Transport> connect_tcp(const Group& group, net::Store& store,
                                       const net::Secret& secret, const TcpOptions& options,
                                       net::Deadline deadline);

}  // namespace ductile::comm
