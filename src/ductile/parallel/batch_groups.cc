#include "ductile/parallel/batch_groups.h"

#include <algorithm>
#include <optional>

#include "ductile/base/error.h"

namespace ductile::parallel {
namespace {

using comm::LeafRange;

void add(std::span<double> to, std::span<const double> from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// The sum of a node, in its first leaf.
void sum_node(std::span<std::span<double>> leaves) {
  if (leaves.size() < 2) return;
  const auto left = static_cast<size_t>(comm::left_leaves(static_cast<int64_t>(leaves.size())));
  sum_node(leaves.first(left));
  sum_node(leaves.subspan(left));
  add(leaves[0], leaves[left]);
}

}  // namespace

// One member that is hosted here.
class BatchGroups::Member final : public nn::BatchGroup {
 public:
  Member(BatchGroups& groups, const Part& part, int index)
      : groups_(groups), part_(part), index_(index) {}

  bool moves_running_statistics() const override { return index_ == 0; }

 protected:
  void all_reduce(std::span<double> values) override {
    groups_.leaves_[static_cast<size_t>(index_)] = values;
    groups_.lockstep_.meet(index_, [this] { groups_.sum(part_); });
  }

 private:
  BatchGroups& groups_;
  const Part& part_;
  const int index_;
};

BatchGroups::BatchGroups(int64_t group_size, const ExchangeLayout& layout, int rank,
                         Exchange* exchange)
    : group_size_(group_size), exchange_(exchange) {
  DUCTILE_CHECK(group_size >= 1 && layout.num_virtual_ranks() % group_size == 0,
                "groups of {} among {} virtual ranks", group_size, layout.num_virtual_ranks());
  const auto r = static_cast<size_t>(rank);
  std::vector<Part> local;
  for (const int64_t parity : {0, 1}) {
    for (int64_t v = layout.cut[r]; v < layout.cut[r + 1];) {
      const int64_t group = v / group_size;
      if (group % 2 == parity) {
        Part part = make_part(layout, rank, group);
        (part.peers.empty() ? local : parts_).push_back(std::move(part));
      }
      v = (group + 1) * group_size;
    }
  }
  std::ranges::sort(local, {}, [](const Part& p) { return p.ranks.begin; });
  std::ranges::move(local, std::back_inserter(parts_));
  for (const Part& part : parts_) {
    DUCTILE_CHECK(part.peers.empty() || exchange != nullptr, "a cut group needs an exchange");
  }
}

BatchGroups::Part BatchGroups::make_part(const ExchangeLayout& layout, int rank,
                                         int64_t group) const {
  Part part{};
  const int64_t first = group * group_size_;
  std::vector<LeafRange> pieces;
  for (int r = 0; r < layout.num_workers(); ++r) {
    const auto at = static_cast<size_t>(r);
    const LeafRange own{std::max(layout.cut[at] - first, int64_t{0}),
                        std::min(layout.cut[at + 1] - first, group_size_)};
    if (own.begin >= own.end) continue;
    const std::vector<LeafRange> nodes = comm::cover(group_size_, own);
    if (r == rank) {
      part.ranks = {first + own.begin, first + own.end};
      part.first_piece = pieces.size();
      part.num_pieces = nodes.size();
      for (const LeafRange& n : nodes)
        part.nodes.push_back({n.begin - own.begin, n.end - own.begin});
    } else {
      part.peers.push_back({r, pieces.size(), nodes.size()});
    }
    pieces.insert(pieces.end(), nodes.begin(), nodes.end());
  }
  part.steps = comm::combine_order(group_size_, pieces);
  return part;
}

std::vector<LeafRange> BatchGroups::parts() const {
  std::vector<LeafRange> all;
  for (const Part& part : parts_) all.push_back(part.ranks);
  return all;
}

void BatchGroups::run(size_t index, const std::function<void(int64_t)>& body) {
  const Part& part = parts_[index];
  leaves_.assign(static_cast<size_t>(part.ranks.size()), {});
  lockstep_.run(static_cast<int>(part.ranks.size()), [&](int i) {
    std::optional<Member> member;
    if (group_size_ > 1) member.emplace(*this, part, i);
    const nn::BatchGroupScope scope(member ? &*member : nullptr);
    body(part.ranks.begin + i);
  });
}

// Every member's leaf becomes the sum over the whole group.
void BatchGroups::sum(const Part& part) {
  const size_t size = leaves_[0].size();
  for (const std::span<double>& leaf : leaves_) {
    DUCTILE_CHECK(leaf.size() == size, "members of a group bring {} and {} values", size,
                  leaf.size());
  }
  std::vector<std::span<double>> pieces(part.num_pieces);
  for (size_t i = 0; i < part.nodes.size(); ++i) {
    const auto begin = static_cast<size_t>(part.nodes[i].begin);
    sum_node(std::span(leaves_).subspan(begin, static_cast<size_t>(part.nodes[i].size())));
    pieces[i] = leaves_[begin];
  }
  if (!part.peers.empty()) {
    std::vector<std::span<double>> own = std::move(pieces);
    sent_.clear();
    for (const std::span<double>& piece : own)
      sent_.insert(sent_.end(), piece.begin(), piece.end());
    received_.resize(size * (part.steps.size() + 1));  // a piece each; the own ones' stay unused
    pieces.clear();
    for (size_t i = 0; i <= part.steps.size(); ++i) {
      pieces.push_back(std::span(received_).subspan(i * size, size));
    }
    std::vector<PeerMessage> messages;
    for (const Peer& peer : part.peers) {
      messages.push_back({peer.rank, std::as_writable_bytes(std::span(received_).subspan(
                                         peer.first_piece * size, peer.num_pieces * size))});
    }
    exchange_->trade(std::as_bytes(std::span(sent_)), messages);
    std::ranges::copy(own, pieces.begin() + static_cast<ptrdiff_t>(part.first_piece));
  }
  for (const comm::Combine& step : part.steps) {
    add(pieces[static_cast<size_t>(step.left)], pieces[static_cast<size_t>(step.right)]);
  }
  for (const std::span<double>& leaf : leaves_) {
    if (leaf.data() != pieces[0].data()) std::ranges::copy(pieces[0], leaf.begin());
  }
}

}  // namespace ductile::parallel
