#include "ductile/parallel/exchange.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include "ductile/base/aligned_array.h"
#include "ductile/base/error.h"
#include "ductile/comm/reduce_kernels.h"
#include "ductile/comm/shm_collectives.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/parallel/summands_impl.h"

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

// The additions that make one sum of the pieces of all workers, which are in leaf order.
std::vector<comm::Combine> additions(const ExchangeLayout& layout,
                                     std::span<const LeafRange> pieces) {
  if (layout.reduction == Reduction::canonical) {
    return comm::combine_order(layout.num_virtual_ranks(), pieces);
  }
  std::vector<comm::Combine> steps;
  for (size_t i = 1; i < pieces.size(); ++i) steps.push_back({0, static_cast<int>(i)});
  return steps;
}

// out = the sum of `inputs`, vectors of n floats, by `steps`.
void combine(std::span<const float* const> inputs, std::span<const comm::Combine> steps, float* out,
             int64_t n) {
  constexpr int64_t kPiece = 1024;  // of all values together in the cache next to the core
  const int64_t num_pieces = (n + kPiece - 1) / kPiece;
#pragma omp parallel if (num_pieces > 64)
  {
    std::vector<float> scratch(inputs.size() * kPiece);
    std::vector<const float*> value(inputs.size());
#pragma omp for schedule(static)
    for (int64_t p = 0; p < num_pieces; ++p) {
      const int64_t begin = p * kPiece, count = std::min(kPiece, n - begin);
      for (size_t v = 0; v < inputs.size(); ++v) value[v] = inputs[v] + begin;
      for (size_t s = 0; s < steps.size(); ++s) {
        const auto left = static_cast<size_t>(steps[s].left);
        const auto right = static_cast<size_t>(steps[s].right);
        float* const to = s + 1 == steps.size() ? out + begin : &scratch[left * kPiece];
        comm::add(DType::f32, reinterpret_cast<std::byte*>(to),
                  reinterpret_cast<const std::byte*>(value[left]),
                  reinterpret_cast<const std::byte*>(value[right]), static_cast<size_t>(count));
        value[left] = to;
      }
      if (steps.empty()) std::copy_n(value[0], count, out + begin);
    }
  }
}

// The same where it may be that nothing is added.
void combine_some(std::span<const float* const> inputs, std::span<const comm::Combine> steps,
                  float* out, int64_t n) {
  if (inputs.empty()) {
    std::fill_n(out, n, 0.0F);
  } else {
    combine(inputs, steps, out, n);
  }
}

void trade_by(comm::Communicator& communicator, std::span<const std::byte> bytes,
              std::span<const PeerMessage> theirs) {
  std::vector<comm::Work> works;
  for (const PeerMessage& m : theirs) {
    works.push_back(communicator.start_receive(m.peer, 0, m.bytes));
    works.push_back(communicator.start_send(m.peer, 0, bytes));
  }
  for (const comm::Work& work : works) work.wait();
}

ReceiveMemory receive_memory_in(comm::Arena& arena, const ExchangeLayout& layout) {
  if (arena.size() == 1 || layout.message_bytes == 0) return {};
  return {{arena.allocate(layout.message_bytes), layout.message_bytes}, arena.memory()};
}

