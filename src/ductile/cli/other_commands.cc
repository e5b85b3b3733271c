#include "ductile/cli/other_commands.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"

namespace ductile::cli {
namespace {

constexpr OtherCommand kLive[] = {
    {"status", "show what a live job is doing, and why"},
    {"resize", "give a job another number of workers"},
    {"preempt", "save a job and free its resources"},
    {"resume", "resume a job that was preempted"},
    {"logs", "print what the workers of a run wrote"},
    {"report", "write a run's report.html again"},
};
constexpr OtherCommand kService[] = {
    {"up", "run a service that takes jobs and shares this machine among them"},
    {"server", "run a service that shares the nodes of a cluster among jobs"},
    {"submit", "hand a job to the service"},
    {"jobs", "list the jobs of the service"},
    {"why", "say why a job waits, or runs as it does"},
    {"reload", "let a job that answers requests load other weights"},
    {"cancel", "end a job for good"},
    {"events", "list what happened to the jobs"},
    {"nodes", "list the nodes, and who holds their devices"},
    {"drain", "let nothing run on a node any more"},
    {"undrain", "take a drained node back"},
    {"token", "say who may use a service from other machines"},
    {"page", "print a link to the service's page"},
};
constexpr OtherCommand kLab[] = {
    {"plan", "cut a model into pipeline stages for given devices"},
    {"sim", "replay a workload under scheduling policies"},
    {"bench", "measure this build, and its peers if they are installed"},
};

const OtherCommand* find_other(std::string_view name) {
  for (const std::span<const OtherCommand> rows :
       {live_commands(), service_commands(), lab_commands()}) {
    const auto row = std::ranges::find(rows, name, &OtherCommand::name);
    if (row != rows.end()) return &*row;
  }
  return nullptr;
}

}  // namespace

std::span<const OtherCommand> live_commands() { return kLive; }
std::span<const OtherCommand> service_commands() { return kService; }
std::span<const OtherCommand> lab_commands() { return kLab; }

const char* other_help(std::string_view name) {
  const OtherCommand* row = find_other(name);
  if (row == nullptr) fail(ErrorCode::internal, "{} is no command of ductile-fleet", name);
  return row->help;
}

bool is_other_command(int argc, const char* const* argv) {
  constexpr std::string_view kFlags[] = {"-q", "--quiet", "-v", "--verbose"};
  for (int i = 1; i < argc; ++i) {
    if (std::ranges::find(kFlags, argv[i]) == std::end(kFlags))
      return find_other(argv[i]) != nullptr;
  }
  return false;
}

void become_fleet(char* const* argv) {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "ductile-fleet";
  ::execv(program.c_str(), argv);
  const int error = errno;
  if (error == ENOENT)
    fail(ErrorCode::not_found,
         "the commands of clusters are in the program ductile-fleet, which is not in {}; in the "
         "source "
         "tree, `scripts/build release ductile-fleet` builds it",
         program.parent_path().string());
  fail_errno("exec " + program.string(), error);
}

}  // namespace ductile::cli
