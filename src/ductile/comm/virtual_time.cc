#include "ductile/comm/virtual_time.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

enum class Kind : uint8_t { completed, offered, link_free, arrived };

struct Event {
  double at;
  uint64_t order;  // ties: first come, first served
  Kind kind;
  int rank;  // or link
  int32_t step;
  friend bool operator>(const Event& a, const Event& b) {
    return std::tie(a.at, a.order) > std::tie(b.at, b.order);
  }
};

struct Waiting {
  int32_t step;
  int rank;
  friend bool operator>(const Waiting& a, const Waiting& b) {
    return std::tie(a.step, a.rank) > std::tie(b.step, b.rank);
  }
};

// One way out of a host, or into it.
struct Wire {
  const Link* link = nullptr;
  double free = 0;
  double carried = 0;  // bytes
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> queue;

  double duration(double bytes) {
    const double before = carried;
    carried += bytes;
    return bytes_seconds(*link, bytes, before);
  }
};

class VirtualTime {
 public:
  VirtualTime(std::span<const StepOrder> orders, const Fabric& fabric, const Load& load)
      : orders_(orders), fabric_(fabric), topology_(fabric.topology()), load_(load) {
    ranks_.resize(orders.size());
    for (size_t r = 0; r < orders.size(); ++r) {
      Rank& rank = ranks_[r];
      const StepOrder& order = orders[r];
      rank.waiting = order.num_predecessors;
      rank.arrived.assign(rank.waiting.size(), false);
      for (int32_t i = 0; i < static_cast<int32_t>(rank.waiting.size()); ++i) {
        const Step& s = order.list.steps[i];
        if (s.op == Op::receive || s.op == Op::receive_reduce) {
          rank.receive[{s.peer, s.rail}].push_back(i);
        }
      }
    }
  }

