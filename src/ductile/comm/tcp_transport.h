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
  // Limits on the bytes per connection for which no receive is posted. Above the first limit
  // reading stops until a receive is posted, unless a posted receive may match a message behind
  // these bytes. Above the second the transport fails.
  size_t unexpected_soft = 1 << 20;
  size_t unexpected_hard = size_t{1} << 30;
  // How long progress() polls before it sleeps. 20-60 us save 5 % of a small sum if every rank has
  // a core of its own; if ranks share cores, they make it twice as slow.
  std::chrono::microseconds spin{0};
  std::function<bool()> given_up;  // as MeshOptions has it, and the next
  std::chrono::milliseconds connect_patience = std::chrono::hours(24);
  net::OnRefusal on_refusal;
};

// A Transport over TCP connections that have authenticated both ends (see mesh.h): one connection
// per pair of ranks and link. The bytes themselves are neither encrypted nor under a code: whoever
// can alter packets on the way can alter gradients, as with every collectives library over TCP.
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
