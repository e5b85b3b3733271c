#include <algorithm>
#include <numeric>

#include "ductile/base/error.h"
#include "ductile/plan/execution_impl.h"

namespace ductile::plan {

Box::Kind kind_of(Task task) {
  switch (task) {
    case Task::forward:
      return Box::Kind::forward;
    case Task::backward:
      return Box::Kind::backward;
    case Task::backward_weight:
      return Box::Kind::backward_weight;
  }
  return Box::Kind::forward;
}

void check_size(const Plan& plan) {
  int64_t tasks = 0;
  for (const Stage& s : plan.stages) {
    tasks += plan.batch / s.micro_batch;
    if (tasks > kMaxTasks) {
      fail(ErrorCode::invalid_argument,
           "micro_batch: the stages have more than {} micro-batches together; take larger ones",
           kMaxTasks);
    }
  }
}

Execution::Execution(const Plan& plan, const PlanCosts& costs, bool split, bool record)
    : plan_(plan), costs_(costs), split_(split), record_(record) {
  const size_t n = plan.stages.size();
  check_size(plan);
  for (const plan::Stage& s : plan.stages) {
    Stage stage;
    stage.size = s.micro_batch;
    stage.num = plan.batch / s.micro_batch;
    stage.state.cap = s.in_flight / s.micro_batch;
    stages_.push_back(stage);
  }
  running_.resize(n);
  members_.resize(costs.num_units);
  place_.resize(n);
  for (size_t i = n; i-- > 0;) {
    const int s = costs.stages.order[i];
    place_[s] = static_cast<int>(i);
    members_[costs.unit[s]].push_back(s);
  }
  unit_busy_.assign(costs.num_units, 0);
  is_dirty_.assign(costs.num_units, 0);
  for (int u = 0; u < costs.num_units; ++u) look_at(u);
  for (int n : costs.devices) sending_.emplace_back(n);
  receiving_ = sending_;
  const size_t edges = costs.stages.edges.size();
  forward_arrived_.assign(edges, 0), gradient_arrived_.assign(edges, 0);
  forward_sent_.assign(edges, 0), gradient_sent_.assign(edges, 0);
  peak_.assign(costs.num_units, 0);
  timeline_.busy.assign(n, 0);
  timeline_.peak_in_flight.assign(n, 0);
  for (int u = 0; u < costs.num_units; ++u) note_memory(u);
}

bool Execution::try_follow(const Orders& orders) {
  DUCTILE_CHECK(orders.size() == stages_.size());
  for (size_t s = 0; s < orders.size(); ++s) {
    const Stage& stage = stages_[s];
    int64_t count[3] = {0, 0, 0};
    for (Task task : orders[s]) {
      const int64_t i = count[static_cast<int>(task)]++;
      const bool early = (task == Task::backward && i >= count[0]) ||
                         (task == Task::backward_weight && i >= count[1]);
      if (early) {
        fail(ErrorCode::invalid_argument,
             "stage {}: order: the backward pass of micro-batch {} comes before what it needs", s,
             i);
      }
    }
    const int64_t weights = split_ ? stage.num : 0;
    if (count[0] != stage.num || count[1] != stage.num || count[2] != weights) {
      fail(ErrorCode::invalid_argument,
           "stage {}: order: has {} F, {} B, {} W; {}, {} and {} are wanted", s, count[0], count[1],
           count[2], stage.num, stage.num, weights);
    }
  }
  orders_ = &orders;
  if (!costs_.sent.backward.empty()) note_order();
  return run();
}

bool Execution::try_list(Rank rank, Orders& orders) {
  orders.assign(stages_.size(), {});
  rank_ = rank;
  written_ = &orders;
  return run();
}

bool Execution::run() {
  for (;;) {
    std::sort(dirty_.begin(), dirty_.end());
    for (int u : dirty_) {
      is_dirty_[u] = 0;
      if (!unit_busy_[u]) start_on(u);
    }
    dirty_.clear();
    if (events_.empty()) break;
    now_ = events_.top().time;
    // One round. Ends sort before arrivals, and lower stages first.
    round_.clear();
    while (!events_.empty() && events_.top().time == now_) {
      round_.push_back(events_.top());
      events_.pop();
    }
    for (const Event& e : round_) {
      if (e.kind == 0) {
        finish(e.who);
      } else {
        const StageEdge& edge = costs_.stages.edges[e.who / 2];
        const bool gradient = e.who % 2 != 0;
        const int to = gradient ? edge.from : edge.to, from = gradient ? edge.to : edge.from;
        (gradient ? gradient_arrived_ : forward_arrived_)[e.who / 2] += stages_[from].size;
        look_at(costs_.unit[to]);
        if (gradient) look_at(costs_.unit[from]);  // there is room again
      }
    }
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (tasks_left(static_cast<int>(s)) > 0) return false;
  }
  finish_sums(timeline_);
  return true;
}

int64_t Execution::tasks_left(int stage) const {
  const Stage& s = stages_[stage];
  return (split_ ? 3 : 2) * s.num - s.done[0] - s.done[1] - s.done[2];
}

bool Execution::is_ready(int stage, Task task) const {
  const Stage& s = stages_[stage];
  const int64_t i = s.started[static_cast<int>(task)];
  if (i >= s.num) return false;
  const int64_t samples = (i + 1) * s.size;
  switch (task) {
    case Task::forward:
      for (int e : costs_.stages.predecessors[stage]) {
        if (forward_arrived_[e] < samples) return false;
      }
      return true;
    case Task::backward:
      for (int e : costs_.stages.successors[stage]) {
        if (gradient_arrived_[e] < samples) return false;
      }
      for (int e : costs_.stages.predecessors[stage]) {
        if (gradient_arrived_[e] < (i - 1) * s.size) return false;
      }
      return s.done[0] > i;
    case Task::backward_weight:
      return split_ && s.done[1] > i;
  }
  return false;
}

int Execution::choose(int stage, int& rank) const {
  const Stage& s = stages_[stage];
  if (orders_ != nullptr) {
    const auto at = static_cast<size_t>(s.started[0] + s.started[1] + s.started[2]);
    if (at >= (*orders_)[stage].size()) return -1;
    const Task task = (*orders_)[stage][at];
    rank = 0;
    return is_ready(stage, task) ? static_cast<int>(task) : -1;
  }
  int best = -1;
  rank = kSkip;
  for (Task task : {Task::backward, Task::forward, Task::backward_weight}) {
    if (!is_ready(stage, task)) continue;
    if (task == Task::forward && s.held >= s.state.cap) continue;
    const int r = rank_(task, s.state);
    if (r < rank) rank = r, best = static_cast<int>(task);
  }
  return best;
}

void Execution::look_at(int unit) {
  if (!is_dirty_[unit]) dirty_.push_back(unit);
  is_dirty_[unit] = 1;
}

void Execution::start_on(int unit) {
  // Of stages that take turns: backward before forward, then the later one.
  int stage = -1, task = -1, best = kSkip + 1;
  for (int s : members_[unit]) {
    int rank = 0;
    const int t = choose(s, rank);
    if (t < 0) continue;
    const int forward = t == static_cast<int>(Task::forward);
    if (forward < best) best = forward, stage = s, task = t;
  }
  if (stage >= 0) start(stage, static_cast<Task>(task));
}

double Execution::seconds(int stage, Task task) const {
  const StageTimes& t = costs_.times[stage];
  switch (task) {
    case Task::forward:
      return t.forward;
    case Task::backward:
      return split_ ? t.backward_input : t.backward_input + t.backward_weight;
    case Task::backward_weight:
      return t.backward_weight;
  }
  return 0;
}

void Execution::start(int stage, Task task) {
  Stage& s = stages_[stage];
  const int unit = costs_.unit[stage];
  const int64_t index = s.started[static_cast<int>(task)]++;
  const double time = seconds(stage, task);
  if (task == Task::forward) {
    ++s.held;
    timeline_.peak_in_flight[stage] = std::max(timeline_.peak_in_flight[stage], s.held * s.size);
  }
  note_memory(unit);  // nothing grows but while a task runs
  s.state.last = task;
  s.state.in_flight = s.held;
  running_[stage] = task;
  unit_busy_[unit] = 1;
  timeline_.busy[stage] += time;
  if (written_ != nullptr) (*written_)[stage].push_back(task);
  if (record_) timeline_.boxes.push_back({kind_of(task), stage, -1, index, now_, now_ + time});
  events_.push({now_ + time, 0, stage});
}

void Execution::finish(int stage) {
  Stage& s = stages_[stage];
  const Task task = running_[stage];
  const int unit = costs_.unit[stage];
  ++s.done[static_cast<int>(task)];
  s.end = now_;
  unit_busy_[unit] = 0;
  look_at(unit);
  const Task last = split_ ? Task::backward_weight : Task::backward;
  if (task == last) --s.held;
  s.state.in_flight = s.held;
  s.state.waiting = split_ ? s.done[1] - s.started[2] : 0;
  if (task == Task::forward) {
    for (int e : costs_.stages.successors[stage]) send(e, false);
  } else if (task == Task::backward) {
    for (int e : costs_.stages.predecessors[stage]) send(e, true);
  }
}

void Execution::send(int edge, bool gradient) {
  const StageEdge& e = costs_.stages.edges[edge];
  const int from = gradient ? e.to : e.from, to = gradient ? e.from : e.to;
  const double time = costs_.transfer_fixed[edge] +
                      costs_.transfer_per_sample[edge] * static_cast<double>(stages_[from].size);
  const int64_t index = (gradient ? gradient_sent_ : forward_sent_)[edge]++;
  double end = now_;
  if (time > 0) {
    Cards& sending = sending_[costs_.unit[from]];
    Cards& receiving = receiving_[costs_.unit[to]];
    const int cards = std::min(costs_.devices[costs_.unit[from]], costs_.devices[costs_.unit[to]]);
    const double start = std::max({now_, sending.earliest(cards), receiving.earliest(cards)});
    end = start + time;
    sending.take(cards, end);
    receiving.take(cards, end);
    if (record_) timeline_.boxes.push_back({Box::Kind::transfer, from, to, index, start, end});
  }
  events_.push({end, 1, 2 * edge + (gradient ? 1 : 0)});
}

double Execution::Cards::earliest(int count) const {
  size_t i = 0;
  for (; count > free_[i].second; ++i) count -= free_[i].second;
  return free_[i].first;
}

void Execution::Cards::take(int count, double until) {
  const int taken = count;
  size_t used = 0;
  for (; count > 0 && count >= free_[used].second; ++used) count -= free_[used].second;
  if (count > 0) free_[used].second -= count;
  free_.erase(free_.begin(), free_.begin() + static_cast<long>(used));
  const auto at = std::lower_bound(free_.begin(), free_.end(), std::pair(until, 0));
  if (at != free_.end() && at->first == until) {
    at->second += taken;
  } else {
    free_.insert(at, {until, taken});
  }
}

double bytes_held(const StageMemory& m, const Progress& p, bool split) {
  const auto times = [](double bytes, int64_t count) { return bytes * static_cast<double>(count); };
  const int64_t held = p.done[0] - p.done[1], waiting = split ? p.done[1] - p.done[2] : 0;
  double bytes = m.fixed + times(m.held, held) + times(m.waiting, waiting);
  if (p.started[0] < p.num) bytes += m.posted_forward;
  if (p.started[1] < p.num) bytes += m.posted_backward;
  return bytes + times(m.forward, p.started[0] - p.done[0]) +
         times(m.backward, p.started[1] - p.done[1]) + times(m.weights, p.started[2] - p.done[2]);
}

double Execution::memory_of(int stage) const {
  const double held = bytes_held(costs_.memory[stage], stages_[stage], split_);
  return costs_.sent.backward.empty() ? held : held + sent_memory(stage);
}

// For each stage, what of the one kind its order has before each task of the other.
void Execution::note_order() {
  before_.assign(stages_.size(), {});
  for (size_t s = 0; s < stages_.size(); ++s) {
    int64_t forward = 0, backward = 0;
    for (const Task task : (*orders_)[s]) {
      if (task == Task::forward) {
        before_[s].backwards.push_back(backward);
        ++forward;
      } else if (task == Task::backward) {
        before_[s].forwards.push_back(forward);
        ++backward;
      }
    }
  }
}

// How many tasks of this kind a neighbour has begun for certain, however slow it is: those that its
// order has before what this stage has been given.
int64_t Execution::surely_started(int stage, int neighbour, Task task) const {
  const Stage& own = stages_[stage];
  const Stage& other = stages_[neighbour];
  if (orders_ == nullptr) return other.started[static_cast<int>(task)];
  const bool gradient = task == Task::backward;
  const int64_t given = own.started[static_cast<int>(gradient ? Task::forward : Task::backward)];
  const int64_t tasks = (given * own.size + other.size - 1) / other.size;
  if (tasks == 0) return 0;
  const Before& before = before_[neighbour];
  return (gradient ? before.backwards : before.forwards).at(static_cast<size_t>(tasks - 1));
}

// A message lies with its sender until it has arrived; and it cannot arrive before the reader has
// room, which is when the task of the micro-batch before it begins. When that is depends on how
// busy the reader's machine is, so what waits is counted as by the orders alone it may. Within a
// unit a message is taken by its own task.
double Execution::sent_memory(int stage) const {
  double bytes = 0;
  const auto waits = [&](int edge, int reader, Task task, int64_t sent, int64_t arrived) {
    const bool near = costs_.unit[reader] == costs_.unit[stage];
    const Stage& to = stages_[reader];
    const int64_t started =
        near ? to.started[static_cast<int>(task)] : surely_started(stage, reader, task);
    const int64_t room = (started + (near ? 0 : 1)) * to.size;
    const int64_t gone = std::min(sent, std::min(arrived, room) / stages_[stage].size);
    const SentBytes& each = costs_.sent;
    bytes += static_cast<double>(sent - gone) *
             (task == Task::forward ? each.forward : each.backward)[edge];
  };
  for (int e : costs_.stages.successors[stage]) {
    waits(e, costs_.stages.edges[e].to, Task::forward, forward_sent_[e], forward_arrived_[e]);
  }
  for (int e : costs_.stages.predecessors[stage]) {
    waits(e, costs_.stages.edges[e].from, Task::backward, gradient_sent_[e], gradient_arrived_[e]);
  }
  return bytes;
}

void Execution::note_memory(int unit) {
  double bytes = 0;
  for (int s : members_[unit]) bytes += memory_of(s);
  peak_[unit] = std::max(peak_[unit], bytes);
}

// When each stage has summed its gradients. Those of stages with equal devices use the same cards.
std::vector<double> Execution::sum_ends(Timeline& t) const {
  std::vector<int> order(stages_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return stages_[a].end < stages_[b].end; });
  std::vector<double> free(costs_.num_units, 0), ends(stages_.size());
  for (int s : order) {
    ends[s] = stages_[s].end;
    const double seconds = costs_.times[s].sync;
    if (seconds <= 0) continue;
    double& unit = free[costs_.unit[s]];
    const double start = std::max(ends[s], unit);
    unit = ends[s] = start + seconds;
    if (record_) t.boxes.push_back({Box::Kind::sync, s, -1, 0, start, ends[s]});
  }
  return ends;
}

