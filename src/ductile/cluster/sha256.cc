#include <array>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "ductile/base/error.h"
#include "ductile/cluster/sha256_impl.h"

namespace ductile::cluster {

std::string sha256(std::string_view bytes) {
  std::array<unsigned char, 32> digest{};
  size_t length = 0;
  const int done =
      EVP_Q_digest(nullptr, "SHA256", nullptr, bytes.data(), bytes.size(), digest.data(), &length);
  DUCTILE_CHECK(done == 1 && length == digest.size(), "SHA-256 failed");
  std::string out;
  for (const unsigned char byte : digest) out += fmt::format("{:02x}", byte);
  return out;
}

}  // namespace ductile::cluster
