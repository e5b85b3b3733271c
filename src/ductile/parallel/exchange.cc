#include "ductile/parallel/exchange.h"

#include <algorithm>
#include <deque>
#include <map>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/comm/shm_collectives.h"
#include "ductile/comm/shm_transport.h"

namespace ductile::parallel {
namespace {

using comm::LeafRange;

// At least one, which a worker without virtual ranks fills with zeros.
size_t most_nodes(const ExchangeLayout& layout) {
  size_t most = 1;
  for (int r = 0; r < layout.num_workers(); ++r) most = std::max(most, layout.nodes(r).size());
  return most;
}

size_t vector_bytes(const ExchangeLayout& layout) {
  return static_cast<size_t>(layout.vector_size) * sizeof(float);
}

std::span<float> floats(std::byte* at, int64_t count) {
  return {reinterpret_cast<float*>(at), static_cast<size_t>(count)};
}

class SharedExchange final : public Exchange {
 public:
  SharedExchange(std::shared_ptr<comm::Arena> arena, ExchangeLayout layout)
      : Exchange(std::move(layout), arena->rank()),
        arena_(std::move(arena)),
        transport_(comm::make_shm_transport(arena_)),
        votes_(arena_->allocate(sizeof(uint64_t) * layout_.cut.size())) {
    for (size_t i = 0; i < most_nodes(layout_); ++i) {
      partials_.push_back(arena_->allocate(vector_bytes(layout_)));
    }
    for (size_t r = 0; r < layout_.cut.size(); ++r) vote_bounds_.push_back(r);
    if (layout_.reduction == Reduction::fast) {
      sum_ = partials_.front();
      return;
    }
    sum_ = arena_->allocate(vector_bytes(layout_));
    std::vector<LeafRange> pieces;
    for (int r = 0; r < layout_.num_workers(); ++r) {
      const std::vector<LeafRange> nodes = layout_.nodes(r);
      for (size_t i = 0; i < nodes.size(); ++i) {
        inputs_.push_back(r == rank() ? partials_[i] : arena_->peer(r, partials_[i]));
      }
      pieces.insert(pieces.end(), nodes.begin(), nodes.end());
    }
    steps_ = comm::combine_order(layout_.num_virtual_ranks(), pieces);
  }

  int rank() const override { return arena_->rank(); }

  std::span<float> partial(size_t i) override { return floats(partials_[i], layout_.vector_size); }

  std::span<const float> reduce() override {
    const auto size = static_cast<size_t>(layout_.vector_size);
    if (layout_.reduction == Reduction::canonical) {
      comm::all_reduce_combine(*arena_, DType::f32, inputs_, steps_, sum_, size);
    } else {
      if (nodes_.empty()) std::ranges::fill(partial(0), 0.0F);
      comm::all_reduce(*arena_, DType::f32, sum_, size);
    }
    return floats(sum_, layout_.vector_size);
  }

  uint64_t largest(uint64_t value) override {
    const auto slots = reinterpret_cast<uint64_t*>(votes_);
    slots[rank()] = value;
    comm::all_gather(*arena_, DType::i64, votes_, vote_bounds_);
    const uint64_t result = *std::max_element(slots, slots + layout_.num_workers());
    comm::barrier(*arena_);  // all have read before anybody writes again
    return result;
  }

  void send(int peer, std::span<const std::byte> bytes) override {
    comm::Transfer transfer;
    transport_->send(peer, sent_[peer]++, bytes, transfer);
    finish(transfer);
  }

  void receive(int peer, std::span<std::byte> bytes) override {
    comm::Transfer transfer;
    transport_->receive(peer, received_[peer]++, bytes, transfer);
    finish(transfer);
  }

  void trade(std::span<const std::byte> bytes, std::span<const PeerMessage> theirs) override {
    std::deque<comm::Transfer> transfers;
    for (const PeerMessage& m : theirs) {
      transport_->receive(m.peer, received_[m.peer]++, m.bytes, transfers.emplace_back());
      transport_->send(m.peer, sent_[m.peer]++, bytes, transfers.emplace_back());
    }
    for (const comm::Transfer& transfer : transfers) finish(transfer);
  }

  void fail(const std::string& reason) override { arena_->fail({{}, reason}); }

 private:
  void finish(const comm::Transfer& transfer) {
    while (!transfer.settled()) transport_->progress(std::chrono::milliseconds(100));
    if (transfer.state.load() == comm::Transfer::State::failed) arena_->check();
  }

