#pragma once

#include <string>
#include <string_view>

#include "ductile/base/files.h"
#include "ductile/control/protocol.h"
#include "ductile/net/handshake.h"
#include "ductile/net/socket.h"

// What the controller and the workers of a job must agree on besides the protocol.
namespace ductile::link {

// Where a job's controller can be reached. It may change when a controller is started again.
struct Addresses {
  net::Address controller;
  net::Address store;
  bool operator==(const Addresses&) const = default;
};

// The file `controller.json` in the run folder. read() throws not_found if there is none, and
// data_loss if its contents are wrong.
fs::path addresses_file(const fs::path& run);
void write_addresses(const fs::path& run, const Addresses& addresses);
Addresses read_addresses(const fs::path& run);

// Where the other members of a generation reach a worker; the worker reports it as its address.
struct PeerAddress {
  std::string host;   // name or number
  std::string place;  // equal for two workers that can share memory, and for no others
  bool operator==(const PeerAddress&) const = default;

  // The address of a worker on this machine; the place stands for this boot of the kernel, this
  // user and these namespaces.
  static PeerAddress here(std::string host);
  std::string to_string() const;
  // The place of an address without one is the address itself.
  static PeerAddress parse(std::string_view text);
};

// What a worker in its control's own process reports as its address. It has no peers, and lives no
// longer than the run's lock is held.
inline constexpr std::string_view kInItsControl = "in the process of its control";

// The run's name as the job's name in handshakes and the store. These take at most 63 bytes, so a
// longer name is cut and ends in a hash of the whole name.
std::string job_name(const fs::path& run);

// The peer that a worker dials, and the identity with which it does.
net::Identity controller_identity(const std::string& job);
net::Identity worker_identity(const std::string& job, control::WorkerId worker);

// The tag under which a worker writes checkpoints, which the controller publishes (ckpt::publish).
// It contains only the worker's id: no id is given twice, and what one process writes for one step
// is always the same.
std::string checkpoint_tag(control::WorkerId worker);

}  // namespace ductile::link
