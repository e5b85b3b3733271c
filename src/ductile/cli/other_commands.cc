#include "ductile/cli/other_commands.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/cli/exit_code.h"
#include "ductile/process/spawn.h"

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

// The first word that is no option of all commands; empty: there is none.
std::string_view first_word(std::span<const char* const> words) {
  constexpr std::string_view kFlags[] = {"-q", "--quiet", "-v", "--verbose"};
  for (const char* word : words.subspan(std::min<size_t>(words.size(), 1)))
    if (std::ranges::find(kFlags, word) == std::end(kFlags)) return word;
  return "";
}

// Beside this program; whether it is there shows when it is started.
fs::path fleet_program() {
  return fs::read_symlink("/proc/self/exe").parent_path() / "ductile-fleet";
}

// What a program said of its error, without its name before it.
std::string last_word(std::string said) {
  while (!said.empty() && said.back() == '\n') said.pop_back();
  constexpr std::string_view kName = "ductile: ";
  if (said.starts_with(kName)) said.erase(0, kName.size());
  return said.empty() ? "ductile-fleet ended without a word" : said;
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
  return find_other(first_word({argv, static_cast<size_t>(argc)})) != nullptr;
}

FleetCommand::FleetCommand(const std::vector<std::string>& words, std::string what)
    : what_(std::move(what)) {
  const fs::path printed = printed_.path();
  const Descriptor output = opened(::open(printed.c_str(), O_WRONLY | O_CLOEXEC), printed.string());
  process::SpawnOptions options;
  options.program = fleet_program();
  options.arguments = {"-q"};
  options.arguments.insert(options.arguments.end(), words.begin(), words.end());
  options.log = said_.path();
  options.output_fd = output.get();
  child_ = process::spawn(options);
}

// Its whole group, since a program that stands in for it may have begun others.
FleetCommand::~FleetCommand() {
  if (child_ <= 0) return;
  ::kill(-child_, SIGKILL);
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) continue;
}

bool FleetCommand::reap(int flags) {
  while (child_ > 0) {
    const pid_t got = ::waitpid(child_, &status_, flags);
    if (got == 0) return false;
    if (got == child_)
      child_ = -1;
    else if (errno != EINTR)
      fail_errno("waitpid", errno);
  }
  return true;
}

bool FleetCommand::ended() { return reap(WNOHANG); }

std::string FleetCommand::output() {
  reap(0);
  const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  if (code == kDone) return read_text(printed_.path());
  fail(code == kFailed || code == kUsage ? ErrorCode::invalid_argument : ErrorCode::unavailable,
       "{}: {}", what_, last_word(read_text(said_.path())));
}

std::string fleet_output(const std::vector<std::string>& words, const std::string& what) {
  return FleetCommand(words, what).output();
}

void become_fleet(char* const* argv) {
  const fs::path program = fleet_program();
  ::execv(program.c_str(), argv);
  const int error = errno;
  if (error == ENOENT) {
    size_t count = 0;
    while (argv[count] != nullptr) ++count;
    fail(ErrorCode::not_found,
         "`ductile {}` is in the program ductile-fleet, which is not in {}: in the source tree, "
         "`scripts/build release ductile-fleet` builds it; elsewhere, install Ductile again",
         first_word({argv, count}), program.parent_path().string());
  }
  fail_errno("exec " + program.string(), error);
}

}  // namespace ductile::cli
