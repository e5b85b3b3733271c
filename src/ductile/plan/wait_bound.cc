#include <algorithm>
#include <cmath>

#include "ductile/graph/reduce.h"
#include "ductile/plan/infinity_impl.h"
#include "ductile/plan/wait_bound_impl.h"

namespace ductile::plan {

namespace {

constexpr double kInexact = 1e-9;   // relative: sums differ in their last bits
constexpr size_t kMostLabels = 16;  // kept per state

}  // namespace

Gates::Gates(const SearchSpace& space)
    : space_(space),
      read_by_(space.states().size()),
      ends_(space.states().size(), false),
      begins_behind_(space.states().size(), false),
      bytes_(space.states().size(), 0) {
  const graph::Topology& topology = space.topology();
  const auto edges = graph::transitive_reduction(topology);
  const int num = static_cast<int>(space.states().size());
  for (int s = 0; s < num; ++s) {
    for (const auto& [u, v] : edges) {
      if (space.rest_contains(s, u) && !space.rest_contains(s, v)) read_by_[s].push_back(v);
    }
    for (OpId v = 0; v < topology.num_ops(); ++v) {
      const bool inside = space.rest_contains(s, v);
      if (inside && topology.successors(v).empty()) ends_[s] = true;
      if (!inside && topology.predecessors(v).empty()) begins_behind_[s] = true;
    }
  }
  if (space.is_chain()) note_bytes();
}

void Gates::note_bytes() {
  const size_t n = space_.chain().size();
  std::vector<double> read(n, -1);  // from the operator before
  for (const graph::Edge& e : space_.graph().edges) {
    const int to = space_.chain_position(e.to);
    if (space_.chain_position(e.from) + 1 == to) read[to] = std::max(read[to], e.bytes);
  }
  if (std::any_of(read.begin() + 1, read.end(), [](double bytes) { return bytes < 0; })) return;
  for (size_t s = 0; s < bytes_.size(); ++s) {
    const int size = space_.states()[s].size;
    if (size > 0 && size < static_cast<int>(n)) bytes_[s] = read[size];
  }
}

bool Gates::all_pass(int from, int to) const {
  if (ends_[to] || begins_behind_[from]) return false;
  return std::all_of(read_by_[to].begin(), read_by_[to].end(),
                     [&](OpId v) { return space_.rest_contains(from, v); });
}

WaitBound::WaitBound(const SearchSpace& space, const StageTable& table, const PathFlow& flow,
                     const Gates& gates, const PathBound& paths)
    : space_(space),
      table_(table),
      flow_(flow),
      gates_(gates),
      paths_(paths),
      num_micro_(static_cast<double>(table.micro_batches())),
      labels_(space.states().size()) {}

bool WaitBound::fits(double seconds, int64_t& steps) {
  const int last = static_cast<int>(space_.states().size()) - 1;
  Limits limits;
  limits.seconds = seconds * (1 + kInexact);
  limits.weight = table_.capacity() * (1 + kInexact);
  for (std::vector<Label>& labels : labels_) labels.clear();
  labels_[last].push_back({});
  taken_ = 0;
  for (int s = last - 1; s >= 0; --s) {
    limits.work = num_micro_ * (paths_.work(0) - paths_.work(s));
    limits.behind = limits.work / limits.seconds;
    for (const Cell& cell : table_.cells()) {
      if (cell.weight + limits.behind > limits.weight) break;
      const double most = cell.weight * limits.seconds / num_micro_;
      for (int i = paths_.count_up_to(s, most * (1 + kInexact)); i-- > 0;) {
        extend(s, paths_.transition(s, i), cell, limits);
      }
      if (taken_ > steps) break;
    }
    if (taken_ > steps) {
      steps = 0;
      return true;
    }
  }
  steps -= taken_;
  return !labels_[0].empty();
}

// The stage of a transition from `state`, in this cell, after each label of the state before it.
void WaitBound::extend(int state, int transition, const Cell& cell, const Limits& limits) {
  const int to = space_.transitions()[transition].to;
  const std::vector<Label>& before = labels_[to];
  ++taken_;
  const double room = limits.weight - cell.weight - limits.behind;
  if (before.empty() || before.front().weight > room) return;
  const StageLeast c = table_.least(state, transition, cell);
  const double whole = c.forward + c.backward_input + c.backward_weight;
  const double own = std::max(num_micro_ * whole + c.sync, c.forward + num_micro_ * c.messages);
  if (own > limits.seconds) return;
  StageCost memory;
  if (!table_.cost_of_one(state, transition, cell, cell.keep, memory) &&
      (cell.again < 0 || !table_.cost_of_one(state, transition, cell, cell.again, memory))) {
    return;
  }
  const PathFlow::Through flow = flow_.through(state, transition, to);
  const double in = flow.in.round_trip;
  const bool all_pass = gates_.all_pass(state, to);
  const bool all_enter = all_pass && gates_.all_enter(state, to);
  const double bytes = gates_.bytes(to);
  const double message = bytes > 0 ? cell.least_latency + bytes * cell.least_per_byte : 0;
  const double there_and_back = num_micro_ * (c.forward + c.backward_input);
  const double ahead = flow.round_out * c.forward + in * message;
  const double back =
      flow.round_out * c.backward_input + in * message + flow.turns * (c.backward_weight + c.sync);
  for (const Label& l : before) {
    if (l.weight > room) break;
    const double head = all_enter ? std::max(l.head + message, l.gate_head) : l.gate_head;
    const double tail = all_enter ? std::max(l.tail + message, l.gate_tail) : l.gate_tail;
    if (head + own > limits.seconds) continue;
    if (head + there_and_back + tail > limits.seconds) continue;
    Label next = l;
    next.weight += cell.weight;
    next.head += ahead;
    next.tail += back;
    if (all_pass) {
      next.gate_head = head + c.forward;
      next.gate_tail = c.backward_input + std::max(tail, c.backward_weight + c.sync);
    }
    if (limits.work > 0) {  // all stages behind wait as long as that
      const double left = limits.seconds - next.gate_head;
      if (left <= 0 || next.weight + limits.work / left > limits.weight) continue;
    }
    ++taken_;
    add(labels_[state], next, limits);
  }
}

void WaitBound::add(std::vector<Label>& labels, const Label& label, const Limits& limits) const {
  size_t at = 0;
  for (; at < labels.size() && labels[at].weight <= label.weight; ++at) {
    if (labels[at].is_no_worse(label)) return;
  }
  const auto from = labels.begin() + static_cast<long>(at);
  labels.erase(
      std::remove_if(from, labels.end(), [&](const Label& l) { return label.is_no_worse(l); }),
      labels.end());
  labels.insert(labels.begin() + static_cast<long>(at), label);
  if (labels.size() <= kMostLabels) return;
  // The two neighbours that differ least become one.
  size_t least = 0;
  double difference = kInfinity;
  for (size_t i = 0; i + 1 < labels.size(); ++i) {
    const Label &a = labels[i], &b = labels[i + 1];
    const double times = std::abs(a.head - b.head) + std::abs(a.tail - b.tail) +
                         std::abs(a.gate_head - b.gate_head) + std::abs(a.gate_tail - b.gate_tail);
    const double d = (b.weight - a.weight) / limits.weight * (times / limits.seconds);
    if (d < difference) difference = d, least = i;
  }
  Label& a = labels[least];
  const Label& b = labels[least + 1];
  a.head = std::min(a.head, b.head);
  a.tail = std::min(a.tail, b.tail);
  a.gate_head = std::min(a.gate_head, b.gate_head);
  a.gate_tail = std::min(a.gate_tail, b.gate_tail);
  labels.erase(labels.begin() + static_cast<long>(least) + 1);
}

}  // namespace ductile::plan
