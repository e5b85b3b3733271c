#include "ductile/plan/testing/slow_evaluate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace ductile::plan {
namespace {

struct Message {
  int edge;
  bool gradient;
  int64_t index;  // micro-batch of the sender
  double arrives;
  bool arrived = false;
};

struct Slow {
  const Plan& plan;
  const PlanCosts& costs;
  const Orders& orders;
  bool split = plan.schedule == ScheduleKind::zero_bubble;
  double now = 0;
  size_t n = plan.stages.size();
  std::vector<size_t> next = std::vector<size_t>(n);      // entry of the order
  std::vector<double> ends = std::vector<double>(n, -1);  // of the running task; -1: none
  std::vector<double> last_end = std::vector<double>(n);
  std::vector<double> busy = std::vector<double>(n);
  std::map<std::tuple<size_t, Task, int64_t>, bool> is_done;  // of tasks that have started
  std::vector<Message> messages;
  std::map<int, std::vector<double>> sending, receiving;  // by unit: until when, each card
  std::vector<double> peak = std::vector<double>(n);
  std::vector<int64_t> peak_in_flight = std::vector<int64_t>(n);

  int64_t index_of(size_t s, size_t entry) const {
    return std::count(orders[s].begin(), orders[s].begin() + long(entry), orders[s][entry]);
  }
  bool done(size_t s, Task t, int64_t i) const {
    const auto at = is_done.find({s, t, i});
    return at != is_done.end() && at->second;
  }
  bool has_arrived(int edge, bool gradient, int64_t sample) const {
    const StageEdge& e = costs.stages.edges[edge];
    const int64_t size = plan.stages[gradient ? e.to : e.from].micro_batch;
    return std::any_of(messages.begin(), messages.end(), [&](const Message& m) {
      return m.edge == edge && m.gradient == gradient && m.index == sample / size && m.arrived;
    });
  }
  bool ready(size_t s) const {
    if (next[s] == orders[s].size()) return false;
    const Task task = orders[s][next[s]];
    const int64_t i = index_of(s, next[s]), b = plan.stages[s].micro_batch;
    if (task == Task::backward_weight) return done(s, Task::backward, i);
    if (task == Task::backward && !done(s, Task::forward, i)) return false;
    for (int edge = 0; edge < int(costs.stages.edges.size()); ++edge) {
      const StageEdge& e = costs.stages.edges[edge];
      if ((task == Task::forward ? e.to : e.from) != int(s)) continue;
      for (int64_t sample = i * b; sample < (i + 1) * b; ++sample) {
        if (!has_arrived(edge, task == Task::backward, sample)) return false;
      }
    }
    for (const Message& m : messages) {
      const bool ours = m.gradient && costs.stages.edges[m.edge].to == int(s);
      if (task == Task::backward && ours && m.index < i - 1 && !m.arrived) return false;
    }
    return true;
  }
  // The first `count` of a unit's cards to be free, as references into them.
  std::vector<double*> first_free(std::map<int, std::vector<double>>& of, int unit, int count) {
    std::vector<double>& cards = of[unit];
    cards.resize(size_t(costs.devices[unit]));
    std::vector<double*> all;
    for (double& card : cards) all.push_back(&card);
    std::stable_sort(all.begin(), all.end(), [](double* a, double* b) { return *a < *b; });
    all.resize(size_t(count));
    return all;
  }
  double seconds(size_t s, Task t) const {
    const StageTimes& x = costs.times[s];
    if (t == Task::forward) return x.forward;
    if (t == Task::backward_weight) return x.backward_weight;
    return split ? x.backward_input : x.backward_input + x.backward_weight;
  }
  int64_t held(size_t s) const {
    int64_t count = 0;
    for (const auto& [key, finished] : is_done) {
      const auto& [stage, task, i] = key;
      if (stage != s || task != Task::forward) continue;
      count += !done(s, split ? Task::backward_weight : Task::backward, i);
    }
    return count * plan.stages[s].micro_batch;
  }
  bool begun(size_t s, Task t, int64_t i) const { return is_done.contains({s, t, i}); }
  // Micro-batch by micro-batch: what each has left so far, and what its task takes now.
  double held_memory(size_t s) const {
    const StageMemory& m = costs.memory[s];
    const int64_t last = plan.batch / plan.stages[s].micro_batch - 1;
    double bytes = m.fixed;
    for (int64_t i = 0; i <= last; ++i) {
      const auto runs = [&](Task t) { return begun(s, t, i) && !done(s, t, i); };
      if (runs(Task::forward)) bytes += m.forward;
      if (runs(Task::backward)) bytes += m.backward;
      if (runs(Task::backward_weight)) bytes += m.weights;
      if (done(s, Task::forward, i) && !done(s, Task::backward, i)) bytes += m.held;
      if (split && done(s, Task::backward, i) && !done(s, Task::backward_weight, i))
        bytes += m.waiting;
    }
    if (!begun(s, Task::forward, last)) bytes += m.posted_forward;
    if (!begun(s, Task::backward, last)) bytes += m.posted_backward;
    return bytes;
  }
  // Tasks that `reader` has to have begun before stage `s` was given what it has begun to use.
  int64_t surely_begun(size_t s, size_t reader, Task kind) const {
    const Task opposite = kind == Task::backward ? Task::forward : Task::backward;
    int64_t samples = 0, given = 0, count = 0;
    for (int64_t i = 0; begun(s, opposite, i); ++i) samples += plan.stages[s].micro_batch;
    for (const Task t : orders[reader]) {
      if (given >= samples) break;
      if (t == opposite) given += plan.stages[reader].micro_batch;
      count += t == kind;
    }
    return count;
  }
  // Messages of a stage, one after the other: which are still here?
  double sent_memory(size_t s) const {
    double bytes = 0;
    for (const bool gradient : {false, true}) {
      for (int edge = 0; edge < int(costs.stages.edges.size()); ++edge) {
        const StageEdge& e = costs.stages.edges[edge];
        if ((gradient ? e.to : e.from) != int(s)) continue;
        const size_t reader = size_t(gradient ? e.from : e.to);
        const int64_t size = plan.stages[s].micro_batch, other = plan.stages[reader].micro_batch;
        int64_t here = 0;
        for (const Message& m : messages) {
          if (m.edge != edge || m.gradient != gradient) continue;
          bool gone = true;
          for (int64_t sample = m.index * size; sample < (m.index + 1) * size; ++sample) {
            if (!has_arrived(edge, gradient, sample)) gone = false;
            const bool near = costs.unit[reader] == costs.unit[s];
            const int64_t task = sample / other - (near ? 0 : 1);
            if (task < 0) continue;
            const Task kind = gradient ? Task::backward : Task::forward;
            if (near && !is_done.contains({reader, kind, task})) gone = false;
            if (!near && task >= surely_begun(s, reader, kind)) gone = false;
          }
          here += !gone;
        }
        bytes += double(here) * (gradient ? costs.sent.backward : costs.sent.forward)[edge];
      }
    }
    return bytes;
  }
  double unit_memory(int unit) const {
    double bytes = 0;
    for (size_t k = n; k-- > 0;) {
      const size_t s = size_t(costs.stages.order[k]);
      if (costs.unit[s] != unit) continue;
      bytes += held_memory(s) + (costs.sent.backward.empty() ? 0 : sent_memory(s));
    }
    return bytes;
  }
  void send(size_t s, int64_t i, bool gradient) {
    for (int edge = 0; edge < int(costs.stages.edges.size()); ++edge) {
      const StageEdge& e = costs.stages.edges[edge];
      if ((gradient ? e.to : e.from) != int(s)) continue;
      const int other = costs.unit[gradient ? e.from : e.to], own = costs.unit[s];
      const double time = costs.transfer_fixed[edge] +
                          costs.transfer_per_sample[edge] * double(plan.stages[s].micro_batch);
      double end = now;
      if (time > 0) {
        const int cards = std::min(costs.devices[own], costs.devices[other]);
        double start = now;
        std::vector<double*> used = first_free(sending, own, cards);
        for (double* card : first_free(receiving, other, cards)) used.push_back(card);
        for (const double* card : used) start = std::max(start, *card);
        end = start + time;
        for (double* card : used) *card = end;
      }
      messages.push_back({edge, gradient, i, end});
    }
  }
  void round() {
    const size_t known = messages.size();
    for (size_t s = 0; s < n; ++s) {
      if (ends[s] != now) continue;
      const Task task = orders[s][next[s] - 1];
      const int64_t i = index_of(s, next[s] - 1);
      is_done[{s, task, i}] = true;
      ends[s] = -1;
      last_end[s] = now;
      if (task != Task::backward_weight) send(s, i, task == Task::backward);
    }
    for (size_t m = 0; m < known; ++m) messages[m].arrived |= messages[m].arrives <= now;
    for (int unit = 0; unit < costs.num_units; ++unit) start(unit);
  }
  void start(int unit) {
    int chosen = -1;
    bool is_forward = true;
    for (size_t k = n; k-- > 0;) {
      const size_t s = size_t(costs.stages.order[k]);
      if (costs.unit[s] != unit) continue;
      if (ends[s] >= 0) return;
      if (!ready(s)) continue;
      const bool forward = orders[s][next[s]] == Task::forward;
      if (chosen < 0 || (is_forward && !forward)) chosen = int(s), is_forward = forward;
    }
    if (chosen < 0) return;
    const size_t s = size_t(chosen);
    const Task task = orders[s][next[s]];
    is_done[{s, task, index_of(s, next[s])}] = false;
    ++next[s];
    ends[s] = now + seconds(s, task);
    busy[s] += seconds(s, task);
    peak_in_flight[s] = std::max(peak_in_flight[s], held(s));
    for (size_t other = 0; other < n; ++other) {
      if (costs.unit[other] == unit) peak[other] = std::max(peak[other], unit_memory(unit));
    }
  }
};

}  // namespace

