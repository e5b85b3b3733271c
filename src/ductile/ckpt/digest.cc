#include "ductile/ckpt/digest.h"

#include <xxhash.h>

#include <fmt/format.h>

#include "ductile/base/error.h"

namespace ductile::ckpt {

struct Digest::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Digest::Digest() : state_(std::make_unique<State>()) {
  DUCTILE_CHECK(state_->xxh != nullptr && XXH3_128bits_reset(state_->xxh) == XXH_OK, "no memory");
}

Digest::~Digest() = default;

void Digest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::string Digest::hex() const {
  const XXH128_hash_t h = XXH3_128bits_digest(state_->xxh);
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace ductile::ckpt
