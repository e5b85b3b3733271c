#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/error.h"
#include "ductile/server/sole_agent_impl.h"

namespace ductile::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{5};
constexpr int kLooks = 1000;

// A name that the kernel keeps as long as somebody listens there, and no file that could be left.
struct Place {
  sockaddr_un address{};
  socklen_t size = 0;

  explicit Place(const std::string& name) {
    const std::string text = "ductile-agent-" + name;
    address.sun_family = AF_UNIX;
    const size_t length = std::min(text.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, text.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Descriptor new_socket() {
  return opened(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket");
}

// Who listens there; pid 0: nobody any more.
ucred holder_of(const Place& place) {
  const Descriptor probe = new_socket();
  ucred holder{};
  socklen_t size = sizeof holder;
  if (::connect(probe.get(), place.get(), place.size) != 0 ||
      ::getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0)
    return {};
  return holder;
}

void end_holder(const Place& place) {
  const ucred holder = holder_of(place);
  if (holder.pid <= 0) return;
  if (holder.uid != ::geteuid())
    fail(ErrorCode::conflict,
         "process {} of user {} holds the place of this host's agent; end it, since it only "
         "pretends to be one",
         holder.pid, holder.uid);
  const Descriptor process(::pidfd_open(holder.pid, 0));
  // Looked at once more: the number could have gone to another process in between.
  if (process && holder_of(place).pid == holder.pid)
    ::pidfd_send_signal(process.get(), SIGKILL, nullptr, 0);
}

}  // namespace

Descriptor sole_agent(const std::string& name) {
  const Place place(name);
  for (int look = 0; look < kLooks; ++look) {
    Descriptor socket = new_socket();
    if (::bind(socket.get(), place.get(), place.size) == 0) {
      if (::listen(socket.get(), 16) != 0) fail_errno("listen", errno);
      return socket;
    }
    if (errno != EADDRINUSE) fail_errno("bind", errno);
    end_holder(place);
    std::this_thread::sleep_for(kLook);
  }
  fail(ErrorCode::unavailable, "another agent of this host does not end");
}

}  // namespace ductile::server
