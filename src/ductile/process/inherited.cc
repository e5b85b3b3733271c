#include "ductile/process/inherited.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ductile/base/files.h"

namespace ductile::process {
namespace {

const fs::path kThread = "/proc/thread-self";

// Some of these files are there and cannot be read.
std::string text_of(const fs::path& file) {
  std::ostringstream out;
  out << std::ifstream(file, std::ios::binary).rdbuf();
  return out.str();
}

// A worker ignores these two whatever it took over, and a service begins to at some time.
uint64_t ignored_signals(const std::string& hex) {
  uint64_t signals = std::strtoull(hex.c_str(), nullptr, 16);
  for (const int number : {SIGPIPE, SIGXFSZ}) signals &= ~(uint64_t{1} << (number - 1));
  return signals;
}

std::string rights_and_cores() {
  constexpr std::array<std::string_view, 14> kFields = {"Umask",
                                                        "Uid",
                                                        "Gid",
                                                        "Groups",
                                                        "CapInh",
                                                        "CapPrm",
                                                        "CapEff",
                                                        "CapBnd",
                                                        "CapAmb",
                                                        "NoNewPrivs",
                                                        "Seccomp",
                                                        "Cpus_allowed_list",
                                                        "Mems_allowed_list",
                                                        "SigIgn"};
  std::ifstream in(kThread / "status");
  std::string out;
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view name = std::string_view(line).substr(0, colon);
    for (const std::string_view field : kFields) {
      if (name != field) continue;
      out += field == "SigIgn"
                 ? fmt::format("SigIgn {:x}\n", ignored_signals(line.substr(colon + 1)))
                 : line + "\n";
    }
  }
  return out;
}

std::string places() {
  std::string out;
  for (const char* link : {"cwd", "root", "ns/cgroup", "ns/ipc", "ns/mnt", "ns/net",
                           "ns/pid_for_children", "ns/time_for_children", "ns/user", "ns/uts"}) {
    std::error_code error;
    const fs::path target = fs::read_symlink(kThread / link, error);
    if (!error) out += fmt::format("{} {}\n", link, target.string());
  }
  return out;
}

std::string priorities() {
  constexpr int kOfThisThread = 1;  // IOPRIO_WHO_PROCESS
  sched_param real_time{};
  ::sched_getparam(0, &real_time);
  return fmt::format("nice {} scheduler {} {} input and output {} session {}\n",
                     ::getpriority(PRIO_PROCESS, 0), ::sched_getscheduler(0),
                     real_time.sched_priority, ::syscall(SYS_ioprio_get, kOfThisThread, 0),
                     ::getsid(0));
}

}  // namespace

std::string inherited() {
  std::string out = rights_and_cores() + places() + priorities();
  for (const char* file :
       {"cgroup", "limits", "oom_score_adj", "coredump_filter", "personality", "attr/current"})
    out += text_of(kThread / file);
  return out;
}

}  // namespace ductile::process