Timeline slow_evaluate(const Plan& plan, const PlanCosts& costs, const Orders& orders) {
  Slow slow{plan, costs, orders};
  for (size_t s = 0; s < slow.n; ++s) slow.peak[s] = slow.unit_memory(costs.unit[s]);
  for (;;) {
    slow.round();
    double then = std::numeric_limits<double>::infinity();
    for (double end : slow.ends) {
      if (end >= 0) then = std::min(then, end);
    }
    for (const Message& m : slow.messages) {
      if (!m.arrived) then = std::min(then, m.arrives);
    }
    if (then == std::numeric_limits<double>::infinity()) break;
    slow.now = then;
  }
  Timeline t;
  double computing = 0, devices = 0;
  std::set<int> units;
  // Of the stages left, the one that ended first sums its gradients; the lower one on a tie.
  std::vector<double> summed(slow.n, -1);
  for (size_t k = 0; k < slow.n; ++k) {
    size_t next = slow.n;
    for (size_t s = 0; s < slow.n; ++s) {
      if (summed[s] >= 0) continue;
      if (next == slow.n || slow.last_end[s] < slow.last_end[next]) next = s;
    }
    double start = slow.last_end[next];
    for (size_t s = 0; s < slow.n && costs.times[next].sync > 0; ++s) {
      const bool is_before = summed[s] >= 0 && costs.times[s].sync > 0;
      if (is_before && costs.unit[s] == costs.unit[next]) start = std::max(start, summed[s]);
    }
    summed[next] = start + costs.times[next].sync;
  }
  for (size_t s = 0; s < slow.n; ++s) {
    t.seconds = std::max(t.seconds, summed[s]);
    computing += slow.busy[s] * plan.stages[s].num_devices();
    if (units.insert(costs.unit[s]).second) devices += plan.stages[s].num_devices();
  }
  for (const PlanCosts::Tie& tie : costs.ties) {
    double start = 0;
    for (int s : tie.stages) start = std::max(start, summed[s]);
    t.seconds = std::max(t.seconds, start + tie.seconds);
  }
  t.busy = slow.busy;
  t.peak_memory = slow.peak;
  t.peak_in_flight = slow.peak_in_flight;
  t.bubble = t.seconds > 0 ? std::max(0.0, 1 - computing / (devices * t.seconds)) : 0;
  t.memory_limit = costs.memory_limit;
  return t;
}

}  // namespace ductile::plan
