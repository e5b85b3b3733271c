#pragma once

#include <array>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <sys/signalfd.h>
#include <sys/types.h>

#include "ductile/base/files.h"
#include "ductile/control/protocol.h"

// Finding the workers of a run among the processes of this machine. A process of another user is
// never one, whatever its command line says: anybody can write one. All throw unavailable where a
// process cannot be looked at now, since that does not mean that it is gone.
namespace ductile::link {

std::vector<pid_t> all_processes();

struct ProcessState {
  pid_t parent = 0;
  char letter =
      0;  // as in /proc/PID/stat: 'Z', it has ended and was not reaped; 'T', it is stopped
};
// Nothing: it is gone, or cannot be seen.
std::optional<ProcessState> state_of(pid_t pid);

// Whether the process is this user's `PROGRAM ... --run RUN --worker ID ... [--host HOST] ...`. Of
// a program that is a script the owner and the command line alone count, since it may become
// another program; else the executable has the program's name.
bool is_worker(pid_t pid, const fs::path& program, const std::string& run, control::WorkerId worker,
               const std::string& host);

// Whether a process of this machine is one, on whichever host it was started.
bool runs_worker(const fs::path& program, const std::string& run, control::WorkerId worker);

// This user's processes that look like workers of the run, whatever their number and program.
std::vector<pid_t> workers_of(const fs::path& run);

struct FoundWorker {
  std::string run;
  control::WorkerId worker = 0;
  bool operator==(const FoundWorker&) const = default;
};
// This user's processes that look like workers of `folder`, or of a run in it, and were started
// with `--host HOST`.
std::vector<FoundWorker> workers_below(const fs::path& folder, const std::string& host);

// Whether no process of this worker runs on this machine any more. One that runs `program`, which
// another controller started, is killed; one of another program is left alone, and counts. An
// empty `program` kills nobody. Another signal than SIGKILL is sent without waiting, also to one
// that is stopped.
bool end_worker(const fs::path& program, const std::string& run, control::WorkerId worker,
                int signal = SIGKILL);

// What a service or an agent sends a keeper. Not SIGTERM: while one of these is unread, the kernel
// drops another, and with it what all processes of the machine are told.
constexpr int kAskKeeper = SIGURG;
// What a keeper blocks from its start, and reads.
constexpr std::array<int, 4> kKeeperSignals = {SIGTERM, SIGQUIT, SIGCHLD, kAskKeeper};

// Asks the keeper of a command, of which `process` is a descriptor, to end it in good order, so
// that it knows that its service or its agent wants it, and not somebody who signals all processes
// of the machine. One that is stopped hears it, too.
void ask_keeper_to_end(int process);
// Whether this signal was sent so, by this version or an earlier one.
bool is_asked_of_keeper(const signalfd_siginfo& signal);

}  // namespace ductile::link
