#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ductile/comm/communicator.h"
#include "ductile/comm/inproc.h"

namespace ductile::comm {

// For tests: runs `body` once a rank, each on a thread with a communicator of its own over the
// in-process transport. Rethrows the first exception of the lowest rank.
inline void run_ranks(int size, const std::function<void(Communicator&)>& body,
                      const CommunicatorOptions& options = {}, const InprocOptions& inproc = {}) {
  auto transports = make_inproc_transports(size, inproc);
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        Communicator comm(std::move(transports[r]), options);
        body(comm);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (auto& t : threads) t.join();
  for (auto& e : errors) {
    if (e) std::rethrow_exception(e);
  }
}

}  // namespace ductile::comm
