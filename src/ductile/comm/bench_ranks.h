#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/comm/communicator.h"
#include "ductile/comm/failure_detector.h"
#include "ductile/comm/tcp_transport.h"
#include "ductile/net/store_server.h"

namespace ductile::comm {

// Where a rank of a benchmark is, and how it reaches the others.
struct BenchPlace {
  std::string job;  // a name of its own for this run
  int rank = 0;
  int size = 1;
  int ranks_per_host = 1;
  std::string transport = "tcp";  // between ranks: shm (one host), tcp, ucx
  bool shm_inside = false;        // within each host shared memory, `transport` between hosts
  TcpOptions tcp;                 // its links are this host's addresses, also for ucx
  net::Address store;             // of rank 0's StoreServer; not for shm
  size_t arena_bytes = 0;         // memory for data, where memory is shared
};

// A rank of a benchmark that is connected with the others: what a worker has, without the training.
// Waits for all of them; throws as connect_tcp and Arena::meet do.
class BenchRank {
 public:
  BenchRank(const BenchPlace& place, const net::Secret& secret);

  Communicator& communicator() { return *communicator_; }
  // `count` zeros for the length of the object; in the shared memory where the sums go through it.
  float* memory(size_t count);

 private:
  std::unique_ptr<net::Store> store_;
  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<FailureDetector> detector_;
  std::vector<std::vector<float>> own_;
};

}  // namespace ductile::comm
