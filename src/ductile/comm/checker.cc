#include "ductile/comm/checker.h"

#include <deque>
#include <map>
#include <queue>
#include <set>
#include <tuple>

#include "ductile/base/error.h"
#include "ductile/base/rng.h"
#include "ductile/comm/canonical.h"
#include "ductile/comm/step_order.h"

namespace ductile::comm {
namespace {

// What a chunk holds. `label` says which part of whose data it is about, `ranks` (or the leaves of
// a canonical sum) who contributed, `bits` stands for the exact value: equal bits, equal floats.
struct Value {
  int32_t label = -1;  // -1: not written
  uint64_t ranks = 0;
  LeafRange leaves;
  uint64_t bits = 0;  // odd: rounded to the wire format
};

uint64_t rounded(uint64_t bits) { return (bits & 1) != 0 ? bits : (mix(bits, 77) | 1); }

struct Message {
  std::vector<Value> values;
  std::vector<int> shape;
  bool exact;
};

using Route = std::tuple<int, int, int>;  // from, to, rail

class Symbolic {
 public:
  Symbolic(Collective collective, std::span<const Schedule> lists, const CheckOptions& options)
      : collective_(collective), lists_(lists), options_(options), memory_(lists.size()) {
    for (size_t r = 0; r < lists.size(); ++r) prepare(static_cast<int>(r));
  }

  void run() {
    const size_t n = lists_.size();
    std::vector<size_t> next(n, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < n; ++r) {
        for (; next[r] < lists_[r].steps.size(); ++next[r], moved = true) {
          if (!execute(static_cast<int>(r), static_cast<int>(next[r]))) break;
        }
      }
    }
    for (size_t r = 0; r < n; ++r) {
      if (next[r] < lists_[r].steps.size()) {
        const Step& step = lists_[r].steps[next[r]];
        fail(ErrorCode::invalid_argument,
             "rank {} waits for ever at step {} for a message of rank {}", r, next[r], step.peer);
      }
    }
    for (const auto& [route, queue] : wire_) {
      if (!queue.empty()) {
        fail(ErrorCode::invalid_argument, "rank {} sends {} messages that rank {} does not receive",
             std::get<0>(route), queue.size(), std::get<1>(route));
      }
    }
    for (size_t r = 0; r < n; ++r) expect_result(static_cast<int>(r));
  }

 private:
  struct Memory {
    std::vector<Value> in;
    std::vector<Value> out;
    std::vector<Value> scratch;
  };

  bool canonical() const { return !options_.cut.empty(); }

  void prepare(int r) {
    const Schedule& list = lists_[r];
    if (list.rank != r || list.num_ranks != static_cast<int>(lists_.size())) {
      fail(ErrorCode::invalid_argument, "list {} is that of rank {} of {}", r, list.rank,
           list.num_ranks);
    }
    const int k = list.chunks_per_block;
    Memory& m = memory_[r];
    m.in.resize(list.in_blocks * k);
    m.out.resize(list.out_blocks * k);
    m.scratch.resize(list.scratch_chunks);
    std::vector<LeafRange> leaves;
    if (canonical()) {
      leaves = cover(options_.cut.back(), {options_.cut[r], options_.cut[r + 1]});
      if (static_cast<int>(leaves.size()) != list.in_blocks) {
        fail(ErrorCode::invalid_argument, "rank {} has {} partial sums, its list reads {}", r,
             leaves.size(), list.in_blocks);
      }
    }
    for (int c = 0; c < static_cast<int>(m.in.size()); ++c) {
      Value& v = m.in[c];
      v.label = label_of_input(r, c, k);
      if (collective_ == Collective::broadcast && r != options_.root) v.label = -1;
      v.ranks = uint64_t{1} << r;
      if (canonical()) v.leaves = leaves[c / k];
      const int64_t origin = canonical() ? leaves[c / k].begin : r;
      v.bits = mix(mix(v.label, origin), 1) & ~uint64_t{1};
    }
    if (options_.aliased) {
      for (int c = 0; c < k && c < static_cast<int>(m.in.size()); ++c) m.out[c] = m.in[c];
    }
  }