class SharedExchange final : public Exchange {
 public:
  SharedExchange(std::shared_ptr<comm::Arena> arena, ExchangeLayout layout,
                 comm::EngineOptions engine)
      : Exchange(std::move(layout), arena->rank()),
        arena_(std::move(arena)),
        transport_(comm::make_shm_transport(arena_)),
        engine_(std::move(engine)),
        summands_(layout_),
        votes_(arena_->allocate(sizeof(uint64_t) * layout_.cut.size())) {
    for (size_t i = 0; i < most_nodes(layout_); ++i) {
      partials_.push_back(arena_->allocate(vector_bytes(layout_)));
    }
    for (size_t r = 0; r < layout_.cut.size(); ++r) vote_bounds_.push_back(r);
    // Alone there is one node, and nothing to add.
    const bool in_place =
        !layout_.in_parts && (layout_.reduction == Reduction::fast || arena_->size() == 1);
    sum_ = in_place ? partials_.front() : arena_->allocate(vector_bytes(layout_));
    if (layout_.in_parts) gathered_ = arena_->allocate(vector_bytes(layout_));
    std::vector<LeafRange> pieces;
    for (int r = 0; r < layout_.num_workers(); ++r) {
      const std::vector<LeafRange> nodes = layout_.nodes(r);
      for (size_t i = 0; i < nodes.size(); ++i) {
        inputs_.push_back(r == rank() ? partials_[i] : arena_->peer(r, partials_[i]));
      }
      pieces.insert(pieces.end(), nodes.begin(), nodes.end());
    }
    steps_ = additions(layout_, pieces);
    receive_memory_ = receive_memory_in(*arena_, layout_);
  }

  int rank() const override { return arena_->rank(); }

  std::span<float> partial(size_t i) override { return floats(partials_[i], layout_.vector_size); }
  // The additions take the cores that the backward pass needs.
  void ready(int64_t /*begin*/) override {}
  bool sums_early() const override { return false; }

  std::span<const float> reduce_from(int64_t from) override {
    const int64_t begin = from / 16 * 16;  // on a cache line
    const auto size = static_cast<size_t>(layout_.vector_size - begin);
    const size_t skipped = static_cast<size_t>(begin) * sizeof(float);
    if (layout_.reduction == Reduction::canonical) {
      if (sum_ == partials_.front()) return floats(sum_, layout_.vector_size);
      std::vector<const std::byte*> inputs;
      for (const std::byte* input : inputs_) inputs.push_back(input + skipped);
      comm::all_reduce_combine(*arena_, DType::f32, inputs, steps_, sum_ + skipped, size);
    } else {
      if (nodes_.empty()) std::ranges::fill(partial(0), 0.0F);
      comm::all_reduce(*arena_, DType::f32, sum_ + skipped, size);
    }
    return floats(sum_, layout_.vector_size);
  }

  std::span<const float> reduce_parts(std::span<const std::vector<FloatRange>> wanted) override {
    DUCTILE_CHECK(layout_.in_parts, "this exchange sums whole vectors");
    comm::barrier(*arena_);  // all partials are there
    const std::span<float> sum = floats(sum_, layout_.vector_size);
    std::vector<const float*> inputs;
    for (const FloatRange& range : wanted[static_cast<size_t>(rank())]) {
      for (const Summands::Piece& piece : summands_.pieces(range)) {
        inputs.clear();
        for (const int s : piece.summands) {
          const std::byte* const input = inputs_[static_cast<size_t>(s)];
          inputs.push_back(reinterpret_cast<const float*>(input) + piece.range.begin);
        }
        combine_some(inputs, summands_.among(steps_, piece.summands),
                     sum.data() + piece.range.begin, piece.range.end - piece.range.begin);
      }
    }
    return sum;
  }

  void all_gather(std::span<std::byte> data, std::span<const size_t> bounds) override {
    DUCTILE_CHECK(bounds.back() <= vector_bytes(layout_) && gathered_ != nullptr,
                  "{} bytes are gathered in place of a vector's {}", bounds.back(),
                  vector_bytes(layout_));
    const auto own = static_cast<size_t>(rank());
    const auto copy = [&](const std::byte* from, std::byte* to, size_t r) {
      std::copy(from + bounds[r], from + bounds[r + 1], to + bounds[r]);
    };
    copy(data.data(), gathered_, own);
    comm::barrier(*arena_);
    for (size_t r = 0; r + 1 < bounds.size(); ++r) {
      if (r != own) copy(arena_->peer(static_cast<int>(r), gathered_), data.data(), r);
    }
    comm::barrier(*arena_);  // all have read before anybody writes again
  }

