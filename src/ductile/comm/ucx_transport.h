#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "ductile/comm/mesh.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

struct UcxOptions {
  std::string link = "127.0.0.1";  // this host's address for the authenticated side channel
  std::string tls;          // UCX_TLS, such as "rc,tcp"; empty: the environment, or UCX, decides
  std::string net_devices;  // UCX_NET_DEVICES, such as "mlx5_0:1"; likewise
  // Longer messages wait for their receive (UCX's rendezvous); shorter ones are copied.
  size_t eager_bytes = 8192;
  size_t unexpected_bytes = 64 << 20;  // eager bytes per peer that nobody receives; more fail it
  // How long progress() polls before it arms the worker's event and sleeps.
  std::chrono::microseconds spin{50};
  net::OnRefusal on_refusal;
};

// Whether this build has libucx. Without it connect_ucx() throws unavailable.
bool have_ucx();

// A Transport over UCX (openucx.org), for RDMA fabrics; tags of 64 bits and a message's sender are
// matched here, on UCX's active messages. Rails are UCX's own business (UCX_MAX_RNDV_RAILS).
//
// Trust: UCX's wire is not authenticated. Worker addresses, and a token for each direction of each
// pair, are exchanged over mesh.h's authenticated connections, and a message without the token is
// dropped and reported: strays and processes of an older generation are kept out, an attacker on
// the fabric is not. See docs/design/002-wires.md. Use it on fabrics that only the cluster can
// reach.
//
// Failure: the side channel stays open, so that a peer whose process ends is lost at once; UCX's
// own errors count as well. A transport that failed cancels everything by closing its endpoints
// before it settles what was pending.
//
// Blocks until all ranks are connected; throws as connect_mesh does.
std::unique_ptr<Transport> connect_ucx(const Group& group, net::Store& store,
                                       const net::Secret& secret, const UcxOptions& options,
                                       net::Deadline deadline);

}  // namespace ductile::comm
