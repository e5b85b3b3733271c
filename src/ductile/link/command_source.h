#pragma once

#include <chrono>
#include <optional>

#include "ductile/control/worker_protocol.h"
#include "ductile/net/socket.h"

namespace ductile::link {

// Where a worker's step loop takes its commands from: the connection to a controller (WorkerLink),
// or a controller in the same thread (LocalControl). The loop carries the commands out in order,
// and tells what came of them:
//
//   source.tell(Loaded{});
//   while (auto command = source.next()) { ... source.tell(Reduced{...}); ... }
//
// Handed out are all commands of worker_protocol.h but SendStatus; after Exit comes nothing more.
class CommandSource {
 public:
  virtual ~CommandSource() = default;

  // The number of this worker, which never changes: its tag for checkpoints is made of it
  // (checkpoint_tag).
  virtual control::WorkerId worker() const = 0;

  virtual void tell(const control::WorkerEvent& event) = 0;

  // The next command, waiting up to `wait` for one. Nothing: none came. After Exit always nothing.
  virtual std::optional<control::WorkerCommand> next(
      std::chrono::milliseconds wait = std::chrono::hours(1)) = 0;

  // Whether the loop has been told to abandon `generation`. For work that cannot be interrupted:
  // look before it, and after it.
  virtual bool abandoned(control::Generation generation) const = 0;

  // The job's store, where the members of a generation meet. Nothing where there never is more than
  // one member.
  virtual std::optional<net::Address> store() const = 0;
};

}  // namespace ductile::link
