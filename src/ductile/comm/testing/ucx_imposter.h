#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ductile/comm/transport.h"

namespace ductile::comm {

// For tests: speaks the wire of the UCX transport by hand, as rank 1 to rank 0.
struct UcxImposter {
  virtual ~UcxImposter() = default;
  // Sends message `id` with or without the token, and waits until it is gone.
  virtual void send(unsigned id, Tag tag, std::span<const std::byte> bytes, bool with_token) = 0;
  virtual void progress() = 0;
  std::vector<std::byte> address;
};

// `frame`: token and worker address, as rank 0 gave them over the side channel.
std::unique_ptr<UcxImposter> make_ucx_imposter(std::span<const std::byte> frame);

}  // namespace ductile::comm