  int label_of_input(int r, int chunk, int k) const {
    const int n = static_cast<int>(lists_.size());
    switch (collective_) {
      case Collective::all_gather:
        return r * k + chunk;
      case Collective::all_to_all:
        return r * n * k + chunk;
      default:
        return canonical() ? chunk % k : chunk;
    }
  }

  Value& at(int r, BufferName buffer, int chunk, int step) {
    Memory& m = memory_[r];
    const bool shared =
        options_.aliased && buffer == BufferName::in && chunk < lists_[r].chunks_per_block;
    auto& values = buffer == BufferName::out || shared ? m.out
                   : buffer == BufferName::in          ? m.in
                                                       : m.scratch;
    if (chunk < 0 || chunk >= static_cast<int>(values.size())) {
      fail(ErrorCode::invalid_argument, "rank {} step {}: there is no chunk {}", r, step, chunk);
    }
    return values[chunk];
  }

  const Value& read(int r, const Chunks& chunks, int i, int step) {
    const Value& v = at(r, chunks.buffer, chunks.begin + i, step);
    if (v.label < 0) {
      fail(ErrorCode::invalid_argument, "rank {} step {} reads chunk {} before it is written", r,
           step, chunks.begin + i);
    }
    return v;
  }

  void write(int r, const Chunks& chunks, int i, int step, const Value& v) {
    if (chunks.buffer == BufferName::in) {
      fail(ErrorCode::invalid_argument, "rank {} step {} writes its input", r, step);
    }
    at(r, chunks.buffer, chunks.begin + i, step) = v;
  }

  Value sum(int r, int step, const Value& a, const Value& b) const {
    if (a.label != b.label) {
      fail(ErrorCode::invalid_argument, "rank {} step {} adds unlike chunks {} and {}", r, step,
           a.label, b.label);
    }
    Value v = a;
    v.ranks |= b.ranks;
    v.bits = mix(std::min(a.bits, b.bits), std::max(a.bits, b.bits)) & ~uint64_t{1};
    if (canonical()) {
      const LeafRange& left = a.leaves.begin < b.leaves.begin ? a.leaves : b.leaves;
      const LeafRange& right = a.leaves.begin < b.leaves.begin ? b.leaves : a.leaves;
      v.leaves = {left.begin, right.end};
      if (left.end != right.begin || !is_node(options_.cut.back(), v.leaves) ||
          left.size() != left_leaves(v.leaves.size())) {
        fail(ErrorCode::invalid_argument,
             "rank {} step {} adds leaves {}..{} and {}..{}, which no node of the tree does", r,
             step, left.begin, left.end, right.begin, right.end);
      }
    } else if (collective_ != Collective::barrier && (a.ranks & b.ranks) != 0) {
      fail(ErrorCode::invalid_argument, "rank {} step {} counts a contribution twice", r, step);
    }
    return v;
  }

  void same_shape(int r, int step, const Chunks& x, const Chunks& y) const {
    bool same = x.count == y.count;
    for (int i = 0; same && i < x.count; ++i) {
      same =
          shape_of(lists_[r], x.buffer, x.begin + i) == shape_of(lists_[r], y.buffer, y.begin + i);
    }
    if (!same) {
      fail(ErrorCode::invalid_argument, "rank {} step {}: operands differ in length", r, step);
    }
  }

