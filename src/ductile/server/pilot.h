#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ductile/base/files.h"

// A pilot is a batch job of the service's own that lends it a node: `ductile pilot TICKET` on the
// node, which the service calls with `ductile call-pilot`. Batch systems start a job twice, or
// again, and keep jobs that nobody wants any more; so no pilot is trusted for its job's number.
// Each has a ticket of its own, a folder that all nodes see:
//
//   FOLDER/pilots/NODE/current      the generation of the ticket that counts; of the service
//   FOLDER/pilots/NODE/GENERATION/  secret: what both ends prove that they know; of the service
//                                   claim: who came first with this ticket; of that pilot
//                                   notice: the batch system will take the node back; of the pilot
//
// One pilot can claim a ticket. One whose ticket was withdrawn (its secret is gone) ends, with all
// that it has started, and nobody calls it.
namespace ductile::server {

inline constexpr const char* kPilot = "pilot";  // arguments of `ductile`
inline constexpr const char* kCallPilot = "call-pilot";

struct PilotTicket {
  fs::path folder;  // that the service and all nodes share
  std::string node;
  uint64_t generation = 0;

  fs::path path() const;
  static PilotTicket at(const fs::path& path);  // the reverse; throws invalid_argument
};

struct PilotClaim {
  std::string job;      // the batch system's number of it
  std::string machine;  // where it runs
  std::string address;  // where it listens
  uint16_t port = 0;
  bool operator==(const PilotClaim&) const = default;
};

// Makes the ticket the one that counts for its node, and withdraws the one before. A ticket that is
// there already stays as it is. Throws unavailable (disk full ...).
void issue(const PilotTicket& ticket);
// From now on no pilot can use it. Does nothing where there is none.
void withdraw(const PilotTicket& ticket);
// The generation that counts, 0 if there is none. Throws data_loss if the file is damaged.
uint64_t current_generation(const fs::path& folder, const std::string& node);
// Nothing if no pilot has come with it. Throws data_loss if the file is damaged.
std::optional<PilotClaim> claim_of(const PilotTicket& ticket);
bool has_notice(const PilotTicket& ticket);

// `ductile pilot TICKET [TOWARDS]`: runs the node's agent for whoever calls and proves to be the
// service. TOWARDS is an address of the service's machine, which tells on which of the node's own
// to listen. SIGTERM is the notice; the pilot and its workers go on until the service has moved
// what runs here. Ends when nobody has called for a quarter of an hour. Returns the exit code;
// throws conflict if another pilot has the ticket, not_found if it was withdrawn.
int run_pilot(const fs::path& ticket, const std::string& towards);

// `ductile call-pilot FOLDER NODE`: connects `in` and `out` with the agent of the node's pilot.
// Returns the exit code; throws not_found, unavailable or conflict where there is none.
int call_pilot(const fs::path& folder, const std::string& node, int in, int out);

}  // namespace ductile::server