  uint64_t largest(uint64_t value) override {
    const auto slots = reinterpret_cast<uint64_t*>(votes_);
    slots[rank()] = value;
    comm::all_gather(*arena_, DType::i64, votes_, vote_bounds_);
    // Nobody writes to these slots before this worker has begun the next gather.
    return *std::max_element(slots, slots + layout_.num_workers());
  }

  void send(int peer, std::span<const std::byte> bytes) override {
    if (messages_) return messages_->send(peer, 0, bytes);
    comm::Transfer transfer;
    transport_->send(peer, sent_[peer]++, bytes, transfer);
    finish(transfer, {"send", peer, sent_[peer], bytes.size()});
  }

  void receive(int peer, std::span<std::byte> bytes) override {
    if (messages_) return messages_->receive(peer, 0, bytes);
    comm::Transfer transfer;
    transport_->receive(peer, received_[peer]++, bytes, transfer);
    finish(transfer, {"receive", peer, received_[peer], bytes.size()});
  }

  void trade(std::span<const std::byte> bytes, std::span<const PeerMessage> theirs) override {
    if (messages_) return trade_by(*messages_, bytes, theirs);
    std::deque<comm::Transfer> receives, sends;
    for (const PeerMessage& m : theirs) {
      transport_->receive(m.peer, received_[m.peer]++, m.bytes, receives.emplace_back());
      transport_->send(m.peer, sent_[m.peer]++, bytes, sends.emplace_back());
    }
    for (size_t i = 0; i < theirs.size(); ++i) {
      const int peer = theirs[i].peer;
      finish(receives[i], {"receive", peer, received_[peer], theirs[i].bytes.size()});
      finish(sends[i], {"send", peer, sent_[peer], bytes.size()});
    }
  }

  comm::Communicator* messages() override {
    if (arena_->size() == 1) return nullptr;
    if (!messages_) {
      comm::CommunicatorOptions options;
      options.engine = engine_;
      messages_ = std::make_unique<comm::Communicator>(std::move(transport_), std::move(options));
    }
    return messages_.get();
  }

  ReceiveMemory receive_memory() const override { return receive_memory_; }

  void fail(const std::string& reason) override { arena_->fail({{}, reason}); }

 private:
  struct Message {
    const char* verb;
    int peer;
    comm::Tag number;  // of this direction, from 1
    size_t bytes;
  };

  void finish(const comm::Transfer& transfer, const Message& message) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    bool told = engine_.soft_deadline.count() == 0 || !engine_.on_stall;
    while (!transfer.settled()) {
      transport_->progress(std::chrono::milliseconds(100));
      const Clock::duration waited = Clock::now() - begin;
      if (told || waited < engine_.soft_deadline || transfer.settled()) continue;
      told = true;
      comm::Stall stall;
      stall.operation = fmt::format("{} of {} bytes", message.verb, message.bytes);
      stall.sequence = message.number;
      stall.ranks = {message.peer};
      stall.seconds = std::chrono::duration<double>(waited).count();
      engine_.on_stall(stall);
    }
    if (transfer.state.load() == comm::Transfer::State::failed) arena_->check();
  }

  std::shared_ptr<comm::Arena> arena_;
  std::unique_ptr<comm::Transport> transport_;  // until messages_ has it
  const comm::EngineOptions engine_;            // of messages_; its soft deadline of all
  const Summands summands_;
  std::byte* votes_;                 // a word a worker
  std::vector<size_t> vote_bounds_;  // 0, 1 ...
  std::byte* sum_ = nullptr;         // in place: the partial itself
  std::byte* gathered_ = nullptr;    // what this worker gives in all_gather(); in_parts alone
  std::vector<std::byte*> partials_;
  std::vector<const std::byte*> inputs_;  // of all workers, in leaf order
  std::vector<comm::Combine> steps_;
  ReceiveMemory receive_memory_;
  std::map<int, comm::Tag> sent_, received_;  // messages so far, by peer: their tags
  std::unique_ptr<comm::Communicator> messages_;
};

