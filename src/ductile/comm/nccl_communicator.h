#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ductile/base/dtype.h"
#include "ductile/comm/mesh.h"
#include "ductile/comm/reduction.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

// Whether this build has NCCL (DUCTILE_NCCL). Without it connect_nccl() throws unavailable.
bool have_nccl();
std::string nccl_version();  // "2.18.5" of the library that runs; empty without one

// The collectives of communicator.h on memory of GPUs, one GPU per rank, through NVIDIA's NCCL,
// which knows the machine's links and chooses the algorithm itself.
//
// A call puts work on a CUDA stream (`stream`: a cudaStream_t; nullptr is the default one) and
// returns; memory stays in place until wait() on that stream. Every rank makes the same calls in
// the same order, with equal counts and types. One thread at a time; report_loss() from any.
//
// Failure: NCCL itself does not notice a peer that is silent, so a failure detector must call
// report_loss(). That call, and errors that NCCL does notice, abort the communicator within one
// poll of wait(), or at the next call, which then throws peer_lost, as does every later call. Work
// on the stream has ended by then, with unspecified results.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Types: u8, i8, i32, u32, i64, f16, bf16, f32, f64. `in` may be `out` (for reduce_scatter and
  // all_gather: the own block of the larger one).
  virtual void all_reduce(const void* in, void* out, int64_t count, DType type,
                          Reduction reduction = Reduction::sum, void* stream = nullptr) = 0;
  virtual void reduce_scatter(const void* in, void* out, int64_t count, DType type,
                              Reduction reduction = Reduction::sum, void* stream = nullptr) = 0;
  virtual void all_gather(const void* in, void* out, int64_t count, DType type,
                          void* stream = nullptr) = 0;
  virtual void broadcast(void* data, int64_t count, DType type, int root,
                         void* stream = nullptr) = 0;
  virtual void send(int peer, const void* data, int64_t bytes, void* stream = nullptr) = 0;
  virtual void receive(int peer, void* data, int64_t bytes, void* stream = nullptr) = 0;

  // Returns once everything on `stream` is done.
  virtual void wait(void* stream = nullptr) = 0;

  virtual void report_loss(PeerLoss loss) = 0;

  // The communicator of some of these ranks, as Communicator::split: the ranks of the list alone
  // call it, with the same list and in the same order of lists. They meet through `store`. Parent
  // and groups are one family: a loss in one, or reported to one, ends all. Each belongs to one
  // thread at a time, they may belong to different ones, and are destroyed in any order.
  //
  // Throws invalid_argument for a list that makes no sense. Conflict, naming both lists, where a
  // member came with another one, and deadline, naming who did not come, end the family.
  virtual std::unique_ptr<DeviceCommunicator> split(std::span<const int> ranks, net::Store& store,
                                                    net::Deadline deadline) = 0;
};

// Joins the group with GPU `device` of this process. NCCL's identifier goes through `store`, which
// only members of the job reach; NCCL's own connections are not authenticated: use it on networks
// that only the cluster reaches, as UCX (docs/design/002-wires.md). Blocks until all have come;
// throws deadline, peer_lost, or unavailable with what NCCL says.
std::unique_ptr<DeviceCommunicator> connect_nccl(const Group& group, net::Store& store, int device,
                                                 net::Deadline deadline);

}  // namespace ductile::comm
