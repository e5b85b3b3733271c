#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ductile/comm/canonical.h"
#include "ductile/nn/batch_group.h"
#include "ductile/parallel/exchange.h"
#include "ductile/parallel/lockstep.h"

namespace ductile::parallel {

// Distributed batch norm as one worker sees it: the virtual ranks of a job normalise in groups of
// equal size (train.bn_group), ranks k * size .. (k + 1) * size - 1 in group k. The members of a
// group that this worker hosts run in lock-step; they sum with the members in other workers through
// the exchange. Sums are taken in the order of the canonical tree over the group's members
// (canonical.h), so they have the same bits for every cut.
//
// One thread at a time calls run(). After an error, such as peer_lost, no thread is left inside a
// body; if the exchange still works, run() may be called again.
class BatchGroups {
 public:
  // `group_size` divides the number of virtual ranks. The exchange carries the sums of groups that
  // are cut between workers, and outlives this object; it is nullptr if no group is cut.
  BatchGroups(int64_t group_size, const ExchangeLayout& layout, int rank, Exchange* exchange);

  // The virtual ranks hosted here, by group, in the order in which they are to run. Groups that are
  // shared with other workers come first, and of these the ones with even numbers, so that
  // neighbours work on the same group at the same time.
  std::vector<comm::LeafRange> parts() const;

  // Runs body(v) for each virtual rank of parts()[part], one after the other up to each batch norm.
  // The body may run on any thread; the group is that thread's current one, unless it has only one
  // member.
  void run(size_t part, const std::function<void(int64_t)>& body);

 private:
  class Member;
  // Another worker's nodes of a group.
  struct Peer {
    int rank;
    size_t first_piece, num_pieces;
  };
  struct Part {
    comm::LeafRange ranks;               // hosted here
    std::vector<comm::LeafRange> nodes;  // of the tree over the group, from ranks.begin = 0 on
    size_t first_piece;                  // of these among the group's
    size_t num_pieces;
    std::vector<Peer> peers;
    std::vector<comm::Combine> steps;
  };

  Part make_part(const ExchangeLayout& layout, int rank, int64_t group) const;
  void sum(const Part& part);

  const int64_t group_size_;
  Exchange* const exchange_;
  std::vector<Part> parts_;
  Lockstep lockstep_;
  std::vector<std::span<double>> leaves_;  // what the members of the running part bring
  std::vector<double> sent_, received_;
};

}  // namespace ductile::parallel
