#pragma once

#include <string>

#include "ductile/base/files.h"

namespace ductile::cluster {

// What a program needs to use a service from another machine. A file of it (JSON, mode 0600) is as
// good as the token in it.
struct Access {
  std::string address;  // "https://host:port"; "http://127.0.0.1:port" on the service's machine
  // Of the key of the service's certificate, as `curl --pinnedpubkey` takes it. Empty: the
  // certificate has to be good for the host, and signed by somebody whom this machine trusts.
  std::string fingerprint;
  std::string token;
  bool operator==(const Access&) const = default;
};

// Throws not_found, invalid_argument (others can read it; what it says cannot be meant).
Access read_access(const fs::path& file);
void write_access(const fs::path& file, const Access& access);

}  // namespace ductile::cluster
