#pragma once

#include <deque>
#include <vector>

#include "ductile/emulate/emulator.h"

namespace ductile::emulate {

// Some replicas of a stage that one thread carries out: one, unless the stages of its devices
// divide them differently.
struct Lane {
  int stage = 0;
  int first = 0, replicas = 1;
  int64_t samples = 0;             // of a micro-batch, in these replicas
  size_t next = 0;                 // in the order of the stage
  int64_t started[3] = {0, 0, 0};  // by Task
  // What has come over each edge, by micro-batch, in parts of samples; and how much a whole one is.
  std::vector<std::vector<int64_t>> inputs, gradients;
  std::vector<int64_t> whole_input, whole_gradient;
  std::vector<int64_t> leaving;  // by micro-batch: messages with gradients that have not arrived
  bool is_done = false;          // with its tasks
};

// Devices that sum what each of them has: in 2 (n - 1) rounds each seat sends an n-th part to the
// next seat.
struct Ring {
  struct Seat {
    std::vector<int> devices;   // each sums with those of the same place in other seats
    std::vector<size_t> parts;  // that have arrived, by round
  };
  std::vector<Seat> seats;
  double bytes = 0;  // of each device
};

struct Message {
  plan::Box::Kind kind = plan::Box::Kind::transfer;
  int from = 0, to = 0;  // devices
  double bytes = 0;      // 0: arrives at once
  // Of a transfer.
  Lane* receiver = nullptr;
  bool is_gradient = false;
  size_t slot = 0;         // of its edge, among the receiver's
  int64_t index = 0;       // micro-batch of the receiver
  int64_t amount = 0;      // parts of samples
  Lane* sender = nullptr;  // of a gradient, and its micro-batch there
  int64_t sent = 0;
  // Of a sum.
  Ring::Seat* seat = nullptr;
  size_t round = 0;
};

// The devices and cards of a plan, and the threads that play them.
class Machine {
 public:
  // All must outlive it. `orders` is checked to hold each task once.
  Machine(const graph::Graph& graph, const plan::Devices& devices, const plan::Plan& plan,
          const plan::PlanCosts& costs, const plan::Orders& orders, const Options& options);

  // Threads that a crew for this machine has, and about how many waits follow one another in an
  // iteration.
  int num_threads() const;
  double num_waits() const;
  void play(Crew& crew, Emulation& result);  // once

 private:
  using Member = Crew::Member;
  struct Worker {
    std::vector<Lane*> lanes;  // the later stage first
    size_t tasks = 0;          // of an iteration
  };
  struct Card {
    std::deque<Message> to_send;
    std::deque<int> receiving;  // devices that send to this one or want to, as they came
  };
  // A weight that several stages hold; `stages` are in the units of `seats`.
  struct Tie {
    Ring ring;
    std::vector<int> speakers;              // for each seat the stage whose first replica takes it
    std::vector<std::vector<int>> holders;  // for each seat, stages that have summed before
  };

  void check_orders() const;
  void make_lanes();
  void make_rings();
  void make_ties();
  void prepare(Lane& lane);

  void work(Member& self, Worker& worker);
  void carry_out(Member& self, Lane& lane);
  Lane* choose(const Worker& worker) const;
  bool is_ready(const Lane& lane) const;
  double seconds_of(const Lane& lane, plan::Task task) const;
  void send(Lane& lane, bool gradient, int64_t index);
  void send_samples(Lane& lane, int edge, bool gradient, int64_t index, int replica);
  void post(const Message& message);
  void deliver(const Message& message);
  void run_card(Member& self, int device);
  void sum(Member& self, int stage, int replica);
  void pass_round(Member& self, Ring& ring, size_t seat);
  bool has_sum(int stage) const { return !rings_[stage].seats.empty() || is_tied_[stage] != 0; }
  void end_part();
  void begin_iteration();
  [[noreturn]] void fail_stuck() const;

  const graph::Graph& graph_;
  const plan::Devices& devices_;
  const plan::Plan& plan_;
  const plan::PlanCosts& costs_;
  const plan::Orders& orders_;
  const Options options_;
  const bool split_;  // the backward pass

  std::deque<Lane> lanes_;
  std::vector<std::vector<Lane*>> lane_of_;  // by stage and replica
  std::deque<Worker> workers_;
  std::vector<size_t> slot_to_, slot_from_;  // of each edge, at its reader and at its writer
  std::vector<Card> cards_;                  // by device
  std::vector<int> used_;                    // devices
  std::vector<Ring> rings_;                  // by stage; without seats if there is nothing to sum
  std::vector<int> summed_;                  // by stage: replicas that are done with it
  std::deque<Tie> ties_;
  std::vector<char> is_tied_;  // by stage

  Crew* crew_ = nullptr;
  Emulation* result_ = nullptr;
  int iteration_ = -1;
  double begin_ = 0;
  int parts_left_ = 0;  // lanes or replicas that have to end before the iteration does
  bool is_over_ = false;
};

}  // namespace ductile::emulate