  VirtualRun run() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (int32_t i = 0; i < static_cast<int32_t>(ranks_[r].waiting.size()); ++i) {
        if (orders_[r].num_predecessors[i] == 0) become_ready(static_cast<int>(r), i, 0);
      }
    }
    while (!events_.empty()) {
      const Event e = events_.top();
      events_.pop();
      switch (e.kind) {
        case Kind::completed:
          complete(e.rank, e.step, e.at);
          break;
        case Kind::offered: {
          if (inside(e.rank, orders_[e.rank].list.steps[e.step].peer)) {
            hand_over(e.rank, e.step, e.at);
            break;
          }
          const int wire = wire_out(e.rank, orders_[e.rank].list.steps[e.step]);
          wires_[wire].queue.push({e.step, e.rank});
          dispatch(wire, e.at);
          break;
        }
        case Kind::link_free:
          dispatch(e.rank, e.at);
          break;
        case Kind::arrived:
          ranks_[e.rank].arrived[e.step] = true;
          if (ranks_[e.rank].waiting[e.step] == 0) absorb(e.rank, e.step, e.at);
          break;
      }
    }
    VirtualRun result;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      DUCTILE_CHECK(ranks_[r].finished == static_cast<int>(ranks_[r].waiting.size()),
                    "rank {} is stuck in virtual time", r);
      result.rank_seconds.push_back(ranks_[r].end);
      result.seconds = std::max(result.seconds, ranks_[r].end);
    }
    for (int rail = 0; rail < topology_.num_rails; ++rail) {
      double bytes = 0;
      for (const auto& [key, index] : wire_index_) {
        const auto& [out, a, b, on] = key;
        if (out == 1 && a == topology_.host_of(0) && on == rail) bytes += wires_[index].carried;
      }
      result.rail_bytes.push_back(bytes);
    }
    return result;
  }

 private:
  struct Rank {
    std::vector<int32_t> waiting;
    std::vector<bool> arrived;
    std::map<std::pair<int, int>, std::vector<int32_t>> receive;  // by (peer, rail)
    double busy_until = 0;
    double end = 0;
    int finished = 0;
  };

  void post(double at, Kind kind, int rank, int32_t step) {
    events_.push({at, order_++, kind, rank, step});
  }

  double elements(int r, const Chunks& run) const {
    return static_cast<double>(
        run_elements(orders_[r].list, run, load_.elements, load_.element_size));
  }

  double bytes(int r, const Step& step, const Chunks& run) const {
    const size_t size = load_.wire_size > 0 && !step.exact ? load_.wire_size : load_.element_size;
    return elements(r, run) * static_cast<double>(size);
  }

  bool inside(int a, int b) const { return topology_.host_of(a) == topology_.host_of(b); }

  const Link& link(int a, int b) const { return inside(a, b) ? fabric_.inside : fabric_.between; }

  int wire(int kind, int a, int b, int rail, const Link& link) {
    const auto [it, fresh] =
        wire_index_.emplace(std::tuple(kind, a, b, rail), static_cast<int>(wires_.size()));
    if (fresh) {
      wires_.emplace_back();
      wires_.back().link = &link;
    }
    return it->second;
  }

  // Within a host bytes are moved by the processors of the two ranks, half by each.
  double moving(int r, const Step& s, const Chunks& run) const {
    return inside(r, s.peer) ? bytes_seconds(fabric_.inside, bytes(r, s, run)) / 2 : 0;
  }

  // One wire a rail, or, where links are point to point, one for each neighbour.
  int wire_out(int r, const Step& s) {
    const int to = topology_.both_directions ? topology_.host_of(s.peer) : -1;
    return wire(1, topology_.host_of(r), to, s.rail % topology_.num_rails, fabric_.between);
  }
  int wire_in(int r, const Step& s) {
    const int from = topology_.both_directions ? topology_.host_of(r) : -1;
    return wire(3, topology_.host_of(s.peer), from, s.rail % topology_.num_rails, fabric_.between);
  }

  // Processor time: one thing after the other.
  double work(int r, double at, double seconds) {
    Rank& rank = ranks_[r];
    rank.busy_until = std::max(rank.busy_until, at) + seconds;
    return rank.busy_until;
  }

  void become_ready(int r, int32_t i, double at) {
    const Step& s = orders_[r].list.steps[i];
    switch (s.op) {
      case Op::send:
        if (elements(r, s.a) == 0) return post(at, Kind::completed, r, i);
        return post(work(r, at, link(r, s.peer).overhead + moving(r, s, s.a)), Kind::offered, r, i);
      case Op::receive:
      case Op::receive_reduce:
        if (elements(r, s.dst) == 0) return post(at, Kind::completed, r, i);
        if (ranks_[r].arrived[i]) absorb(r, i, at);
        return;
      default: {
        const double size = elements(r, s.dst) * static_cast<double>(load_.element_size);
        return post(work(r, at, size / fabric_.reduce_bandwidth), Kind::completed, r, i);
      }
    }
  }

  void absorb(int r, int32_t i, double at) {
    const Step& s = orders_[r].list.steps[i];
    double seconds = link(r, s.peer).overhead + moving(r, s, s.dst);
    if (s.op == Op::receive_reduce) {
      seconds +=
          elements(r, s.dst) * static_cast<double>(load_.element_size) / fabric_.reduce_bandwidth;
    }
    post(work(r, at, seconds), Kind::completed, r, i);
  }

  void complete(int r, int32_t i, double at) {
    Rank& rank = ranks_[r];
    ++rank.finished;
    rank.end = std::max(rank.end, at);
    for (const int32_t next : orders_[r].successors(i)) {
      if (--rank.waiting[next] == 0) become_ready(r, next, at);
    }
  }

  // A message within a host.
  void hand_over(int r, int32_t i, double at) {
    const Step& s = orders_[r].list.steps[i];
    post(at, Kind::completed, r, i);
    const auto& receives = ranks_[s.peer].receive.at({r, s.rail});
    post(at + fabric_.inside.latency, Kind::arrived, s.peer, receives.at(orders_[r].message[i]));
  }

  void dispatch(int index, double at) {
    if (wires_[index].queue.empty() || wires_[index].free > at) return;
    const auto [i, r] = wires_[index].queue.top();
    wires_[index].queue.pop();
    const Step& s = orders_[r].list.steps[i];
    const double size = bytes(r, s, s.a);
    const Link& link = *wires_[index].link;
    const double seconds = wires_[index].duration(size);
    wires_[index].free = at + seconds;
    post(at + seconds, Kind::link_free, index, 0);
    post(at + seconds, Kind::completed, r, i);
    Wire& in = wires_[wire_in(r, s)];
    const double end = std::max(at + link.latency, in.free) + in.duration(size);
    in.free = end;
    const auto& receives = ranks_[s.peer].receive.at({r, s.rail});
    post(end, Kind::arrived, s.peer, receives.at(orders_[r].message[i]));
  }

  std::span<const StepOrder> orders_;
  const Fabric& fabric_;
  Topology topology_;
  Load load_;
  std::vector<Rank> ranks_;
  std::vector<Wire> wires_;
  std::map<std::tuple<int, int, int, int>, int> wire_index_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
};

}  // namespace

VirtualRun run_in_virtual_time(std::span<const StepOrder> orders, const Fabric& fabric,
                               const Load& load) {
  return VirtualTime(orders, fabric, load).run();
}

VirtualRun run_in_virtual_time(Collective collective, Algorithm algorithm, const Fabric& fabric,
                               const Load& load, const ScheduleOptions& options) {
  const Topology topology = fabric.topology();
  std::vector<StepOrder> orders;
  for (int r = 0; r < topology.num_ranks; ++r) {
    orders.push_back(make_step_order(make_schedule(collective, algorithm, topology, r, options)));
  }
  return run_in_virtual_time(orders, fabric, load);
}

}  // namespace ductile::comm