class MessageExchange final : public Exchange {
 public:
  MessageExchange(std::unique_ptr<comm::Communicator> communicator, ExchangeLayout layout,
                  comm::Arena* arena)
      : Exchange(std::move(layout), communicator->rank()),
        summands_(layout_),
        started_from_(tail_begin()),
        communicator_(std::move(communicator)) {
    for (size_t i = 0; i < nodes_.size(); ++i) {  // pages that are never filled take no memory
      partials_.push_back(layout_.contributions.empty()
                              ? AlignedArray<float>(layout_.vector_size)
                              : AlignedArray<float>::uninitialized(layout_.vector_size));
    }
    std::vector<LeafRange> pieces;
    for (int r = 0; r < layout_.num_workers(); ++r) {
      const std::vector<LeafRange> nodes = layout_.nodes(r);
      pieces.insert(pieces.end(), nodes.begin(), nodes.end());
    }
    steps_ = additions(layout_, pieces);
    if (layout_.reduction == Reduction::canonical || layout_.in_parts) {
      sum_ = AlignedArray<float>::uninitialized(layout_.vector_size);
    } else if (partials_.empty()) {
      partials_.emplace_back(layout_.vector_size);
    }
    if (arena != nullptr) receive_memory_ = receive_memory_in(*arena, layout_);
  }

  int rank() const override { return communicator_->rank(); }
  std::span<float> partial(size_t i) override { return partials_[i].span(); }
  bool sums_early() const override {
    return !layout_.in_parts && layout_.piece_size > 0 && layout_.piece_size < layout_.vector_size;
  }

  void ready(int64_t begin) override {
    if (!sums_early()) return;
    while (started_from_ > 0) {
      const int64_t piece =
          (started_from_ - 1) / layout_.piece_size * layout_.piece_size;  // the next one's begin
      if (piece < begin) break;
      start_sums(piece, started_from_ - piece);
      started_from_ = piece;
    }
  }

  std::span<const float> reduce_from(int64_t begin) override {
    const bool fast = layout_.reduction == Reduction::fast;
    const std::span<float> sum = fast ? partials_.front().span() : sum_.span();
    if (fast && nodes_.empty()) std::ranges::fill(sum, 0.0F);
    if (sums_early() && begin == 0) {
      ready(0);
      if (layout_.exact_tail > 0) start_sums(tail_begin(), layout_.exact_tail);
      wait_for_sums();
      started_from_ = tail_begin();
    } else {
      start_sums(begin, layout_.vector_size - begin);
      wait_for_sums();
    }
    return sum;
  }

