#include <algorithm>
#include <map>
#include <set>

#include "ductile/base/error.h"
#include "ductile/emulate/machine_impl.h"

namespace ductile::emulate {

using plan::Task;

Machine::Machine(const graph::Graph& graph, const plan::Devices& devices, const plan::Plan& plan,
                 const plan::PlanCosts& costs, const plan::Orders& orders, const Options& options)
    : graph_(graph),
      devices_(devices),
      plan_(plan),
      costs_(costs),
      orders_(orders),
      options_(options),
      split_(plan.schedule == plan::ScheduleKind::zero_bubble) {
  check_orders();
  const size_t num = plan.stages.size();
  cards_.resize(static_cast<size_t>(devices.size()));
  slot_to_.resize(costs.stages.edges.size());
  slot_from_ = slot_to_;
  for (size_t s = 0; s < num; ++s) {
    const std::vector<int>&in = costs.stages.predecessors[s], &out = costs.stages.successors[s];
    for (size_t i = 0; i < in.size(); ++i) slot_to_[in[i]] = i;
    for (size_t i = 0; i < out.size(); ++i) slot_from_[out[i]] = i;
  }
  make_lanes();
  rings_.resize(num);
  is_tied_.assign(num, 0);
  make_rings();
  make_ties();
}

void Machine::check_orders() const {
  for (size_t s = 0; s < orders_.size(); ++s) {
    int64_t count[3] = {0, 0, 0};
    for (Task task : orders_[s]) ++count[static_cast<int>(task)];
    const int64_t num = plan_.batch / plan_.stages[s].micro_batch;
    const int64_t weights = split_ ? num : 0;
    if (count[0] != num || count[1] != num || count[2] != weights) {
      fail(ErrorCode::invalid_argument,
           "stage {}: order: has {} F, {} B, {} W; {}, {} and {} are wanted", s, count[0], count[1],
           count[2], num, num, weights);
    }
  }
}

void Machine::make_lanes() {
  const size_t num = plan_.stages.size();
  lane_of_.resize(num);
  std::vector<std::vector<int>> members(costs_.num_units);
  for (size_t i = num; i-- > 0;) {
    const int s = costs_.stages.order[i];
    members[costs_.unit[s]].push_back(s);
  }
  for (const std::vector<int>& stages : members) {
    const plan::Stage& first = plan_.stages[stages.front()];
    used_.insert(used_.end(), first.devices.begin(), first.devices.end());
    const bool alike = std::ranges::all_of(stages, [&](int s) {
      const plan::Stage& other = plan_.stages[s];
      return other.devices == first.devices && other.replicas == first.replicas;
    });
    const int num_workers = alike ? first.replicas : 1;
    for (int w = 0; w < num_workers; ++w) {
      Worker& worker = workers_.emplace_back();
      for (int s : stages) {
        const plan::Stage& stage = plan_.stages[s];
        Lane& lane = lanes_.emplace_back();
        lane.stage = s;
        lane.first = w;
        lane.replicas = alike ? 1 : stage.replicas;
        lane.samples = stage.micro_batch / stage.replicas * lane.replicas;
        for (int r = 0; r < lane.replicas; ++r) lane_of_[s].push_back(&lane);
        worker.lanes.push_back(&lane);
        worker.tasks += orders_[s].size();
      }
    }
  }
  std::sort(used_.begin(), used_.end());
  for (Lane& lane : lanes_) {
    const int own = plan_.stages[lane.stage].tensor;
    for (int e : costs_.stages.predecessors[lane.stage]) {
      lane.whole_input.push_back(lane.samples * own *
                                 plan_.stages[costs_.stages.edges[e].from].tensor);
    }
    for (int e : costs_.stages.successors[lane.stage]) {
      lane.whole_gradient.push_back(lane.samples * own *
                                    plan_.stages[costs_.stages.edges[e].to].tensor);
    }
  }
}

void Machine::make_rings() {
  const std::vector<double> inputs = graph::input_bytes(graph_);
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    const plan::Stage& stage = plan_.stages[s];
    if (stage.replicas == 1) continue;
    Ring ring;
    ring.bytes =
        plan::stage_sums(graph_, stage.ops, stage.tensor, stage.recompute, inputs).parameter_bytes;
    if (ring.bytes == 0) continue;
    for (int r = 0; r < stage.replicas; ++r) {
      const auto at = stage.devices.begin() + r * stage.tensor;
      ring.seats.push_back({{at, at + stage.tensor}, {}});
    }
    rings_[s] = std::move(ring);
  }
}

// One device of each set of devices speaks for it.
void Machine::make_ties() {
  const std::vector<double> inputs = graph::input_bytes(graph_);
  std::map<int, std::map<int, double>> holders;  // class -> stage -> bytes
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    const plan::Stage& stage = plan_.stages[s];
    for (graph::OpId id : stage.ops) {
      const graph::Op& op = graph_.ops[id];
      if (op.tied < 0) continue;
      const int tensor = graph::allows(op, stage.tensor, false) ? stage.tensor : 1;
      double& bytes = holders[op.tied][static_cast<int>(s)];
      bytes = std::max(bytes, graph::cost_of(op, tensor, false, inputs[id]).parameter_bytes);
    }
  }
  for (const auto& [tied, stages] : holders) {
    std::map<int, std::vector<int>> by_unit;
    double bytes = 0;
    for (const auto& [stage, b] : stages) {
      by_unit[costs_.unit[stage]].push_back(stage);
      bytes = std::max(bytes, b);
    }
    if (by_unit.size() < 2 || bytes == 0) continue;
    Tie& tie = ties_.emplace_back();
    tie.ring.bytes = bytes;
    for (const auto& [unit, held] : by_unit) {
      tie.ring.seats.push_back({{plan_.stages[held.front()].devices.front()}, {}});
      tie.speakers.push_back(held.front());
      tie.holders.push_back(held);
      for (int s : held) is_tied_[s] = 1;
    }
  }
}

