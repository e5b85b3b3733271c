#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace ductile::net {

using Mac = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

// The secret that the processes of one job share; a peer that knows it belongs to the job. Held as
// a 32-byte key derived from the given bytes; zeroed on destruction, never printed, never on a
// command line (other users can read those). Copies are zeroed too.
class Secret {
 public:
  // Needs at least 16 bytes, since anybody who sees a handshake can test guesses against it.
  explicit Secret(std::span<const std::byte> bytes);
  explicit Secret(std::string_view text);
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  static Secret random();
  // The file's bytes without trailing line ends. Refuses a file that others than its owner can
  // read.
  static Secret from_file(const std::filesystem::path& path);
  static Secret from_environment(const char* variable);
  // Reads the file that DUCTILE_SECRET_FILE names, or else DUCTILE_SECRET itself. Throws not_found,
  // naming both variables.
  static Secret load();

  // Makes a random secret in a new file that only its owner can read (mode 0600); the file must not
  // exist yet. If this fails no file is left.
  static void create_file(const std::filesystem::path& path);

  // HMAC-SHA256 (RFC 2104) over the parts, one after the other; parts of variable length must come
  // last or carry their length.
  Mac mac(std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  std::array<std::byte, 32> key_{};
};

// Compares in constant time, wherever the bytes differ.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Two lower-case digits per byte.
std::string to_hex(std::span<const std::byte> bytes);

// Random bytes from the kernel's generator.
Nonce random_nonce();

}  // namespace ductile::net
