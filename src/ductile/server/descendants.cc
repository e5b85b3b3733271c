#include <cerrno>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/link/worker_processes.h"
#include "ductile/server/descendants_impl.h"

namespace ductile::server {
namespace {

std::vector<pid_t> children_among_all() {
  std::vector<pid_t> children;
  for (const pid_t pid : link::all_processes())
    if (const auto state = link::state_of(pid); state && state->parent == ::getpid())
      children.push_back(pid);
  return children;
}

std::vector<pid_t> own_children(const fs::path& list) {
  std::vector<pid_t> children;
  try {
    std::istringstream numbers(read_file(list));
    for (pid_t pid = 0; numbers >> pid;) children.push_back(pid);
  } catch (const Error&) {  // a kernel without such lists
  }
  return children.empty() ? children_among_all() : children;
}

// Whether the kernel knows of none, which no look at lists can say for certain.
bool has_no_child() { return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }

}  // namespace

fs::path list_of_children() { return fmt::format("/proc/self/task/{}/children", ::getpid()); }

void end_descendants(const fs::path& list) {
  while (!has_no_child()) {
    for (const pid_t pid : own_children(list)) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
}

}  // namespace ductile::server