int Machine::num_threads() const {
  size_t n = workers_.size() + used_.size();
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    if (has_sum(static_cast<int>(s))) n += lane_of_[s].size();
  }
  return static_cast<int>(n);
}

double Machine::num_waits() const {
  size_t tasks = 0, rounds = 0;
  for (const Worker& w : workers_) tasks = std::max(tasks, w.tasks);
  for (const Ring& r : rings_) rounds = std::max(rounds, 2 * r.seats.size());
  std::vector<size_t> depth(plan_.stages.size(), 1);
  for (int s : costs_.stages.order) {
    for (int e : costs_.stages.successors[s]) {
      size_t& next = depth[costs_.stages.edges[e].to];
      next = std::max(next, depth[s] + 1);
    }
  }
  return static_cast<double>(tasks + rounds + 4 * *std::ranges::max_element(depth));
}

void Machine::prepare(Lane& lane) {
  const int64_t num = plan_.batch / plan_.stages[lane.stage].micro_batch;
  const auto none = std::vector<int64_t>(static_cast<size_t>(num), 0);
  lane.next = 0;
  std::fill(std::begin(lane.started), std::end(lane.started), 0);
  lane.inputs.assign(lane.whole_input.size(), none);
  lane.gradients.assign(lane.whole_gradient.size(), none);
  lane.leaving = none;
  lane.is_done = false;
}

void Machine::begin_iteration() {
  for (Lane& lane : lanes_) prepare(lane);
  const auto prepare_ring = [](Ring& ring) {
    for (Ring::Seat& seat : ring.seats) seat.parts.assign(2 * ring.seats.size(), 0);
  };
  for (Ring& ring : rings_) prepare_ring(ring);
  for (Tie& tie : ties_) prepare_ring(tie.ring);
  summed_.assign(plan_.stages.size(), 0);
  parts_left_ = 0;
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    const bool by_replica = has_sum(static_cast<int>(s));
    const std::set<Lane*> lanes(lane_of_[s].begin(), lane_of_[s].end());
    parts_left_ += static_cast<int>(by_replica ? lane_of_[s].size() : lanes.size());
  }
  ++iteration_;
  begin_ = crew_->now();
  if (iteration_ == 1) {  // what came before was the warm-up
    crew_->reset_lateness();
    std::ranges::fill(result_->busy, 0);
  }
  result_->seen.clear();
}

void Machine::end_part() {
  if (--parts_left_ > 0) return;
  if (iteration_ > 0) result_->iterations.push_back(crew_->now() - begin_);
  if (iteration_ == options_.iterations) {
    is_over_ = true;
  } else {
    begin_iteration();
  }
}

void Machine::play(Crew& crew, Emulation& result) {
  crew_ = &crew;
  result_ = &result;
  result.threads = num_threads();
  result.busy.assign(static_cast<size_t>(devices_.size()), 0);
  // Cards first: what arrives at an instant of simulated time is there for what begins in it.
  for (int device : used_) {
    crew.add([this, device](Member& self) { run_card(self, device); });
  }
  for (Worker& worker : workers_) {
    crew.add([this, &worker](Member& self) { work(self, worker); });
  }
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    if (!has_sum(static_cast<int>(s))) continue;
    for (int r = 0; r < plan_.stages[s].replicas; ++r) {
      crew.add([this, s, r](Member& self) { sum(self, static_cast<int>(s), r); });
    }
  }
  begin_iteration();
  if (!crew.run()) fail_stuck();
  result.lateness = crew.lateness();
  double measured = 0;
  for (double seconds : result.iterations) measured += seconds;
  for (double& busy : result.busy) busy = measured > 0 ? busy / measured : 0;
  std::vector<double> sorted = result.iterations;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  result.seconds = sorted.size() % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

void Machine::fail_stuck() const {
  std::string text;
  int named = 0;
  for (const Lane& lane : lanes_) {
    if (lane.is_done || ++named > 8) continue;
    const Task task = orders_[lane.stage][lane.next];
    const char* what = task == Task::forward ? "inputs" : "gradients";
    text += fmt::format("{}stage {}, replica {} waits for the {} of micro-batch {}",
                        text.empty() ? "" : "; ", lane.stage, lane.first, what,
                        lane.started[static_cast<int>(task)]);
  }
  if (named > 8) text += fmt::format("; and {} more", named - 8);
  fail(ErrorCode::invalid_argument,
       "the orders of the plan cannot be carried out: {}. Leave the orders of the stages out, and "
       "the planner makes some that can",
       text);
}

}  // namespace ductile::emulate
