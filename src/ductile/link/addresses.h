#pragma once

#include <string>
#include <string_view>

#include "ductile/base/files.h"
#include "ductile/control/protocol.h"
#include "ductile/net/handshake.h"
#include "ductile/net/socket.h"

// What the controller's host and the workers of a job must agree on besides the protocol.
namespace ductile::link {

// Where a job's controller can be reached. It may change when a controller is started again.
struct Addresses {
  net::Address controller;
  net::Address store;
  bool operator==(const Addresses&) const = default;
};

// `controller.json` in the run folder. read throws not_found where there is none and data_loss
// where it says something else.
fs::path addresses_file(const fs::path& run);
void write_addresses(const fs::path& run, const Addresses& addresses);
Addresses read_addresses(const fs::path& run);

// Where the other members of a generation reach a worker: what it reports as its address.
struct PeerAddress {
  std::string host;   // name or number
  std::string place;  // equal for two workers that can share memory, and for no others
  bool operator==(const PeerAddress&) const = default;

  // At this machine: the same kernel since it was started, user and namespaces.
  static PeerAddress here(std::string host);
  std::string to_string() const;
  // An address without a place is its own.
  static PeerAddress parse(std::string_view text);
};

// The run's name as the job's name of handshakes and store: those take at most 63 bytes, so a
// longer one is cut and ends in a hash of the whole.
std::string job_name(const fs::path& run);

// Whom a worker dials, and as whom.
net::Identity controller_identity(const std::string& job);
net::Identity worker_identity(const std::string& job, control::WorkerId worker);

// Under which tag a worker writes checkpoints for the controller's host to publish (ckpt::publish).
// The id alone: no id is given twice, and what one process writes of one step is always the same.
std::string checkpoint_tag(control::WorkerId worker);

}  // namespace ductile::link
