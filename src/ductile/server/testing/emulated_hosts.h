#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::server::testing {

// Hosts for tests: network namespaces joined by a bridge, each with one address and its loopback.
// They have no name and live as long as the processes that hold them, which die with this one; so
// nothing is left, however a test ends. Host 0 is for the controller.
class EmulatedHosts {
 public:
  // Where namespaces cannot be made (it takes root), why() says so.
  explicit EmulatedHosts(int count) {
    hub_ = make_namespace();
    if (hub_ < 0) {
      give_up("network namespaces cannot be made here (root?)");
      return;
    }
    bool up = run(in(hub_) + "ip link add hub type bridge") &&
              run(in(hub_) + "ip link set hub up") && run(in(hub_) + "ip link set lo up");
    for (int h = 0; h < count && up; ++h) {
      hosts_.push_back(make_namespace());
      if (hosts_.back() < 0) {
        give_up("network namespaces cannot be made here");
        return;
      }
      up = run(fmt::format("{}ip link add port{} type veth peer name eth0 netns {}", in(hub_), h,
                           hosts_.back())) &&
           run(fmt::format("{}ip link set port{} master hub up", in(hub_), h)) &&
           run(fmt::format("{}ip addr add {}/24 dev eth0", in(hosts_.back()), address(h))) &&
           run(in(hosts_.back()) + "ip link set eth0 up") &&
           run(in(hosts_.back()) + "ip link set lo up");
    }
    if (!up) give_up("veth and bridge devices cannot be made here (iproute2? util-linux?)");
  }
  EmulatedHosts(const EmulatedHosts&) = delete;
  EmulatedHosts& operator=(const EmulatedHosts&) = delete;
  ~EmulatedHosts() {
    hosts_.push_back(hub_);
    for (const pid_t pid : hosts_) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  const std::string& why() const { return why_; }  // empty: they are there

  static std::string address(int host) { return fmt::format("10.77.0.{}", host + 1); }
  // As --hosts takes it: their names are what launcher() needs to know.
  std::string name(int host) const { return std::to_string(hosts_[static_cast<size_t>(host)]); }
  static std::string launcher() { return "nsenter -t {host} -n"; }
  // What a command begins with that is to run on a host.
  std::vector<std::string> prefix(int host) const {
    return {"/usr/bin/nsenter", "-t", name(host), "-n"};
  }

  // Moves the calling thread there.
  void enter(int host) const {
    const int fd = ::open(fmt::format("/proc/{}/ns/net", name(host)).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) fail_errno("enter a network namespace", errno);
    ::close(fd);
  }

  bool holds(pid_t pid) const {
    return pid == hub_ || std::find(hosts_.begin(), hosts_.end(), pid) != hosts_.end();
  }

  bool cut(int host) const { return link(host, "down"); }
  bool restore(int host) const { return link(host, "up"); }
  // Two hosts lose each other, and nobody else.
  bool separate(int a, int b) const { return route(a, b, "add") && route(b, a, "add"); }
  bool reunite(int a, int b) const { return route(a, b, "del") && route(b, a, "del"); }

 private:
  static bool run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  static std::string in(pid_t space) { return fmt::format("nsenter -t {} -n ", space); }
  bool link(int host, const char* state) const {
    return run(fmt::format("{}ip link set port{} {}", in(hub_), host, state));
  }
  bool route(int from, int to, const char* what) const {
    return run(fmt::format("{}ip route {} blackhole {}/32", in(hosts_[static_cast<size_t>(from)]),
                           what, address(to)));
  }
  void give_up(const char* why) { why_ = why; }

  // A process in a namespace of its own.
  static pid_t make_namespace() {
    int ready[2];
    if (::pipe(ready) != 0) return -1;
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setpgid(0, 0);
      const char ok = ::unshare(CLONE_NEWNET) == 0;
      [[maybe_unused]] const ssize_t n = ::write(ready[1], &ok, 1);
      ::close(ready[0]);
      ::close(ready[1]);
      while (ok) ::pause();
      ::_exit(1);
    }
    ::close(ready[1]);
    char ok = 0;
    const bool made = ::read(ready[0], &ok, 1) == 1 && ok != 0;
    ::close(ready[0]);
    if (made) return pid;
    if (pid > 0) ::waitpid(pid, nullptr, 0);
    return -1;
  }

  std::string why_;
  pid_t hub_ = -1;
  std::vector<pid_t> hosts_;
};

}  // namespace ductile::server::testing
