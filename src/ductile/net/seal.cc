#include "ductile/net/seal.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "ductile/base/error.h"
#include "ductile/net/bytes_impl.h"

namespace ductile::net {
namespace {

// Keys are of one connection, so a name for them has nothing to tell apart.
constexpr std::string_view kKeyName = "ductile";
constexpr std::array<unsigned char, 2> kSuite = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr size_t kRecordHeader = 5;
constexpr size_t kLengthBytes = 4;
constexpr size_t kBlock = 16384;

std::string openssl_reason() {
  std::string out;
  while (const unsigned long code = ERR_get_error()) {
    const char* reason = ERR_reason_error_string(code);
    if (reason != nullptr) out = reason;
  }
  return out.empty() ? "no reason is given" : out;
}

void require(bool done, const char* what) {
  if (!done) fail(ErrorCode::internal, "TLS: {}: {}", what, openssl_reason());
}

const Mac& key_of(SSL* ssl) { return *static_cast<const Mac*>(SSL_get_app_data(ssl)); }

// The key in the form in which OpenSSL takes it: a session that both sides know.
SSL_SESSION* session_of(SSL* ssl) {
  SSL_SESSION* const session = SSL_SESSION_new();
  const SSL_CIPHER* const suite = SSL_CIPHER_find(ssl, kSuite.data());
  const Mac& key = key_of(ssl);
  if (session != nullptr && suite != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()),
                                  key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, suite) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** name, size_t* size,
              SSL_SESSION** session) {
  *name = reinterpret_cast<const unsigned char*>(kKeyName.data());
  *size = kKeyName.size();
  *session = session_of(ssl);
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* ssl, const unsigned char* name, size_t size, SSL_SESSION** session) {
  const bool known = std::string_view(reinterpret_cast<const char*>(name), size) == kKeyName;
  *session = known ? session_of(ssl) : nullptr;
  return !known || *session != nullptr ? 1 : 0;
}

SSL_CTX* make_context(Seal::Side side) {
  const bool client = side == Seal::Side::client;
  SSL_CTX* const c = SSL_CTX_new(client ? TLS_client_method() : TLS_server_method());
  require(c != nullptr && SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") == 1 &&
              SSL_CTX_set1_groups_list(c, "X25519") == 1 && SSL_CTX_set_num_tickets(c, 0) == 1,
          "the library cannot be set up");
  // Without SSL_OP_ALLOW_NO_DHE_KEX there is no connection without a fresh exchange.
  SSL_CTX_clear_options(c, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_options(c, SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
  if (client) {
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);  // no certificate is trusted
    SSL_CTX_set_psk_use_session_callback(c, offer_key);
  } else {
    SSL_CTX_set_psk_find_session_callback(c, find_key);
  }
  return c;
}

// For ever: connections may be open while a process ends.
SSL_CTX* context_of(Seal::Side side) {
  static SSL_CTX* const client = make_context(Seal::Side::client);
  static SSL_CTX* const server = make_context(Seal::Side::server);
  return side == Seal::Side::client ? client : server;
}

}  // namespace

struct Seal::Impl {
  Impl(Side side, const Mac& k) : key(k), ssl(SSL_new(context_of(side))) {
    BIO* const from = BIO_new(BIO_s_mem());
    BIO* const to = BIO_new(BIO_s_mem());
    if (ssl == nullptr || from == nullptr || to == nullptr) {
      BIO_free(from);
      BIO_free(to);
      SSL_free(ssl);
      throw std::bad_alloc();
    }
    SSL_set_bio(ssl, from, to);
    SSL_set_app_data(ssl, &key);
    if (side == Side::client) {
      SSL_set_connect_state(ssl);
      shake_hands();
    } else {
      SSL_set_accept_state(ssl);
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    SSL_free(ssl);
    OPENSSL_cleanse(key.data(), key.size());
  }

  void shake_hands() {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl);
    if (result != 1) {
      if (SSL_get_error(ssl, result) == SSL_ERROR_WANT_READ) return;
      fail(ErrorCode::unavailable,
           "the encrypted connection cannot be made ({}): the other end has another key, or "
           "something in between altered its bytes",
           openssl_reason());
    }
    // Whoever has the key has proved it, and nobody was believed for anything else.
    DUCTILE_CHECK(SSL_session_reused(ssl) == 1 && SSL_version(ssl) == TLS1_3_VERSION);
    done = true;
    OPENSSL_cleanse(key.data(), key.size());
  }

  void take(std::span<const std::byte> bytes) {
    size_t put = 0;
    require(
        bytes.empty() || (BIO_write_ex(SSL_get_rbio(ssl), bytes.data(), bytes.size(), &put) == 1 &&
                          put == bytes.size()),
        "no memory");
  }

