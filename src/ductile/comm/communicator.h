#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/base/dtype.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/cost.h"
#include "ductile/comm/engine.h"
#include "ductile/comm/fabric.h"
#include "ductile/comm/reduction.h"
#include "ductile/comm/schedule.h"
#include "ductile/comm/transport.h"

namespace ductile::comm {

// How one call is carried out; equal on all ranks.
struct CallOptions {
  Algorithm algorithm = Algorithm::automatic;
  Reduction reduction = Reduction::sum;
  std::optional<DType> wire;  // f16 or bf16: f32 travels as that, is added in f32, rounded once
  int pipeline = 0;           // pieces a share is cut into (schedule.h); 0: the cost model chooses
};

struct CommunicatorOptions {
  Topology topology;  // num_ranks is taken from the transport
  EngineOptions engine;
  // The links by which algorithms are chosen, equal on all ranks; see also calibrate.h. If it is
  // empty, a guess with the shape of `topology` is used.
  std::optional<Fabric> fabric;
  // Memory that all ranks share, for communicators within one host: sums, broadcasts and barriers
  // go through it, unless a call names an algorithm. They are fastest if the data lie in it. The
  // arena is finished together with the communicator.
  std::shared_ptr<Arena> arena;
};

// The collectives on pointer + count + type. Every rank calls the same ones, in the same order,
// with equal counts, types and options. Each has two forms: one returns when this rank is done; the
// other (`start_`) returns a handle at once, and memory must stay in place and unchanged until the
// operation has ended. `in` may be equal to `out` if both have `count` elements; otherwise they
// must not overlap, except that the `in` of all_gather may be this rank's block of `out`. Pointers
// need no alignment. Any thread may call, as long as the order of calls is the same on all ranks.
//
// Failure: once a peer is lost, every call and handle, on every thread, throws peer_lost with the
// reason, and the communicator is finished. The contents of `out` are then unspecified.
//
// Sub-groups: a communicator, those that split() makes of it, and so on, are one family. They share
// the transport and the failure: a rank that loses a peer in one of them loses it in all, whether
// or not that peer is a member. Each has its own ranks, order of calls, tags and algorithms.
// Several may be used at the same time, from any threads, and each has an order of calls of its
// own. They may be destroyed in any order; the last one destroys the transport. Errors, and
// messages of the soft deadline, number ranks as the first communicator does.
class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options = {});
  // Operations under way end with `unavailable`, and so do those of the rest of the family, since
  // transfers under way cannot be taken back: call wait() first.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Makes a communicator of some of these ranks: its rank i is rank ranks[i] of this one. Each rank
  // in the list calls split() with the same list; other ranks do not call it. Like all calls it has
  // an order: ranks that are together in several lists call split() for these in the same order. It
  // blocks until all members have called it, and is cheap otherwise (two rounds of small messages,
  // no connections, no threads). A rank may be in at most 4095 sub-groups at a time.
  //
  // The result has the hosts and links of its members and a grid of its own. calibrate() and
  // set_fabric() on one communicator do not change the other. If all ranks share memory
  // (options.arena), so do the members; data in place then lie at the same offset of each member's
  // region.
  //
  // Throws invalid_argument, before anything is sent, if a rank in the list does not exist, is
  // there twice, or this rank is not there. If members pass different lists, all of them throw
  // conflict, naming two members and their lists, and the family is finished.
  std::unique_ptr<Communicator> split(std::span<const int> ranks);

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  const Topology& topology() const { return options_.topology; }
  // The rank in the first communicator of the family, for each rank of this one.
  std::vector<int> first_ranks() const;

  // The memory shared by all ranks, from which the caller may allocate. It is null if there is
  // none, and on a sub-group, which uses that of its parent.
  Arena* arena() const { return group_ ? nullptr : options_.arena.get(); }

  // The links by which algorithms are chosen. All ranks call set_fabric() with equal values, at the
  // same place in their order of calls.
  Fabric fabric() const;
  void set_fabric(Fabric fabric);
  // How a call of `count` elements would be carried out, and why.
  Choice choice(Collective collective, int64_t count, DType type, const CallOptions& options = {});
  bool uses_arena(Collective collective, DType type, const CallOptions& options = {}) const;

  // out[i] = sum over ranks of in[i].
  void all_reduce(const void* in, void* out, int64_t count, DType type,
                  const CallOptions& options = {});
  Work start_all_reduce(const void* in, void* out, int64_t count, DType type,
                        const CallOptions& options = {});

  // The canonical sum (canonical.h): cut[r] .. cut[r + 1] - 1 are the virtual ranks of rank r, and
  // `partials` are the sums of the nodes of cover(V, own range), in order. The result has the same
  // bits for every cut. partials[0] may be `out`. options.algorithm is ignored; with a wire format
  // the sums travel in full and the result is rounded once.
  void canonical_all_reduce(std::span<const void* const> partials, void* out, int64_t count,
                            DType type, std::span<const int64_t> cut,
                            const CallOptions& options = {});
  Work start_canonical_all_reduce(std::span<const void* const> partials, void* out, int64_t count,
                                  DType type, std::span<const int64_t> cut,
                                  const CallOptions& options = {});

  // `in` is size() blocks of `count`; out = the sum over ranks of block rank().
  void reduce_scatter(const void* in, void* out, int64_t count, DType type,
                      const CallOptions& options = {});
  Work start_reduce_scatter(const void* in, void* out, int64_t count, DType type,
                            const CallOptions& options = {});

  // `out` is size() blocks of `count`; block r = `in` of rank r.
  void all_gather(const void* in, void* out, int64_t count, DType type,
                  const CallOptions& options = {});
  Work start_all_gather(const void* in, void* out, int64_t count, DType type,
                        const CallOptions& options = {});

  // Copies `data` of rank `root` to all ranks.
  void broadcast(void* data, int64_t count, DType type, int root, const CallOptions& options = {});
  Work start_broadcast(void* data, int64_t count, DType type, int root,
                       const CallOptions& options = {});

  // Both are size() blocks of `count`; block r of out = block rank() of `in` of rank r.
  void all_to_all(const void* in, void* out, int64_t count, DType type,
                  const CallOptions& options = {});
  Work start_all_to_all(const void* in, void* out, int64_t count, DType type,
                        const CallOptions& options = {});

  // Returns once every rank has called it.
  void barrier();
  Work start_barrier();

  // Runs a step list of the caller (schedule.h), whose buffers have blocks of `count` elements. All
  // ranks call it, each with the list of its rank, which may be empty.
  void run_list(Schedule list, const void* in, void* out, int64_t count, DType type);

  // Messages with equal peer and tag (below 2^24) arrive in order; lengths must agree.
  void send(int peer, uint32_t tag, std::span<const std::byte> bytes, int rail = 0);
  Work start_send(int peer, uint32_t tag, std::span<const std::byte> bytes, int rail = 0);
  void receive(int peer, uint32_t tag, std::span<std::byte> bytes, int rail = 0);
  Work start_receive(int peer, uint32_t tag, std::span<std::byte> bytes, int rail = 0);
  // A message that goes out only once `first`, which was started on this communicator, has ended:
  // nobody has to wait for that.
  Work start_send_after(const Work& first, int peer, uint32_t tag,
                        std::span<const std::byte> bytes);

  // The oldest operation under way, and the ranks for which it waits. On the first communicator of
  // a family this covers all operations of the family. Any thread. See also
  // EngineOptions::soft_deadline, which holds for sums in shared memory as well.
  std::optional<Stall> oldest() const;
  // To be called when a failure detector has found a loss. Any thread.
  void report_loss(PeerLoss loss) { engine_->report_loss(std::move(loss)); }

 private:
  Communicator(std::shared_ptr<Engine> engine, CommunicatorOptions options);
  void check_fabric(const Fabric& fabric) const;

  struct Call {
    Collective collective;
    const void* in;
    void* out;
    int64_t count;
    DType type;
    int root = 0;
  };
  Work start(const Call& call, const CallOptions& options, bool waits);
  Work start_canonical(std::span<const void* const> partials, void* out, int64_t count, DType type,
                       std::span<const int64_t> cut, const CallOptions& options, bool waits);
  std::shared_ptr<const StepOrder> step_order(Collective collective, Algorithm algorithm,
                                              const ScheduleOptions& options, bool aliased);

  std::optional<Work> start_in_arena(const Call& call, const CallOptions& options, bool waits);
  // The algorithm and pipeline of a call.
  Price decide(Collective collective, int64_t count, DType type, const CallOptions& options);

  CommunicatorOptions options_;
  bool group_ = false;  // made by split()
  std::shared_ptr<Engine> engine_;
  mutable std::mutex mutex_;  // guards what follows
  Fabric fabric_;
  std::map<std::string, Price> decisions_;
  std::map<std::string, std::shared_ptr<const StepOrder>> orders_;
  std::byte flag_{};  // what barriers send
};

}  // namespace ductile::comm
