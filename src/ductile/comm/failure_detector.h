#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ductile/comm/mesh.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

struct DetectorOptions {
  std::string link = "127.0.0.1";            // this host's address for heartbeats
  std::chrono::milliseconds interval{200};   // between two heartbeats
  std::chrono::milliseconds deadline{2000};  // silence for longer = lost
  // If a collective makes no progress for longer than this, it is reported with the missing ranks;
  // nothing else happens.
  std::chrono::milliseconds soft_deadline{5000};
  std::function<bool()> given_up;  // as MeshOptions has it
  net::OnRefusal on_refusal;
};

// How far a rank is: the number of its collective, counted from 1 in the order in which all ranks
// run them, and its progress in this collective, in some unit that only grows (bytes, steps).
struct Position {
  uint64_t operation = 0;
  uint64_t progress = 0;
  bool inside = false;  // false: that operation is over
};

// A collective that waits.
struct GroupStall {
  Position own;
  std::vector<int> missing;         // who has not come as far; ascending
  std::vector<Position> positions;  // of every rank, as last heard of
  std::string text;                 // "operation 17 waits for ranks 3, 5: ..."; for people
};

// Determines which ranks of a generation are alive, over its own TCP connections between all of
// them, on its own thread. (The time-outs of UCX and TCP were measured to miss stopped processes
// altogether, and cut links for minutes.)
//
// A closed connection is a loss at once, and silence is one after the deadline. A rank that detects
// a loss tells the others. A peer that destroys its detector says goodbye first and is not lost.
// After this process itself was stopped or starved, it first reads what has arrived, and only then
// judges its peers.
class FailureDetector {
 public:
  // Called on the detector's thread for each newly lost rank or group of ranks. The caller passes
  // the loss on to Transport::fail().
  using OnLoss = std::function<void(const PeerLoss&)>;
  using OnStall = std::function<void(const GroupStall&)>;

  // Connects to all ranks; throws as connect_mesh does.
  FailureDetector(const Group& group, net::Store& store, const net::Secret& secret,
                  const DetectorOptions& options, OnLoss on_loss, OnStall on_stall,
                  net::Deadline deadline);
  ~FailureDetector();

  // Where this rank is; cheap, from any thread.
  void report(const Position& position);

  // All ranks lost so far, and why. Choose the members of the next generation by this list: the
  // error of a transport may name a survivor that merely gave up first.
  PeerLoss losses() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace ductile::comm