  std::shared_ptr<comm::Arena> arena_;
  std::unique_ptr<comm::Transport> transport_;
  std::byte* votes_;                 // a word a worker
  std::vector<size_t> vote_bounds_;  // 0, 1 ...
  std::byte* sum_ = nullptr;         // with Reduction::fast the partial itself
  std::vector<std::byte*> partials_;
  std::vector<const std::byte*> inputs_;  // of all workers, in leaf order
  std::vector<comm::Combine> steps_;
  std::map<int, comm::Tag> sent_, received_;  // messages so far, by peer: their tags
};

class MessageExchange final : public Exchange {
 public:
  MessageExchange(std::unique_ptr<comm::Communicator> communicator, ExchangeLayout layout)
      : Exchange(std::move(layout), communicator->rank()), communicator_(std::move(communicator)) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      partials_.emplace_back(layout_.vector_size);
      inputs_.push_back(partials_.back().data());
    }
    if (layout_.reduction == Reduction::canonical) {
      sum_ = AlignedArray<float>(layout_.vector_size);
    } else if (partials_.empty()) {
      partials_.emplace_back(layout_.vector_size);
    }
  }

  int rank() const override { return communicator_->rank(); }
  std::span<float> partial(size_t i) override { return partials_[i].span(); }

  std::span<const float> reduce() override {
    if (layout_.reduction == Reduction::canonical) {
      communicator_->canonical_all_reduce(inputs_, sum_.data(), layout_.vector_size, DType::f32,
                                          layout_.cut);
      return sum_.span();
    }
    const std::span<float> part = partials_.front().span();
    if (nodes_.empty()) std::ranges::fill(part, 0.0F);
    communicator_->all_reduce(part.data(), part.data(), layout_.vector_size, DType::f32,
                              {.wire = layout_.wire});
    return part;
  }

  uint64_t largest(uint64_t value) override {
    auto largest = static_cast<int64_t>(value);
    communicator_->all_reduce(&largest, &largest, 1, DType::i64,
                              {.reduction = comm::Reduction::max});
    return static_cast<uint64_t>(largest);
  }

  void send(int peer, std::span<const std::byte> bytes) override {
    communicator_->send(peer, 0, bytes);
  }
  void receive(int peer, std::span<std::byte> bytes) override {
    communicator_->receive(peer, 0, bytes);
  }

  void trade(std::span<const std::byte> bytes, std::span<const PeerMessage> theirs) override {
    std::vector<comm::Work> works;
    for (const PeerMessage& m : theirs) {
      works.push_back(communicator_->start_receive(m.peer, 0, m.bytes));
      works.push_back(communicator_->start_send(m.peer, 0, bytes));
    }
    for (comm::Work& work : works) work.wait();
  }

  void fail(const std::string& reason) override { communicator_->report_loss({{}, reason}); }

 private:
  std::unique_ptr<comm::Communicator> communicator_;
  std::vector<AlignedArray<float>> partials_;
  std::vector<const void*> inputs_;
  AlignedArray<float> sum_;  // with Reduction::fast it is the partial
};

}  // namespace

std::vector<LeafRange> ExchangeLayout::nodes(int rank) const {
  const auto r = static_cast<size_t>(rank);
  if (reduction == Reduction::fast) {
    if (cut[r] == cut[r + 1]) return {};
    return {{cut[r], cut[r + 1]}};
  }
  return comm::cover(num_virtual_ranks(), {cut[r], cut[r + 1]});
}

Exchange::Exchange(ExchangeLayout layout, int rank)
    : layout_(std::move(layout)), nodes_(layout_.nodes(rank)) {
  DUCTILE_CHECK(!layout_.wire || layout_.reduction == Reduction::fast,
                "a wire format would change the canonical sum");
}

size_t arena_bytes(const ExchangeLayout& layout) {
  constexpr size_t kSlack = size_t{4} << 20;  // alignment, rings, votes
  const size_t page = size_t{2} << 20;
  return (most_nodes(layout) + 1) * (vector_bytes(layout) + page) + kSlack;
}

std::unique_ptr<Exchange> make_exchange(std::shared_ptr<comm::Arena> arena, ExchangeLayout layout) {
  DUCTILE_CHECK(arena->size() == layout.num_workers(), "{} workers in an arena of {}",
                layout.num_workers(), arena->size());
  return std::make_unique<SharedExchange>(std::move(arena), std::move(layout));
}

std::unique_ptr<Exchange> make_exchange(std::unique_ptr<comm::Communicator> communicator,
                                        ExchangeLayout layout) {
  DUCTILE_CHECK(communicator->size() == layout.num_workers(), "{} workers and {} ranks",
                layout.num_workers(), communicator->size());
  return std::make_unique<MessageExchange>(std::move(communicator), std::move(layout));
}

}  // namespace ductile::parallel
