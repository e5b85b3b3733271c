#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"

namespace ductile::cluster {

// A job of kind "command": any program.
struct CommandSpec {
  std::vector<std::string> command;  // the program, by path or by PATH, and its arguments
  fs::path directory;                // where it starts; absolute
  std::vector<std::pair<std::string, std::string>> environment;  // beside the service's own
  int64_t retries = 0;    // times that it is started again after it failed by itself
  double time_limit = 0;  // seconds that it may run at a time; 0: no limit
  double grace = 30;      // seconds between SIGTERM and SIGKILL
  int64_t gpus = 0;       // of its node, that it has for itself; it sees no others
};

// Throws invalid_argument, which says what is wrong.
CommandSpec command_of(const nlohmann::json& spec);
nlohmann::json to_json(const CommandSpec& command);

// How one attempt at a command ended.
struct AttemptEnd {
  enum class Kind : uint8_t {
    exited,   // by itself, with `code`
    killed,   // by `signal`, which its keeper did not send
    stopped,  // it was asked to, before it ended by itself
    late,     // its time limit had come
    refused,  // it could not be started: `text`
    lost,     // its keeper was killed
  };
  Kind kind = Kind::lost;
  int code = 0, signal = 0;
  std::string text;
};

// What a run directory remembers of its command: `attempt.json`, which the holder of the run's lock
// alone writes.
struct Attempt {
  int64_t number = 0;    // from 1; 0: there was none
  std::string fence;     // stands in the environment of each of its processes
  int64_t failures = 0;  // of all attempts so far: ended by themselves, and not with code 0
  std::optional<AttemptEnd> end;
};

// Throws data_loss for a damaged file.
Attempt read_attempt(const fs::path& run);
// The same for a service, which must not wait: data_loss for a FIFO, a socket or a device.
Attempt look_at_attempt(const fs::path& run);
void write_attempt(const fs::path& run, const Attempt& attempt);

// What a keeper is to do: `orders.json`, which the service writes before it starts the keeper.
struct KeeperOrders {
  CommandSpec command;     // with the whole of what is added to the environment
  int64_t attempt = 0;     // the number of the new attempt; 0: only what is left is cleared away
  uint64_t keeper = 0;     // the number of the keeper, from 1, which is never used twice for a run
  std::string node;        // where it runs
  bool withdrawn = false;  // nobody has this number: the keeper before it is to end
  // Seconds that it may go on without seeing its orders; 0: for ever. Of orders that are withdrawn:
  // how long the keeper before may have gone on from then; 0: that time is over, nothing runs.
  double lease = 0;
};
void write_orders(const fs::path& run, const KeeperOrders& orders);
// Nothing where there are none yet. Throws data_loss for a damaged file.
std::optional<KeeperOrders> read_orders(const fs::path& run);

// Whether a keeper may be at work by these orders: as far as the run directory knows, its end is
// not written, and its lease is not over.
bool may_run(const KeeperOrders& orders, const Attempt& last);

// The whole of a keeper's life (the program ductile-keeper): takes the run's lock, kills what an
// earlier attempt has left, starts the command in a session of its own and waits for its end; then
// kills every process that came of it, and writes the attempt's end. SIGTERM, or what its service
// sends (link::ask_keeper_to_end): the command gets SIGTERM, and SIGKILL after its grace. SIGQUIT:
// SIGKILL at once. A command that has ended by itself before its service asked it keeps its own
// end, however late the keeper comes to it. A SIGTERM of anybody else is taken for one that all
// processes of the machine get: a command that ends then, or shortly before, was stopped.
// link::kKeeperSignals are to be blocked. If another attempt was made since the orders were
// written, or they are of another keeper, nothing is started. Throws conflict if another keeper has
// the lock.
//
// With a lease it looks at its orders each second: if they are another keeper's, or it has not seen
// them for as long as the lease, it kills all at once. So whoever gives the orders to another one
// knows that nothing of the command runs once the lease is over, also on a node that nobody can
// reach.
//
// What it cannot end: a process of another user (a set-uid program), and, only if the keeper
// itself was killed by SIGKILL, a descendant that has taken the fence out of its environment.
void keep(const fs::path& run, uint64_t keeper);

// Kills this user's processes that have the fence in their environment, until none is left. A
// process that took the number of one of them meanwhile is not touched.
void end_fenced(const std::string& fence);

}  // namespace ductile::cluster
