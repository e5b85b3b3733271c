#include <array>
#include <cerrno>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/cluster/tls_impl.h"

namespace ductile::cluster {
namespace {

constexpr int64_t kCertificateSeconds = int64_t{10} * 365 * 86400;

template <class T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* what) const { kFree(what); }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION, X509_EXTENSION_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;

void require(bool done, const char* what) {
  if (!done) fail(ErrorCode::internal, "{}: {}", what, tls_reason());
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

void add_extension(X509* certificate, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  require(extension && X509_add_ext(certificate, extension.get(), -1) == 1, "a certificate");
}

std::string subject_names(const std::string& host) {
  std::string out = "DNS:localhost,IP:127.0.0.1";
  std::array<unsigned char, 16> bytes{};
  const bool number = ::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
                      ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
  // What is no plain name would be read as more than a name.
  const bool plain = !host.empty() && host.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789.-") == std::string::npos;
  if (number) return out + ",IP:" + host;
  if (plain && host != "localhost") out += ",DNS:" + host;
  return out;
}

Certificate self_signed(EVP_PKEY* key, const std::string& host) {
  Certificate out(X509_new());
  std::array<unsigned char, 16> serial{};
  require(out && RAND_bytes(serial.data(), static_cast<int>(serial.size())) == 1, "a certificate");
  serial[0] &= 0x7f;  // serial numbers are positive
  BIGNUM* const number = BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr);
  const bool numbered = BN_to_ASN1_INTEGER(number, X509_get_serialNumber(out.get())) != nullptr;
  BN_free(number);
  X509_NAME* const name = X509_get_subject_name(out.get());
  const auto* const common = reinterpret_cast<const unsigned char*>("Ductile");
  require(numbered && X509_set_version(out.get(), X509_VERSION_3) == 1 &&
              X509_gmtime_adj(X509_getm_notBefore(out.get()), -3600) != nullptr &&
              X509_gmtime_adj(X509_getm_notAfter(out.get()), kCertificateSeconds) != nullptr &&
              X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, common, -1, -1, 0) == 1 &&
              X509_set_issuer_name(out.get(), name) == 1 && X509_set_pubkey(out.get(), key) == 1,
          "a certificate");
  add_extension(out.get(), NID_subject_alt_name, subject_names(host));
  add_extension(out.get(), NID_basic_constraints, "critical,CA:TRUE");
  require(X509_sign(out.get(), key, EVP_sha256()) > 0, "a certificate");
  return out;
}

bool is_there(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return true;
  if (errno != ENOENT) fail_errno(path.string(), errno);
  return false;
}

}  // namespace

std::string tls_reason() {
  std::string out;
  while (const unsigned long code = ERR_get_error()) {
    char text[256];
    ERR_error_string_n(code, text, sizeof text);
    out = text;
  }
  return out.empty() ? "OpenSSL gives no reason" : out;
}

void write_private_file(const fs::path& path, const std::string& text) {
  const fs::path aside = path.string() + ".tmp" + std::to_string(::getpid());
  ::unlink(aside.c_str());
  Descriptor out(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!out) fail_errno(path.string(), errno);
  size_t done = 0;
  ssize_t n = 0;
  while (done < text.size() &&
         ((n = ::write(out.get(), text.data() + done, text.size() - done)) > 0 || errno == EINTR))
    done += static_cast<size_t>(std::max<ssize_t>(n, 0));
  if (done < text.size() || ::fsync(out.get()) != 0 || ::rename(aside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(aside.c_str());
    fail_errno(path.string(), error);
  }
  fsync_folder(fs::absolute(path).parent_path());
}

void require_private(const fs::path& path, const std::string& what) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) fail_errno(path.string(), errno);
  if ((info.st_mode & 077) != 0)
    fail(ErrorCode::invalid_argument, "{}: others can read this {} (mode {:o}); run: chmod 600 {}",
         path.string(), what, info.st_mode & 0777, path.string());
}

void make_certificate(const fs::path& certificate, const fs::path& key, const std::string& host) {
  const bool has_certificate = is_there(certificate), has_key = is_there(key);
  if (has_certificate && has_key) return;
  if (has_certificate)
    fail(ErrorCode::conflict,
         "{}: is missing, but its certificate {} is there; put it back, or "
         "remove the certificate, and clients need new access files",
         key.string(), certificate.string());
  // A key alone was left by a start that was cut off: nobody has seen its certificate.
  const Key made(EVP_EC_gen("P-256"));
  require(made != nullptr, "a key");
  const Certificate signed_by_itself = self_signed(made.get(), host);
  const Bio key_text(BIO_new(BIO_s_mem())), certificate_text(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_PrivateKey(key_text.get(), made.get(), nullptr, nullptr, 0, nullptr,
                                   nullptr) == 1 &&
              PEM_write_bio_X509(certificate_text.get(), signed_by_itself.get()) == 1,
          "a certificate");
  write_private_file(key, text_of(key_text.get()));
  write_file_atomic(certificate, text_of(certificate_text.get()));
}

std::string pin_of(x509_st* certificate) {
  unsigned char* bytes = nullptr;
  const int size = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(certificate), &bytes);
  require(size > 0, "a public key");
  std::array<unsigned char, 32> digest{};
  size_t length = 0;
  const int done = EVP_Q_digest(nullptr, "SHA256", nullptr, bytes, static_cast<size_t>(size),
                                digest.data(), &length);
  OPENSSL_free(bytes);
  require(done == 1 && length == digest.size(), "SHA-256");
  std::array<unsigned char, 48> text{};
  const int letters = EVP_EncodeBlock(text.data(), digest.data(), static_cast<int>(digest.size()));
  return "sha256//" +
         std::string(reinterpret_cast<const char*>(text.data()), static_cast<size_t>(letters));
}

void TlsContext::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

TlsContext::TlsContext(const fs::path& certificate, const fs::path& key)
    : context_(SSL_CTX_new(TLS_server_method())) {
  read_file(certificate);  // says what is wrong with a file better than OpenSSL does
  require_private(key, "key");
  SSL_CTX* const c = context_.get();
  require(c != nullptr && SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_num_tickets(c, 0) == 1,
          "TLS 1.3");
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  // Without AUTO_RETRY each message that brings no data gives the deadline its turn.
  SSL_CTX_clear_mode(c, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                          SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(c, certificate.c_str()) != 1)
    fail(ErrorCode::invalid_argument, "{}: a certificate as PEM is wanted: {}",
         certificate.string(), tls_reason());
  if (SSL_CTX_use_PrivateKey_file(c, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(c) != 1)
    fail(ErrorCode::invalid_argument, "{}: not the key of {}: {}", key.string(),
         certificate.string(), tls_reason());
  pin_ = pin_of(SSL_CTX_get0_certificate(c));
}

}  // namespace ductile::cluster