  // False: the message is not there yet.
  bool execute(int r, int index) {
    const Step& step = lists_[r].steps[index];
    const int n = static_cast<int>(lists_.size());
    const bool moves =
        step.op == Op::send || step.op == Op::receive || step.op == Op::receive_reduce;
    if (moves && (step.peer < 0 || step.peer >= n || step.peer == r)) {
      fail(ErrorCode::invalid_argument, "rank {} step {}: there is no peer {}", r, index,
           step.peer);
    }
    switch (step.op) {
      case Op::send: {
        Message message{{}, {}, step.exact};
        for (int i = 0; i < step.a.count; ++i) {
          message.values.push_back(read(r, step.a, i, index));
          message.shape.push_back(shape_of(lists_[r], step.a.buffer, step.a.begin + i));
        }
        wire_[{r, step.peer, step.rail}].push_back(std::move(message));
        return true;
      }
      case Op::receive:
      case Op::receive_reduce: {
        auto& queue = wire_[{step.peer, r, step.rail}];
        if (queue.empty()) return false;
        const Message message = std::move(queue.front());
        queue.pop_front();
        bool fits = static_cast<int>(message.values.size()) == step.dst.count &&
                    message.exact == step.exact;
        for (int i = 0; fits && i < step.dst.count; ++i) {
          fits = message.shape[i] == shape_of(lists_[r], step.dst.buffer, step.dst.begin + i);
        }
        if (!fits) {
          fail(ErrorCode::invalid_argument,
               "rank {} step {}: the message of rank {} has another length or format", r, index,
               step.peer);
        }
        if (step.op == Op::receive_reduce) same_shape(r, index, step.dst, step.a);
        for (int i = 0; i < step.dst.count; ++i) {
          Value v = message.values[i];
          if (options_.wire && !step.exact) v.bits = rounded(v.bits);
          if (step.op == Op::receive_reduce) v = sum(r, index, read(r, step.a, i, index), v);
          write(r, step.dst, i, index, v);
        }
        return true;
      }
      case Op::reduce:
        same_shape(r, index, step.dst, step.a);
        same_shape(r, index, step.dst, step.b);
        for (int i = 0; i < step.dst.count; ++i) {
          write(r, step.dst, i, index,
                sum(r, index, read(r, step.a, i, index), read(r, step.b, i, index)));
        }
        return true;
      case Op::copy:
        same_shape(r, index, step.dst, step.a);
        for (int i = 0; i < step.dst.count; ++i) {
          const Value v = read(r, step.a, i, index);
          write(r, step.dst, i, index, v);
        }
        return true;
      case Op::round:
        for (int i = 0; i < step.dst.count; ++i) {
          Value v = read(r, step.dst, i, index);
          if (options_.wire) v.bits = rounded(v.bits);
          write(r, step.dst, i, index, v);
        }
        return true;
    }
    return true;
  }

  void expect_result(int r) {
    const int n = static_cast<int>(lists_.size());
    const int k = lists_[r].chunks_per_block;
    const uint64_t everyone = n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    for (int c = 0; c < lists_[r].out_blocks * k; ++c) {
      const Value& v = memory_[r].out[c];
      int label = c;
      uint64_t ranks = everyone;
      switch (collective_) {
        case Collective::reduce_scatter:
          label = r * k + c;
          break;
        case Collective::all_gather:
          ranks = uint64_t{1} << (c / k);
          break;
        case Collective::all_to_all:
          ranks = uint64_t{1} << (c / k);
          label = (c / k) * n * k + r * k + c % k;
          break;
        case Collective::broadcast:
          ranks = uint64_t{1} << options_.root;
          break;
        default:
          break;
      }
      const bool complete =
          canonical() ? v.leaves == LeafRange{0, options_.cut.back()} : v.ranks == ranks;
      if (v.label != label || !complete) {
        fail(ErrorCode::invalid_argument,
             "rank {} ends with part {} of ranks {:#x} in chunk {}, where part {} of ranks {:#x} "
             "belongs",
             r, v.label, v.ranks, c, label, ranks);
      }
      const bool common = collective_ == Collective::all_reduce ||
                          collective_ == Collective::all_gather ||
                          collective_ == Collective::broadcast;
      if (common && v.bits != memory_[0].out[c].bits) {
        fail(ErrorCode::invalid_argument, "ranks 0 and {} end with different roundings of chunk {}",
             r, c);
      }
    }
  }

