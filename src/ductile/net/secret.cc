#include "ductile/net/secret.h"

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/net/bytes_impl.h"

namespace ductile::net {
namespace {

constexpr size_t kMinimumBytes = 16;

Mac hmac(std::span<const std::byte> key, std::span<const std::byte> message) {
  Mac result;
  unsigned int size = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(result.data()), &size);
  DUCTILE_CHECK(done != nullptr && size == result.size(), "HMAC-SHA256 failed");
  return result;
}

}  // namespace

Secret::Secret(std::span<const std::byte> bytes) {
  if (bytes.size() < kMinimumBytes) {
    fail(ErrorCode::invalid_argument,
         "the job's secret has {} bytes; it needs at least {} random ones (openssl rand -hex 32)",
         bytes.size(), kMinimumBytes);
  }
  key_ = hmac(bytes_of("ductile job secret 1"), bytes);
}

Secret::Secret(std::string_view text) : Secret(bytes_of(text)) {}

Secret::~Secret() { OPENSSL_cleanse(key_.data(), key_.size()); }

Secret Secret::random() {
  Nonce bytes = random_nonce();
  Secret secret(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

Secret Secret::from_file(const std::filesystem::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    fail_errno(fmt::format("cannot read the job's secret from {}", path.string()), errno);
  }
  if ((info.st_mode & 077) != 0) {
    fail(ErrorCode::invalid_argument,
         "{}: others can read the job's secret (mode {:o}); run: chmod 600 {}", path.string(),
         info.st_mode & 0777, path.string());
  }
  std::string text = read_text(path);
  std::string_view view = text;
  while (!view.empty() && (view.back() == '\n' || view.back() == '\r')) view.remove_suffix(1);
  try {
    Secret secret(view);
    OPENSSL_cleanse(text.data(), text.size());
    return secret;
  } catch (Error& error) {
    OPENSSL_cleanse(text.data(), text.size());
    throw error.with_context(path.string());
  }
}

Secret Secret::from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) {
    fail(ErrorCode::not_found, "environment variable {} holds no secret", variable);
  }
  try {
    return Secret(std::string_view(value));
  } catch (Error& error) {
    throw error.with_context(fmt::format("environment variable {}", variable));
  }
}

Secret Secret::load() {
  if (const char* path = std::getenv("DUCTILE_SECRET_FILE")) return from_file(path);
  if (std::getenv("DUCTILE_SECRET") != nullptr) return from_environment("DUCTILE_SECRET");
  fail(ErrorCode::not_found,
       "no secret for this job: set DUCTILE_SECRET_FILE to a file of mode 600, or DUCTILE_SECRET");
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return text;
}

// A file of the whole secret under another name, which then gets its own: a process that is killed
// in between leaves none, and of two that do it at once one is told.
void Secret::create_file(const std::filesystem::path& path) {
  Nonce bytes = random_nonce();
  std::string text = to_hex(bytes) + '\n';
  std::filesystem::path aside = path;
  aside += ".tmp" + std::to_string(getpid());
  const auto check = [&](bool done, const char* what) {
    if (done) return;
    const int error = errno;
    unlink(aside.c_str());
    fail_errno(fmt::format("cannot {} the job's secret {}", what, path.string()), error);
  };
  unlink(aside.c_str());
  Descriptor fd(open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  check(static_cast<bool>(fd), "create");
  const bool whole =
      write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(fd.get()) == 0;
  const int error = errno;
  fd.close();
  OPENSSL_cleanse(text.data(), text.size());
  OPENSSL_cleanse(bytes.data(), bytes.size());
  errno = error;
  check(whole, "write");
  check(link(aside.c_str(), path.c_str()) == 0, "create");
  unlink(aside.c_str());
  fsync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

Mac Secret::mac(std::initializer_list<std::span<const std::byte>> parts) const {
  std::vector<std::byte> message;
  size_t total = 0;
  for (const auto part : parts) total += part.size();
  message.reserve(total);
  for (const auto part : parts) message.insert(message.end(), part.begin(), part.end());
  return hmac(key_, message);
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce random_nonce() {
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) !=
      1) {
    fail(ErrorCode::unavailable, "the system's random generator gave nothing");
  }
  return nonce;
}

}  // namespace ductile::net
