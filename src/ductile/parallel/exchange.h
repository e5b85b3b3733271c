#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ductile/base/dtype.h"
#include "ductile/comm/arena.h"
#include "ductile/comm/canonical.h"
#include "ductile/comm/communicator.h"

namespace ductile::parallel {

// In which order the workers' parts are added.
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
  // bf16 or f16: what sums travel in between hosts; with Reduction::fast alone.
  std::optional<DType> wire = std::nullopt;
  // So many elements at the end of the vector (counts, figures) travel in fp32 whatever `wire` is.
  int64_t exact_tail = 0;
  // The sum is asked for in parts (reduce_parts()), never as a whole.
  bool in_parts = false;
  // Elements that are summed at once while partials are still being filled (ready()), where that
  // pays: between hosts. 0: all at once, at the end.
  int64_t piece_size = 0;

  int num_workers() const { return static_cast<int>(cut.size()) - 1; }
  int64_t num_virtual_ranks() const { return cut.back(); }
  // What worker `rank` sums by itself, in leaf order: nodes of the canonical tree, or all its ranks
  // at once.
  std::vector<comm::LeafRange> nodes(int rank) const;
};

// A message that one of several peers is to send.
struct PeerMessage {
  int peer = 0;
  std::span<std::byte> bytes;
};

// Elements begin .. end - 1 of a vector.
struct FloatRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// What the workers of one generation say to each other: the canonical sum of a step, the vote on
// it, and the state that joiners are fed. All workers call the same functions in the same order,
// but for send(), receive() and trade(), which pair up.
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
  // Where the sum of nodes()[i] goes; to be filled anew for each reduce().
  virtual std::span<float> partial(size_t i) = 0;
  // While the last partial is being filled: all partials are final from element `begin` on, and the
  // exchange may begin to sum there. `begin` falls from call to call until reduce(); optional. Does
  // not wait.
  virtual void ready(int64_t begin) = 0;
  // Whether ready() is of any use.
  virtual bool sums_early() const = 0;
  // The sum over all virtual ranks, the same bits on every worker (and, canonical, for every cut).
  // Valid until a partial is written again.
  std::span<const float> reduce() { return reduce_from(0); }
  // The same of the elements from `begin` on alone; those below are unspecified. ready() was not
  // called.
  virtual std::span<const float> reduce_from(int64_t begin) = 0;

  // As reduce(), where worker r needs the elements wanted[r] alone; the others are unspecified.
  // `wanted` is the same on all workers. Partials are read by the others until the next call of
  // largest() or all_gather(), which has to come before they are filled again.
  virtual std::span<const float> reduce_parts(std::span<const std::vector<FloatRange>> wanted) = 0;

  // Bytes bounds[r] .. bounds[r + 1] - 1 of `data` go from worker r to all. Same bounds on all;
  // bounds.back() at most the bytes of a vector.
  virtual void all_gather(std::span<std::byte> data, std::span<const size_t> bounds) = 0;

  // The largest of the workers' values.
  virtual uint64_t largest(uint64_t value) = 0;
  // Messages between two workers, in order; lengths agree.
  virtual void send(int peer, std::span<const std::byte> bytes) = 0;
  virtual void receive(int peer, std::span<std::byte> bytes) = 0;

  // Sends `bytes` to each of the peers and receives theirs, all at once; they do the same.
  virtual void trade(std::span<const std::byte> bytes, std::span<const PeerMessage> theirs) = 0;

  // Ends the exchange here: at once on the workers of the same arena, elsewhere when it is
  // destroyed or the controller tells them.
  virtual void fail(const std::string& reason) = 0;

 protected:
  Exchange(ExchangeLayout layout, int rank);

  ExchangeLayout layout_;
  std::vector<comm::LeafRange> nodes_;
};

// How much memory of each worker's arena region such an exchange takes.
size_t arena_bytes(const ExchangeLayout& layout);

// Workers of one host: partial sums lie in the arena, and every worker sums its share of the vector
// straight from the memory of all. Nothing else may use the arena.
std::unique_ptr<Exchange> make_exchange(std::shared_ptr<comm::Arena> arena, ExchangeLayout layout);

// Workers anywhere.
std::unique_ptr<Exchange> make_exchange(std::unique_ptr<comm::Communicator> communicator,
                                        ExchangeLayout layout);

}  // namespace ductile::parallel
