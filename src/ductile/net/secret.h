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

// The secret shared by the processes of one job: what a peer must know to be one. Held as a 32-byte
// key derived from the given bytes; zeroed on destruction, never printed, never on a command line
// (other users can read those). Copies are zeroed too.
class Secret {
 public:
  // At least 16 bytes, since whoever sees a handshake can try guesses against it at leisure.
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
  // DUCTILE_SECRET_FILE names a file; else DUCTILE_SECRET holds it. Throws not_found with both.
  static Secret load();

  // Makes a random secret in a new file that only its owner can read (mode 0600, must not exist):
  // all of it, or no file.
  static void create_file(const std::filesystem::path& path);

  // HMAC-SHA256 (RFC 2104) over the parts, one after the other; parts of variable length must come
  // last or carry their length.
  Mac mac(std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  std::array<std::byte, 32> key_{};
};

// Takes the same time wherever the bytes differ.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Two lower-case digits a byte.
std::string to_hex(std::span<const std::byte> bytes);

// From the kernel's generator.
Nonce random_nonce();

}  // namespace ductile::net
