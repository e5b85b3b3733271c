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
#include <utility>

#include <fmt/format.h>
#include <poll.h>
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
#include "ductile/server/host_agent.h"
#include "ductile/server/sole_agent_impl.h"

namespace ductile::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{5};
constexpr int kLooks = 1000, kLooksInVain = 200;

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

fs::path process_folder(pid_t pid) { return fs::path("/proc") / std::to_string(pid); }

bool holds(pid_t pid, const std::string& socket) {
  std::error_code hidden;  // of another user, or gone
  for (fs::directory_iterator it(process_folder(pid) / "fd", hidden), end; !hidden && it != end;
       it.increment(hidden)) {
    std::error_code closed;
    if (fs::read_symlink(it->path(), closed) == socket) return true;
  }
  return false;
}

// The real, the effective and the saved one, as /proc says; empty: it is gone.
std::string users_of(pid_t pid) {
  try {
    std::istringstream lines(read_file(process_folder(pid) / "status"));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string key, real, effective, saved;
      if (words >> key >> real >> effective >> saved && key == "Uid:")
        return real + " " + effective + " " + saved;
    }
  } catch (const Error&) {
  }
  return "";
}

// Who has the socket need not be an agent: it can be passed on to anybody, by anybody.
bool is_own_agent(pid_t pid) {
  const std::string own = std::to_string(::geteuid());
  if (users_of(pid) != own + " " + own + " " + own) return false;
  try {
    const std::string words = read_file(process_folder(pid) / "cmdline");
    return words.find('\0' + std::string(kHostAgent) + '\0') != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

bool end_own_agent(pid_t pid, const std::string& socket) {
  const Descriptor process(::pidfd_open(pid, 0));
  // Looked at once it is held: the number could have gone to another process before.
  return process && (socket.empty() || holds(pid, socket)) && is_own_agent(pid) &&
         ::pidfd_send_signal(process.get(), SIGKILL, nullptr, 0) == 0;
}

// A call to who listens. It is kept, since it stays in the queue of one that accepts nobody, where
// each further one would take the place of others.
class Call {
 public:
  // As the kernel knows them; pid 0: nobody is known, or the queue is full.
  ucred listener(const Place& place) {
    if (line_) {
      pollfd ended{line_.get(), 0, 0};
      if (::poll(&ended, 1, 0) > 0) line_.close();
    }
    if (!line_) {
      Descriptor line = new_socket();
      if (::connect(line.get(), place.get(), place.size) != 0) return {};
      line_ = std::move(line);
    }
    ucred out{};
    socklen_t size = sizeof out;
    return ::getsockopt(line_.get(), SOL_SOCKET, SO_PEERCRED, &out, &size) == 0 ? out : ucred{};
  }

 private:
  Descriptor line_;
};

// Ends the agent that holds the place. Returns who else may hold it, in words; empty: nobody does,
// or who does was sent SIGKILL.
std::string end_holder(const Place& place, Call& call) {
  const std::string socket = listener_of(place);
  if (socket.empty()) return "";
  bool ended = false;
  pid_t other = 0;
  for (const pid_t pid : link::all_processes()) {
    if (!holds(pid, socket)) continue;
    if (end_own_agent(pid, socket))
      ended = true;
    else
      other = pid;
  }
  if (ended) return "";
  const ucred listener = call.listener(place);
  if (other == 0 && listener.pid > 0 && listener.uid == ::geteuid() &&
      end_own_agent(listener.pid, ""))  // one whose descriptors cannot be seen
    return "";
  if (other == 0) other = listener.pid;
  if (other == 0)
    return fmt::format(
        "a process that this user may not see holds the place of this host's agent; end it: as "
        "root, `ss -xlp` shows it beside {}",
        place.name());
  const std::string users = users_of(other);
  return fmt::format(
      "process {} of user {} holds the place of this host's agent; end it, since it only pretends "
      "to be one",
      other, users.empty() ? std::to_string(listener.uid) : users.substr(0, users.find(' ')));
}

}  // namespace

Descriptor sole_agent(const std::string& name) {
  const Place place(name);
  Call call;
  std::string holder;
  for (int look = 0, in_vain = 0; look < kLooks && in_vain < kLooksInVain; ++look) {
    Descriptor socket = new_socket();
    if (::bind(socket.get(), place.get(), place.size) == 0) {
      if (::listen(socket.get(), 16) != 0) fail_errno("listen", errno);
      return socket;
    }
    if (errno != EADDRINUSE) fail_errno("bind", errno);
    holder = end_holder(place, call);  // one that is just ending has no command line any more
    in_vain = holder.empty() ? 0 : in_vain + 1;
    std::this_thread::sleep_for(kLook);
  }
  if (!holder.empty()) fail(ErrorCode::conflict, "{}", holder);
  fail(ErrorCode::unavailable, "another agent of this host does not end");
}

}  // namespace ductile::server
