#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/dtype.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/canonical.h"
#include "ductile/comm/communicator.h"
#include "ductile/parallel/float_range.h"

namespace ductile::parallel {

// The order in which the workers' parts are added.
enum class Reduction {
  canonical,  // that of one fixed tree: the same bits for every spread of virtual ranks
  fast,       // whichever is quickest: all workers get the same bits, other spreads other ones
};

// Who sums what in one generation of a job: worker r hosts the virtual ranks cut[r] ..
// cut[r + 1] - 1; their vectors have `vector_size` floats.
struct ExchangeLayout {
  std::vector<int64_t> cut;
  int64_t vector_size = 0;
  Reduction reduction = Reduction::canonical;
  // The type in which sums travel between hosts, bf16 or f16; only with Reduction::fast.
  std::optional<DType> wire = std::nullopt;
  // The number of elements at the end of the vector (counts, figures) that travel in fp32 whatever
  // `wire` is.
  int64_t exact_tail = 0;
  // The sum is always asked for in parts (reduce_parts()), never as a whole.
  bool in_parts = false;
  // The number of elements that are summed together while partials are still being filled
  // (ready()); this pays between hosts. 0, or in parts: all elements are summed together, at the
  // end.
  int64_t piece_size = 0;
  // In parts alone: where each virtual rank has something, in ascending ranges. Elsewhere it is
  // zero (+0, so that adding it changes no bit), and its partial is neither filled nor read there.
  // Empty: every rank has something everywhere.
  std::vector<std::vector<FloatRange>> contributions = {};
  // The memory of each worker for what it receives by Exchange::messages(), where workers share
  // memory (Exchange::receive_memory).
  size_t message_bytes = 0;

  int num_workers() const { return static_cast<int>(cut.size()) - 1; }
  int64_t num_virtual_ranks() const { return cut.back(); }
  // What worker `rank` sums without the others, in leaf order: nodes of the canonical tree, or all
  // its virtual ranks together.
  std::vector<comm::LeafRange> nodes(int rank) const;
  // The elements in which some of these virtual ranks have something.
  std::vector<FloatRange> filled(const comm::LeafRange& ranks) const;
};

// Memory that stays there while `keeps` lives.
struct ReceiveMemory {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> keeps;
};

// A message that one of several peers is to send.
struct PeerMessage {
  int peer = 0;
  std::span<std::byte> bytes;
};

// Carries what the workers of one generation say to each other: the sum of a step, the vote on it,
// and the state for workers that join. All workers call the same functions in the same order,
// except send(), receive() and trade(), which pair up.
//
// One thread at a time; fail() from any. Once a peer is lost every call throws peer_lost, at once
// and on every worker; the exchange is then finished. The last sum that reduce() returned stays
// what it was.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual int rank() const = 0;
  const ExchangeLayout& layout() const { return layout_; }
  // The nodes this worker sums.
  std::span<const comm::LeafRange> nodes() const { return nodes_; }
  // The vector for the sum of nodes()[i]; the caller fills it again for each reduce(), where the
  // node's virtual ranks have something (ExchangeLayout::filled).
  virtual std::span<float> partial(size_t i) = 0;
  // Tells the exchange, while the last partial is being filled, that all partials are final from
  // element `begin` to the exact tail, so that it may begin to sum there; the tail is final when
  // reduce() is called. `begin` falls from call to call until then. The calls are optional and do
  // not wait.
  virtual void ready(int64_t begin) = 0;
  // Whether ready() is of any use.
  virtual bool sums_early() const = 0;
  // The sum over all virtual ranks, with the same bits on every worker; a canonical sum has the
  // same bits for every cut. It is valid until a partial is written again.
  std::span<const float> reduce() { return reduce_from(0); }
  // The same for the elements from `begin` on; those below are unspecified. ready() must not have
  // been called.
  virtual std::span<const float> reduce_from(int64_t begin) = 0;

  // As reduce(), but worker r needs only the elements wanted[r]; its other elements are
  // unspecified. `wanted` is the same on all workers. The other workers read the partials until the
  // next call of largest() or all_gather(), which has to come before the partials are filled again.
  virtual std::span<const float> reduce_parts(std::span<const std::vector<FloatRange>> wanted) = 0;

  // Sends bytes bounds[r] .. bounds[r + 1] - 1 of `data` from worker r to all. The bounds are the
  // same on all workers, and bounds.back() is at most the size of a vector in bytes.
  virtual void all_gather(std::span<std::byte> data, std::span<const size_t> bounds) = 0;

  // The largest of the workers' values.
  virtual uint64_t largest(uint64_t value) = 0;
  // Messages between two workers, which arrive in order. The lengths on both sides agree.
  virtual void send(int peer, std::span<const std::byte> bytes) = 0;
  virtual void receive(int peer, std::span<std::byte> bytes) = 0;

  // Sends `bytes` to each of the peers and receives theirs, all at the same time; each peer makes
  // the same call.
  virtual void trade(std::span<const std::byte> bytes, std::span<const PeerMessage> theirs) = 0;

  // The same workers, for messages of the caller's own between the sums, under tags from kFirstTag
  // on; it lives as long as the exchange. nullptr for a worker that is alone. All workers call this
  // for the first time at the same point.
  virtual comm::Communicator* messages() = 0;
  static constexpr uint32_t kFirstTag = 16;
  // Where receives of messages() had best be posted: peers on this host put what they send straight
  // there (comm/shm_transport.h). layout().message_bytes, or nothing where no peer shares memory
  // with this worker. Once the exchange has failed, what lies there may still change.
  virtual ReceiveMemory receive_memory() const = 0;

  // Ends the exchange here. Workers in the same arena notice at once; others notice when this
  // exchange is destroyed, or when the controller tells them.
  virtual void fail(const std::string& reason) = 0;

 protected:
  Exchange(ExchangeLayout layout, int rank);

  ExchangeLayout layout_;
  std::vector<comm::LeafRange> nodes_;
};

// A text of any length, to one worker that calls receive_text().
void send_text(Exchange& exchange, int to, std::string_view text);
std::string receive_text(Exchange& exchange, int from);

// The memory that such an exchange takes of each worker's arena region.
size_t arena_bytes(const ExchangeLayout& layout);

// An exchange between the workers on one host: partial sums lie in the arena, and every worker sums
// its share of the vector directly from the memory of all. Nothing else may use the arena.
// `engine`: of its messages(); the soft deadline is that of send(), receive() and trade() as well.
std::unique_ptr<Exchange> make_exchange(std::shared_ptr<comm::Arena> arena, ExchangeLayout layout,
                                        comm::EngineOptions engine = {});

// An exchange between workers on any hosts, by messages.
// `arena`: of the workers on this host, if messages go through one. It has regions of at least
// layout.message_bytes, and nothing else may use them.
std::unique_ptr<Exchange> make_exchange(std::unique_ptr<comm::Communicator> communicator,
                                        ExchangeLayout layout,
                                        const std::shared_ptr<comm::Arena>& arena = nullptr);

}  // namespace ductile::parallel
