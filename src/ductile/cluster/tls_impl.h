#pragma once

#include <memory>
#include <string>

#include "ductile/base/files.h"

struct ssl_ctx_st;
struct x509_st;

// TLS 1.3 for the service's interface.
namespace ductile::cluster {

// A certificate of a service's own, and its key (mode 0600), for ten years and the name `host`,
// where neither of the two is there yet. Throws conflict if only one of them is.
void make_certificate(const fs::path& certificate, const fs::path& key, const std::string& host);

// "sha256//..." of the certificate's public key, as `curl --pinnedpubkey` writes it: it stays the
// same when the certificate is renewed for the same key.
std::string pin_of(x509_st* certificate);

// What a server shows its clients. TLS 1.3 alone; nothing of one connection is used in another.
class TlsContext {
 public:
  // Files as PEM. Throws invalid_argument where they do not belong together, or others may read the
  // key; not_found and unavailable as read_file does.
  TlsContext(const fs::path& certificate, const fs::path& key);

  ssl_ctx_st* get() const { return context_.get(); }
  const std::string& pin() const { return pin_; }

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  std::unique_ptr<ssl_ctx_st, Free> context_;
  std::string pin_;
};

// Appends what OpenSSL says of its last failure, for people.
std::string tls_reason();

// Writes a new file that only its owner can read (mode 0600), in place of one of that name. After a
// crash it is the old one or the new one.
void write_private_file(const fs::path& path, const std::string& text);
// Throws invalid_argument if others than its owner can read the file; `what` it is, for the text.
void require_private(const fs::path& path, const std::string& what);

}  // namespace ductile::cluster
