#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
extern "C" {  // glibc 2.36 forgot to say so
#include <sys/pidfd.h>
}

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/link/worker_processes.h"
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
  // As the kernel lists it.
  std::string name() const {
    const size_t length = size - offsetof(sockaddr_un, sun_path) - 1;
    return "@" + std::string(address.sun_path + 1, length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Descriptor new_socket() {
  return opened(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket");
}

// The listening socket of that name, as the links of its descriptors call it; empty: there is none.
std::string listener_of(const Place& place) {
  constexpr unsigned long kListens = 0x10000;  // __SO_ACCEPTCON
  std::istringstream lines(read_file("/proc/net/unix"));
  std::string number, count, protocol, flags, type, state, inode, name;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    if (!(fields >> number >> count >> protocol >> flags >> type >> state >> inode >> name))
      continue;
    if (name == place.name() && (std::strtoul(flags.c_str(), nullptr, 16) & kListens) != 0)
      return "socket:[" + inode + "]";
  }
  return "";
}

// Which process of this user listens there; 0: none.
pid_t listening_process(const Place& place) {
  const std::string socket = listener_of(place);
  if (socket.empty()) return 0;
  for (const pid_t pid : link::all_processes()) {
    std::error_code hidden;  // of another user, or gone
    const fs::path folder = fs::path("/proc") / std::to_string(pid) / "fd";
    for (fs::directory_iterator it(folder, hidden), end; !hidden && it != end;
         it.increment(hidden)) {
      std::error_code closed;
      if (fs::read_symlink(it->path(), closed) == socket) return pid;
    }
  }
  return 0;
}

// Who listens there; pid 0: nobody any more.
ucred holder_of(const Place& place) {
  const Descriptor probe = new_socket();
  ucred holder{};
  socklen_t size = sizeof holder;
  if (::connect(probe.get(), place.get(), place.size) == 0) {
    if (::getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0) return {};
    return holder;
  }
  // One that hangs accepts nobody, and whoever likes may have filled its queue.
  if (errno != EAGAIN) return {};
  holder.pid = listening_process(place);
  holder.uid = ::geteuid();
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