  // Each worker gets from each other what that has of the wanted elements, and adds them up itself:
  // the bytes of a reduce-scatter. With a wire format all parts are rounded, the own ones too, so
  // that the holders of one element get the same sum.
  std::span<const float> reduce_parts(std::span<const std::vector<FloatRange>> wanted) override {
    const auto rounds = [&](const FloatRange& range) { return range.begin < exact_from(); };
    const std::vector<FloatRange>& own = wanted[static_cast<size_t>(rank())];
    std::vector<comm::Work> works;
    std::vector<std::vector<std::byte>> outgoing;  // narrowed
    const auto travelling = [&](size_t node, const FloatRange& range) {
      const std::span<const float> part = partials_[node].span().subspan(
          static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
      if (!rounds(range)) return std::as_bytes(part);
      std::vector<std::byte>& narrow = outgoing.emplace_back(part.size() * size_of(*layout_.wire));
      comm::narrow(*layout_.wire, narrow.data(), part.data(), part.size());
      return std::as_bytes(std::span(narrow));
    };
    std::vector<std::vector<std::byte>> incoming;
    struct Sum {
      Summands::Piece piece;
      std::vector<std::span<const std::byte>> values;
    };
    std::vector<Sum> sums;
    for (const FloatRange& range : own) {
      for (Summands::Piece& piece : summands_.pieces(range)) {
        Sum& sum = sums.emplace_back();
        for (const int s : piece.summands) {
          const auto [worker, node] = summands_.place(s);
          if (worker == rank()) {
            sum.values.push_back(travelling(node, piece.range));
            continue;
          }
          std::vector<std::byte>& place =
              incoming.emplace_back(static_cast<size_t>(piece.range.end - piece.range.begin) *
                                    (rounds(piece.range) ? size_of(*layout_.wire) : sizeof(float)));
          sum.values.push_back(place);
          works.push_back(communicator_->start_receive(worker, kPartsTag, place));
        }
        sum.piece = std::move(piece);
      }
    }
    for (int r = 0; r < layout_.num_workers(); ++r) {
      if (r == rank()) continue;
      for (const FloatRange& range : wanted[static_cast<size_t>(r)]) {
        for (const Summands::Piece& piece : summands_.pieces(range)) {
          for (const int s : piece.summands) {
            const auto [worker, node] = summands_.place(s);
            if (worker != rank()) continue;
            works.push_back(communicator_->start_send(r, kPartsTag, travelling(node, piece.range)));
          }
        }
      }
    }
    for (const comm::Work& work : works) work.wait();
    for (const Sum& sum : sums) {
      const FloatRange& range = sum.piece.range;
      const int64_t count = range.end - range.begin;
      std::vector<AlignedArray<float>> wide;
      std::vector<const float*> inputs;
      for (const std::span<const std::byte> value : sum.values) {
        if (!rounds(range)) {
          inputs.push_back(reinterpret_cast<const float*>(value.data()));
          continue;
        }
        wide.push_back(AlignedArray<float>::uninitialized(count));
        comm::widen(*layout_.wire, wide.back().data(), value.data(), static_cast<size_t>(count));
        inputs.push_back(wide.back().data());
      }
      combine_some(inputs, summands_.among(steps_, sum.piece.summands), sum_.data() + range.begin,
                   count);
    }
    return sum_.span();
  }

  void all_gather(std::span<std::byte> data, std::span<const size_t> bounds) override {
    const auto part = [&](int r) {
      const auto i = static_cast<size_t>(r);
      return data.subspan(bounds[i], bounds[i + 1] - bounds[i]);
    };
    std::vector<comm::Work> works;
    for (int r = 0; r < layout_.num_workers(); ++r) {
      if (r == rank()) continue;
      if (!part(r).empty()) works.push_back(communicator_->start_receive(r, kGatherTag, part(r)));
      if (!part(rank()).empty()) {
        works.push_back(communicator_->start_send(r, kGatherTag, part(rank())));
      }
    }
    for (const comm::Work& work : works) work.wait();
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
    trade_by(*communicator_, bytes, theirs);
  }

  comm::Communicator* messages() override {
    return communicator_->size() == 1 ? nullptr : communicator_.get();
  }
  ReceiveMemory receive_memory() const override { return receive_memory_; }

  void fail(const std::string& reason) override { communicator_->report_loss({{}, reason}); }

 private:
  std::vector<const void*> inputs(int64_t begin) const {
    std::vector<const void*> all;
    for (const AlignedArray<float>& p : partials_) all.push_back(p.data() + begin);
    return all;
  }

  void start_sums(int64_t begin, int64_t count) {
    if (layout_.reduction == Reduction::canonical) {
      sums_.push_back(communicator_->start_canonical_all_reduce(inputs(begin), sum_.data() + begin,
                                                                count, DType::f32, layout_.cut));
      return;
    }
    const int64_t rounded = std::clamp<int64_t>(exact_from() - begin, 0, count);
    const auto start = [&](int64_t at, int64_t size, std::optional<DType> wire) {
      float* const part = partials_.front().data() + at;
      if (size > 0)
        sums_.push_back(
            communicator_->start_all_reduce(part, part, size, DType::f32, {.wire = wire}));
    };
    start(begin, rounded, layout_.wire);
    start(begin + rounded, count - rounded, std::nullopt);
  }

  void wait_for_sums() {
    for (const comm::Work& work : sums_) work.wait();
    sums_.clear();
  }

  int64_t tail_begin() const { return layout_.vector_size - layout_.exact_tail; }
  // Elements from here on are never rounded.
  int64_t exact_from() const { return layout_.wire ? tail_begin() : int64_t{0}; }

  // Beside tag 0, that of send() and receive().
  static constexpr uint32_t kPartsTag = 1, kGatherTag = 2;

  const Summands summands_;
  std::vector<AlignedArray<float>> partials_;
  AlignedArray<float> sum_;       // with Reduction::fast and not in parts it is the partial
  std::vector<comm::Work> sums_;  // of the present step
  int64_t started_from_;          // they cover the elements from here to the tail
  ReceiveMemory receive_memory_;
  std::unique_ptr<comm::Communicator> communicator_;  // first to end: it uses the memory above
  std::vector<comm::Combine> steps_;
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

std::vector<FloatRange> ExchangeLayout::filled(const LeafRange& ranks) const {
  if (contributions.empty()) return {{0, vector_size}};
  std::vector<FloatRange> all;
  for (int64_t v = ranks.begin; v < ranks.end; ++v) {
    const std::vector<FloatRange>& own = contributions[static_cast<size_t>(v)];
    all.insert(all.end(), own.begin(), own.end());
  }
  return united(std::move(all));
}

Exchange::Exchange(ExchangeLayout layout, int rank)
    : layout_(std::move(layout)), nodes_(layout_.nodes(rank)) {
  DUCTILE_CHECK(!layout_.wire || layout_.reduction == Reduction::fast,
                "a wire format would change the canonical sum");
  DUCTILE_CHECK(layout_.contributions.empty() || layout_.in_parts,
                "a sum in one piece reads all of every partial");
}

void send_text(Exchange& exchange, int to, std::string_view text) {
  const uint64_t size = text.size();
  exchange.send(to, std::as_bytes(std::span(&size, 1)));
  exchange.send(to, std::as_bytes(std::span(text)));
}

std::string receive_text(Exchange& exchange, int from) {
  uint64_t size = 0;
  exchange.receive(from, std::as_writable_bytes(std::span(&size, 1)));
  std::string text(size, '\0');
  exchange.receive(from, std::as_writable_bytes(std::span(text)));
  return text;
}

size_t arena_bytes(const ExchangeLayout& layout) {
  constexpr size_t kSlack = size_t{4} << 20;  // alignment, rings, votes
  const size_t page = size_t{2} << 20;
  const size_t vectors = most_nodes(layout) + (layout.in_parts ? 2 : 1);
  return vectors * (vector_bytes(layout) + page) + layout.message_bytes + page + kSlack;
}

std::unique_ptr<Exchange> make_exchange(std::shared_ptr<comm::Arena> arena, ExchangeLayout layout,
                                        comm::EngineOptions engine) {
  DUCTILE_CHECK(arena->size() == layout.num_workers(), "{} workers in an arena of {}",
                layout.num_workers(), arena->size());
  return std::make_unique<SharedExchange>(std::move(arena), std::move(layout), std::move(engine));
}

std::unique_ptr<Exchange> make_exchange(std::unique_ptr<comm::Communicator> communicator,
                                        ExchangeLayout layout,
                                        const std::shared_ptr<comm::Arena>& arena) {
  DUCTILE_CHECK(communicator->size() == layout.num_workers(), "{} workers and {} ranks",
                layout.num_workers(), communicator->size());
  return std::make_unique<MessageExchange>(std::move(communicator), std::move(layout), arena.get());
}

}  // namespace ductile::parallel
