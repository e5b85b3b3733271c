#pragma once

#include <cstdint>
#include <map>

#include "ductile/base/files.h"

// Batches that are ordered from outside the run (optim/batch_order.h), as a worker finds them.
namespace ductile::train {

// Reads `batch.json` of a run directory again whenever it has changed: {"batch": 256}, what is
// wished for from now on. {"replay": [[40, 256], ...]}, what another run was ordered and when, is
// read once: each of its orders belongs to one step, at which the file may be out of reach.
class BatchOrders {
 public:
  explicit BatchOrders(fs::path file) : file_(std::move(file)) {}

  // The batch wished for after `updates` updates; 0: none. Throws data_loss once for each change
  // that makes the file a damaged one, or something else than a file, and unavailable as long as
  // nobody can tell whether there is one, or it cannot be read; nothing is wished for then.
  int64_t wish(int64_t updates);

 private:
  void look();
  void read();

  fs::path file_;
  struct Stamp {
    // The size, since two writes may fall into one tick of the file system's clock: a shell
    // empties the file before it writes.
    int64_t inode = 0, size = 0, seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  Stamp seen_;
  int64_t batch_ = 0;
  std::map<int64_t, int64_t> replay_;  // by updates
};

}  // namespace ductile::train
