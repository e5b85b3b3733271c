#pragma once

#include <chrono>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::server {

inline constexpr const char* kRequestSocket = "control.sock";
inline constexpr size_t kMaxRequest = 64 << 10;

// A listening socket at folder/kRequestSocket, mode 0600, in place of what a dead process left
// there. The path may be longer than a socket's address can hold.
Descriptor listen_unix(const fs::path& folder);
// A connection to it; without a descriptor where nobody listens. Throws deadline where so many
// others wait for the listener that there is no room for one more in all that time.
Descriptor connect_unix(const fs::path& folder, std::chrono::milliseconds patience);
// Whether somebody listens, perhaps without ever looking: waits for nobody.
bool is_listening(const fs::path& folder);
// Whether the process at the other end belongs to this process's user.
bool same_user(int fd);

}  // namespace ductile::server
