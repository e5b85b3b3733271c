#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ductile/comm/transport.h"

namespace ductile::comm {

struct InprocOptions {
  // A message of at most this many bytes is copied by send(), whose transfer is then done at once;
  // a longer one waits for its receive.
  size_t eager_bytes = 4096;
};

// Transports whose ranks are threads of one process: for tests and for single-process jobs. The
// caller gives each element to the thread of its rank. Only that rank notices fail() on its
// element, as with a failure detector. If one is destroyed while other ranks still have transfers
// with it, these notice.
std::vector<std::unique_ptr<Transport>> make_inproc_transports(int size,
                                                               const InprocOptions& options = {});

}  // namespace ductile::comm
