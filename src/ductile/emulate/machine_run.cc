// What the threads of a machine do: devices, network cards and sums.
#include <algorithm>

#include "ductile/emulate/machine_impl.h"

namespace ductile::emulate {

using plan::Task;

void Machine::work(Member& self, Worker& worker) {
  for (int iteration = 0; iteration <= options_.iterations; ++iteration) {
    self.wait([&] { return iteration_ == iteration; });
    for (size_t left = worker.tasks; left > 0; --left) {
      Lane* lane = nullptr;
      self.wait([&] { return (lane = choose(worker)) != nullptr; });
      carry_out(self, *lane);
    }
  }
}

Lane* Machine::choose(const Worker& worker) const {
  Lane* best = nullptr;
  for (Lane* lane : worker.lanes) {
    if (lane->is_done || !is_ready(*lane)) continue;
    if (orders_[lane->stage][lane->next] != Task::forward) return lane;
    if (best == nullptr) best = lane;
  }
  return best;
}

bool Machine::is_ready(const Lane& lane) const {
  const Task task = orders_[lane.stage][lane.next];
  const auto i = static_cast<size_t>(lane.started[static_cast<int>(task)]);
  const auto has_come = [i](const std::vector<std::vector<int64_t>>& arrived,
                            const std::vector<int64_t>& whole) {
    for (size_t e = 0; e < arrived.size(); ++e) {
      if (arrived[e][i] < whole[e]) return false;
    }
    return true;
  };
  switch (task) {
    case Task::forward:
      return has_come(lane.inputs, lane.whole_input);
    case Task::backward:
      return lane.started[0] > lane.started[1] && (i < 2 || lane.leaving[i - 2] == 0) &&
             has_come(lane.gradients, lane.whole_gradient);
    case Task::backward_weight:
      return lane.started[1] > lane.started[2];
  }
  return false;
}

double Machine::seconds_of(const Lane& lane, Task task) const {
  const plan::StageTimes& t = costs_.times[lane.stage];
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

void Machine::carry_out(Member& self, Lane& lane) {
  const plan::Stage& stage = plan_.stages[lane.stage];
  const Task task = orders_[lane.stage][lane.next++];
  const int64_t index = lane.started[static_cast<int>(task)]++;
  const double begin = crew_->now();
  self.sleep(seconds_of(lane, task));
  const double end = crew_->now();
  for (int i = lane.first * stage.tensor; i < (lane.first + lane.replicas) * stage.tensor; ++i) {
    result_->busy[stage.devices[i]] += end - begin;
  }
  if (options_.record) {
    result_->seen.push_back(
        {plan::kind_of(task), lane.stage, lane.first, index, -1, -1, begin - begin_, end - begin_});
  }
  if (task != Task::backward_weight) send(lane, task == Task::backward, index);
  if (lane.next < orders_[lane.stage].size()) return;
  lane.is_done = true;
  if (!has_sum(lane.stage)) {
    summed_[lane.stage] += lane.replicas;
    end_part();
  }
}

// Each replica begins with another stage, or all would send to the same one at first.
void Machine::send(Lane& lane, bool gradient, int64_t index) {
  const plan::StageGraph& stages = costs_.stages;
  const std::vector<int>& edges = (gradient ? stages.predecessors : stages.successors)[lane.stage];
  for (int r = lane.first; r < lane.first + lane.replicas; ++r) {
    for (size_t i = 0; i < edges.size(); ++i) {
      send_samples(lane, edges[(i + static_cast<size_t>(r)) % edges.size()], gradient, index, r);
    }
  }
}

// A replica's samples of a micro-batch to those replicas of the other stage that read them. Each
// device holds an equal share of every sample. The first to be sent to is another one for each
// device and each of the other's edges, or all would send to the same one at first.
void Machine::send_samples(Lane& lane, int edge, bool gradient, int64_t index, int replica) {
  const plan::StageEdge& e = costs_.stages.edges[edge];
  const int to_stage = gradient ? e.from : e.to;
  const plan::Stage &from = plan_.stages[lane.stage], &to = plan_.stages[to_stage];
  const bool is_local = costs_.unit[lane.stage] == costs_.unit[to_stage] || e.bytes <= 0;
  const int64_t own = from.micro_batch / from.replicas, other = to.micro_batch / to.replicas;
  const int64_t first = index * from.micro_batch + replica * own;
  // Shares of the other stage: each is one replica's part of one micro-batch.
  const int64_t begin = first / other, num = (first + own - 1) / other - begin + 1;
  const size_t slot = gradient ? slot_from_[edge] : slot_to_[edge];
  const int64_t offset = replica + static_cast<int64_t>(slot);
  for (int64_t k = 0; k < num; ++k) {
    // Earlier micro-batches of the other stage first.
    const int64_t batch = (begin + k) / to.replicas * to.replicas;
    const int64_t from_share = std::max(begin, batch);
    const int64_t shares = std::min(begin + num, batch + to.replicas) - from_share;
    const int64_t share = from_share + (begin + k + offset) % shares;
    const int64_t samples =
        std::min(first + own, (share + 1) * other) - std::max(first, share * other);
    const auto to_replica = static_cast<int>(share % to.replicas);
    for (int t = 0; t < from.tensor; ++t) {
      for (int i = 0; i < to.tensor; ++i) {
        const int u = (i + t) % to.tensor;
        const int common = std::min((t + 1) * to.tensor, (u + 1) * from.tensor) -
                           std::max(t * to.tensor, u * from.tensor);
        if (common <= 0) continue;
        Message m;
        m.from = from.devices[replica * from.tensor + t];
        m.to = to.devices[to_replica * to.tensor + u];
        m.amount = samples * common;
        m.bytes =
            is_local ? 0 : e.bytes * static_cast<double>(m.amount) / (from.tensor * to.tensor);
        m.receiver = lane_of_[to_stage][to_replica];
        m.is_gradient = gradient;
        m.slot = slot;
        m.index = share / to.replicas;
        if (gradient) {
          m.sender = &lane;
          m.sent = index;
          ++lane.leaving[index];
        }
        post(m);
      }
    }
  }
}

void Machine::post(const Message& m) {
  if (m.bytes > 0) {
    cards_[m.from].to_send.push_back(m);
  } else {
    deliver(m);
  }
}

void Machine::deliver(const Message& m) {
  if (m.seat != nullptr) {
    ++m.seat->parts[m.round];
    return;
  }
  auto& arrived = m.is_gradient ? m.receiver->gradients : m.receiver->inputs;
  arrived[m.slot][m.index] += m.amount;
  if (m.sender != nullptr) --m.sender->leaving[m.sent];
}

void Machine::run_card(Member& self, int device) {
  std::deque<Message>& to_send = cards_[device].to_send;
  for (;;) {
    self.wait([&] { return !to_send.empty() || is_over_; });
    if (to_send.empty()) return;
    const Message m = to_send.front();
    to_send.pop_front();
    std::deque<int>& line = cards_[m.to].receiving;
    line.push_back(device);
    self.wait([&] { return line.front() == device; });
    const double begin = crew_->now();
    const int ends[] = {m.from, m.to};
    const plan::Link link = devices_.between({&ends[0], 1}, {&ends[1], 1});
    self.sleep(link.seconds(m.bytes));
    line.pop_front();
    if (options_.record) {
      result_->seen.push_back(
          {m.kind, -1, -1, -1, m.from, m.to, begin - begin_, crew_->now() - begin_});
    }
    deliver(m);
  }
}

void Machine::sum(Member& self, int stage, int replica) {
  const Lane& lane = *lane_of_[stage][replica];
  for (int iteration = 0; iteration <= options_.iterations; ++iteration) {
    self.wait([&] { return iteration_ == iteration && lane.is_done; });
    if (!rings_[stage].seats.empty()) {
      pass_round(self, rings_[stage], static_cast<size_t>(replica));
    }
    ++summed_[stage];
    for (Tie& tie : ties_) {
      for (size_t seat = 0; seat < tie.speakers.size(); ++seat) {
        if (tie.speakers[seat] != stage || replica != 0) continue;
        self.wait([&] {
          return std::ranges::all_of(tie.holders[seat],
                                     [&](int s) { return summed_[s] == plan_.stages[s].replicas; });
        });
        pass_round(self, tie.ring, seat);
      }
    }
    end_part();
  }
}

void Machine::pass_round(Member& self, Ring& ring, size_t seat) {
  Ring::Seat& own = ring.seats[seat];
  Ring::Seat& next = ring.seats[(seat + 1) % ring.seats.size()];
  const size_t n = ring.seats.size();
  for (size_t round = 0; round < 2 * (n - 1); ++round) {
    for (size_t d = 0; d < own.devices.size(); ++d) {
      Message m;
      m.kind = plan::Box::Kind::sync;
      m.from = own.devices[d];
      m.to = next.devices[d];
      m.bytes = ring.bytes / static_cast<double>(n);
      m.seat = &next;
      m.round = round;
      post(m);
    }
    self.wait([&] { return own.parts[round] == own.devices.size(); });
  }
}

}  // namespace ductile::emulate