void Execution::finish_sums(Timeline& t) const {
  const std::vector<double> summed = sum_ends(t);
  double device_seconds = 0, computing = 0;
  std::vector<char> counted(costs_.num_units);
  for (size_t s = 0; s < stages_.size(); ++s) {
    const double devices = plan_.stages[s].num_devices();
    t.seconds = std::max(t.seconds, summed[s]);
    computing += t.busy[s] * devices;
    char& is_counted = counted[costs_.unit[s]];
    if (!is_counted) device_seconds += devices;
    is_counted = 1;
    t.peak_memory.push_back(peak_[costs_.unit[s]]);
  }
  for (const PlanCosts::Tie& tie : costs_.ties) {
    double start = 0;
    for (int s : tie.stages) start = std::max(start, summed[s]);
    t.seconds = std::max(t.seconds, start + tie.seconds);
    for (int s : tie.stages) {
      if (record_ && tie.seconds > 0) {
        t.boxes.push_back({Box::Kind::sync, s, -1, 1, start, start + tie.seconds});
      }
    }
  }
  device_seconds *= t.seconds;
  t.bubble = device_seconds > 0 ? std::max(0.0, 1 - computing / device_seconds) : 0;
  t.memory_limit = costs_.memory_limit;
  std::stable_sort(t.boxes.begin(), t.boxes.end(),
                   [](const Box& a, const Box& b) { return a.start < b.start; });
}

void Execution::fail_stuck() const {
  std::string text;
  int named = 0;
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (tasks_left(static_cast<int>(s)) == 0 || ++named > 8) continue;
    const int stage = static_cast<int>(s);
    std::string next = "any task";
    int index = 0;
    if (orders_ != nullptr) {
      const Stage& st = stages_[s];
      const Task task =
          (*orders_)[s][static_cast<size_t>(st.started[0] + st.started[1] + st.started[2])];
      next = task == Task::forward ? "the inputs of micro-batch" : "the gradients of micro-batch";
      index = static_cast<int>(st.started[static_cast<int>(task)]);
      next += fmt::format(" {}", index);
    }
    text += fmt::format("{}stage {} waits for {}", text.empty() ? "" : ", ", stage, next);
  }
  fail(ErrorCode::invalid_argument, "the schedule cannot be carried out: {}{}; {}", text,
       named > 8 ? fmt::format(" and {} more", named - 8) : "",
       plan_.orders.empty()
           ? "in_flight must be at least GraphPipe's figure (in_flight_samples)"
           : "the orders of these stages wait for one another: a task has to come after those that "
             "make what it needs; without orders the planner makes some");
}

}  // namespace ductile::plan