  Collective collective_;
  std::span<const Schedule> lists_;
  const CheckOptions& options_;
  std::vector<Memory> memory_;
  std::map<Route, std::deque<Message>> wire_;
};

// The engine at its narrowest: one open receive a rank, in list order; one open send a rail,
// besides those earlier in the list; a send ends when its receive is posted.
class Narrow {
 public:
  explicit Narrow(std::span<const Schedule> lists, bool aliased) : ranks_(lists.size()) {
    for (size_t r = 0; r < lists.size(); ++r) {
      Rank& rank = ranks_[r];
      rank.order = make_step_order(lists[r], aliased);
      rank.waiting = rank.order.num_predecessors;
      for (int i = 0; i < static_cast<int>(rank.waiting.size()); ++i) {
        if (receives(r, i)) rank.receives.push_back(i);
      }
      for (int i = 0; i < static_cast<int>(rank.waiting.size()); ++i) {
        if (rank.order.num_predecessors[i] == 0) ready(static_cast<int>(r), i);
      }
      work_.push(static_cast<int>(r));
    }
  }

  void run() {
    while (!work_.empty()) {
      const int r = work_.front();
      work_.pop();
      advance(r);
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      if (rank.finished == static_cast<int>(rank.waiting.size())) continue;
      fail(ErrorCode::invalid_argument, "deadlock: rank {} finishes {} of {} steps", r,
           rank.finished, rank.waiting.size());
    }
  }

 private:
  struct Rank {
    StepOrder order;
    std::vector<int32_t> waiting;
    std::vector<int> receives;              // in list order
    size_t posted = 0;                      // receives[posted] is open
    bool arrived = false;                   // its message is there
    std::map<int, std::set<int>> sendable;  // by rail
    std::map<int, std::set<int>> open;      // sends, by rail
    int finished = 0;
  };

  bool receives(size_t r, int i) const {
    const Op op = ranks_[r].order.list.steps[i].op;
    return op == Op::receive || op == Op::receive_reduce;
  }

  void ready(int r, int i) {
    Rank& rank = ranks_[r];
    const Step& step = rank.order.list.steps[i];
    if (step.op == Op::send) {
      rank.sendable[step.rail].insert(i);
    } else if (!receives(r, i)) {
      finish(r, i);
    }
  }

  void finish(int r, int i) {
    ++ranks_[r].finished;
    for (const int32_t s : ranks_[r].order.successors(i)) {
      if (--ranks_[r].waiting[s] == 0) ready(r, s);
    }
    work_.push(r);
  }

  void advance(int r) {
    Rank& rank = ranks_[r];
    for (auto& [rail, sendable] : rank.sendable) {
      while (!sendable.empty()) {
        const int i = *sendable.begin();
        auto& open = rank.open[rail];
        if (!open.empty() && i > *open.begin()) break;
        sendable.erase(sendable.begin());
        open.insert(i);
        offered_[{r, rank.order.list.steps[i].peer, rail, rank.order.message[i]}] = i;
        work_.push(rank.order.list.steps[i].peer);
      }
    }
    while (rank.posted < rank.receives.size()) {
      const int i = rank.receives[rank.posted];
      const Step& step = rank.order.list.steps[i];
      if (!rank.arrived) {
        const auto it = offered_.find({step.peer, r, step.rail, rank.order.message[i]});
        if (it == offered_.end()) return;
        const int sent = it->second;
        offered_.erase(it);
        rank.arrived = true;
        ranks_[step.peer].open[step.rail].erase(sent);
        finish(step.peer, sent);
      }
      if (rank.waiting[i] > 0) return;
      rank.arrived = false;
      ++rank.posted;
      finish(r, i);
    }
  }

  std::vector<Rank> ranks_;
  std::map<std::tuple<int, int, int, uint32_t>, int> offered_;
  std::queue<int> work_;
};

}  // namespace

void check_schedules(Collective collective, std::span<const Schedule> lists,
                     const CheckOptions& options) {
  if (lists.empty() || lists.size() > 64) {
    fail(ErrorCode::invalid_argument, "{} lists: the checker takes 1 to 64", lists.size());
  }
  Symbolic(collective, lists, options).run();
  Narrow(lists, options.aliased).run();
}

}  // namespace ductile::comm