  // Counts the bytes of one record after the other.
  void follow_records(std::span<const std::byte> bytes) {
    DUCTILE_CHECK(bytes.size() <= wanted());
    if (body > 0) {
      body -= bytes.size();
      return;
    }
    for (const std::byte b : bytes) header[header_size++] = b;
    if (header_size < kRecordHeader) return;
    header_size = 0;
    body = std::to_integer<size_t>(header[3]) << 8 | std::to_integer<size_t>(header[4]);
  }
  size_t wanted() const { return body > 0 ? body : kRecordHeader - header_size; }

  void move_output(std::vector<std::byte>& out) {
    const size_t size = BIO_ctrl_pending(SSL_get_wbio(ssl));
    const size_t before = out.size();
    out.resize(before + size);
    size_t got = 0;
    if (size > 0)
      require(BIO_read_ex(SSL_get_wbio(ssl), out.data() + before, size, &got) == 1 && got == size,
              "no memory");
  }

  void write(std::span<const std::byte> bytes) {
    ERR_clear_error();
    size_t put = 0;
    require(SSL_write_ex(ssl, bytes.data(), bytes.size(), &put) == 1 && put == bytes.size(),
            "a message could not be encrypted");
  }

  // False: nothing more has come, or nothing more will.
  bool read() {
    std::array<std::byte, kBlock> block;
    ERR_clear_error();
    size_t got = 0;
    const int result = SSL_read_ex(ssl, block.data(), block.size(), &got);
    if (result == 1) {
      append_bytes(buffer, std::span(block).first(got));
      return true;
    }
    switch (SSL_get_error(ssl, result)) {
      case SSL_ERROR_WANT_READ:
        return false;
      case SSL_ERROR_ZERO_RETURN:
        ended = true;
        return false;
      default:
        fail(ErrorCode::data_loss,
             "a message was altered on the way, or is not of this connection ({})",
             openssl_reason());
    }
  }

  Mac key;
  SSL* ssl;
  size_t max = kDefaultMaxPayload;
  bool done = false;
  std::array<std::byte, kRecordHeader> header{};
  size_t header_size = 0, body = 0;  // of the record that is arriving during the handshake
  size_t written = 0;                // under the present key
  std::vector<std::byte> buffer;     // decrypted
  size_t start = 0;                  // of what was not taken
  bool ended = false;
};

Seal::Seal(Side side, const Mac& key) : impl_(std::make_unique<Impl>(side, key)) {}
Seal::Seal(Seal&&) noexcept = default;
Seal& Seal::operator=(Seal&&) noexcept = default;
Seal::~Seal() = default;

void Seal::set_max_payload(size_t bytes) { impl_->max = bytes; }

bool Seal::done() const { return impl_->done; }

size_t Seal::wanted() const { return impl_->wanted(); }

void Seal::feed(std::span<const std::byte> bytes) {
  if (impl_->done) return impl_->take(bytes);
  impl_->follow_records(bytes);
  impl_->take(bytes);
  impl_->shake_hands();
}

std::vector<std::byte> Seal::take_output() {
  std::vector<std::byte> out;
  impl_->move_output(out);
  return out;
}

void Seal::append(std::span<const std::byte> payload, std::vector<std::byte>& out) {
  DUCTILE_CHECK(impl_->done);
  if (payload.size() > impl_->max) {
    fail(ErrorCode::invalid_argument, "a message of {} bytes is too long: at most {}",
         payload.size(), impl_->max);
  }
  if (impl_->written > kBytesOfAKey) {
    require(SSL_key_update(impl_->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1, "no next key");
    impl_->written = 0;
  }
  std::vector<std::byte> message;
  message.reserve(kLengthBytes + payload.size());
  append_number(message, static_cast<uint32_t>(payload.size()));
  append_bytes(message, payload);
  impl_->write(message);
  impl_->written += message.size();
  impl_->move_output(out);
}

std::optional<std::vector<std::byte>> Seal::next() {
  Impl& s = *impl_;
  while (true) {
    const auto rest = std::span<const std::byte>(s.buffer).subspan(s.start);
    if (rest.size() >= kLengthBytes) {
      const size_t length = read_number<uint32_t>(rest, 0);
      if (length > s.max) {
        fail(ErrorCode::data_loss, "a message claims {} bytes; at most {} are allowed here", length,
             s.max);
      }
      if (rest.size() >= kLengthBytes + length) {
        const auto payload = rest.subspan(kLengthBytes, length);
        std::vector<std::byte> message(payload.begin(), payload.end());
        s.start += kLengthBytes + length;
        return message;
      }
    }
    s.buffer.erase(s.buffer.begin(), s.buffer.begin() + static_cast<ptrdiff_t>(s.start));
    s.start = 0;
    if (s.read()) continue;
    if (s.ended && !s.buffer.empty())
      fail(ErrorCode::data_loss, "the other end stopped within a message");
    return std::nullopt;
  }
}

void Seal::end(std::vector<std::byte>& out) {
  ERR_clear_error();
  SSL_shutdown(impl_->ssl);
  ERR_clear_error();
  impl_->move_output(out);
}

bool Seal::ended() const { return impl_->ended && impl_->start == impl_->buffer.size(); }

}  // namespace ductile::net
