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

// How one call is to be done; equal on all ranks.
struct CallOptions {
  Algorithm algorithm = Algorithm::automatic;
  Reduction reduction = Reduction::sum;
  std::optional<DType> wire;  // f16 or bf16: f32 travels as that, is added in f32, rounded once
  int pipeline = 0;           // pieces a share is cut into (schedule.h); 0: the cost model chooses
};

struct CommunicatorOptions {
  Topology topology;  // num_ranks is taken from the transport
  EngineOptions engine;
  // Links by which algorithms are chosen, equal on all ranks; see also calibrate.h. Without it, a
  // guess of the shape of `topology`.
  std::optional<Fabric> fabric;
  // Memory shared by all ranks of the communicator, for communicators within one host: sums,
  // broadcasts and barriers then go through it, unless a call names an algorithm. Best where the
  // data lie in it. It is finished together with the communicator.
  std::shared_ptr<Arena> arena;
};

// The collectives on pointer + count + type. Every rank calls the same ones, in the same order,
// with equal counts, types and options. Each comes in two forms: one that returns when this rank is
// done, and one (`start_`) that returns a handle at once; memory stays in place and untouched until
// then. `in` may be `out` where both have `count` elements; otherwise they do not overlap, except
// that the `in` of all_gather may be the own block of `out`. Pointers need no alignment. Any thread
// may call, as long as the order is the same on all ranks.
//
// Failure: once a peer is lost every call and handle, on every thread, throws peer_lost with the
// reason; the communicator is then finished. Contents of `out` are unspecified after that.
//
// Sub-groups: a communicator and those split off it, and off these, are one family. They share the
// transport and the failure: who loses a peer in one of them loses it in all, whether or not that
// peer is a member. Everything else is each one's own: ranks, order of calls, tags, algorithms.
// Several may be used at the same time, from any threads, and members may call in another order on
// another communicator. They are destroyed in any order; the transport goes with the last.
// Errors, and the words of the soft deadline, number ranks as the first communicator does.
class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options = {});
  // Operations under way end with `unavailable`. Where others of the family are left they are ended
  // alike, since what is under way cannot be taken back: wait() first.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // The communicator of some of these ranks: rank i of it is rank ranks[i] of this one. Each rank
  // of the list calls it, with the same list; the others need not, and take no notice. It is a call
  // like the others: ranks that are in several lists together come to them in the same order.
  // Blocks until all members have come; cheap otherwise (two rounds of small messages, no
  // connections, no threads). At most 4095 sub-groups of a rank at a time.
  //
  // Its hosts and links are those of its members, its grid is chosen anew; calibrate() and
  // set_fabric() of either do not change the other. Where all ranks share memory (options.arena),
  // so do the members; data in place then lie at the same offset of each member's region.
  //
  // Throws, before anything is sent, invalid_argument for a rank that does not exist or is in the
  // list twice, and where this rank is not in it. Where members come with different lists all of
  // them throw conflict, naming two of them and their lists, and the family is finished.
  std::unique_ptr<Communicator> split(std::span<const int> ranks);

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  const Topology& topology() const { return options_.topology; }
  // Of the first communicator of the family, by own rank.
  std::vector<int> first_ranks() const;

  // The memory shared by all ranks, to allocate from; null where there is none, and on a sub-group,
  // which uses that of its parent.
  Arena* arena() const { return group_ ? nullptr : options_.arena.get(); }

  // What the choice of algorithms rests on. set_fabric: all ranks, with equal values, at the same
  // place in their order of calls.
  Fabric fabric() const;
  void set_fabric(Fabric fabric);
  // How a call of `count` elements would be done, and why.
  Choice choice(Collective collective, int64_t count, DType type, const CallOptions& options = {});
  bool uses_arena(Collective collective, DType type, const CallOptions& options = {}) const;

  // out[i] = sum over ranks of in[i].
  void all_reduce(const void* in, void* out, int64_t count, DType type,
                  const CallOptions& options = {});
  Work start_all_reduce(const void* in, void* out, int64_t count, DType type,
                        const CallOptions& options = {});

  // The canonical sum (canonical.h): cut[r] .. cut[r + 1] - 1 are the virtual ranks of rank r, and
  // `partials` the sums of the nodes of cover(V, own range), in order. Equal bits for every cut.
  // partials[0] may be `out`. options.algorithm is ignored; with a wire format the sums travel in
  // full and the result is rounded once.
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

  // `data` of `root` to all.
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

  // A list of the caller's own (schedule.h); its buffers have blocks of `count` elements. All ranks
  // call it, each with the list of its rank, which may be empty.
  void run_list(Schedule list, const void* in, void* out, int64_t count, DType type);

  // Messages with equal peer and tag (below 2^24) arrive in order; lengths must agree.
  void send(int peer, uint32_t tag, std::span<const std::byte> bytes, int rail = 0);
  Work start_send(int peer, uint32_t tag, std::span<const std::byte> bytes, int rail = 0);
  void receive(int peer, uint32_t tag, std::span<std::byte> bytes, int rail = 0);
  Work start_receive(int peer, uint32_t tag, std::span<std::byte> bytes, int rail = 0);

  // What the oldest operation under way is and which ranks it waits for; on the first of a family,
  // of all the family's. Any thread. See also EngineOptions::soft_deadline, which holds for sums in
  // shared memory as well.
  std::optional<Stall> oldest() const;
  // A failure detector's verdict. Any thread.
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
