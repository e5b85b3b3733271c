#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "ductile/plan/evaluate.h"

namespace ductile::plan {

// How far a stage has come.
struct Progress {
  int64_t num = 0;                                      // micro-batches
  int64_t started[3] = {0, 0, 0}, done[3] = {0, 0, 0};  // by Task
};
// What it then has, in bytes on each of its devices, without what it has sent.
double bytes_held(const StageMemory& memory, const Progress& progress, bool split);

// Throws invalid_argument where the stages have more than kMaxTasks micro-batches together.
void check_size(const Plan& plan);

// The event loop behind evaluate() and the list schedulers: carries out a plan in virtual time by
// the rules of evaluate.h. What a stage does next is asked of a chooser.
//
// An instant is handled in rounds: tasks that end (lower stage first; each sends its messages),
// messages that arrive, tasks that start (lower unit first). What takes no time comes in the next
// round of the same instant.
class Execution {
 public:
  // `orders` given: they are followed. Else tasks are chosen by `rank` among those that are ready
  // and fit under Stage::in_flight: the lowest rank goes first, kSkip never; `split` tells whether
  // W is a task of its own. All referenced objects must outlive the execution.
  struct State;  // what a rule may look at
  using Rank = int (*)(Task, const State&);
  static constexpr int kSkip = 1 << 20;

  struct State {
    int64_t in_flight = 0;  // micro-batches held
    int64_t cap = 0;        // micro-batches
    int64_t waiting = 0;    // micro-batches whose W is still to do
    Task last = Task::backward;
  };

  Execution(const Plan& plan, const PlanCosts& costs, bool split, bool record);
  // One of the two, once. False: it could not be carried out to the end; fail_stuck() says why.
  bool try_follow(const Orders& orders);
  bool try_list(Rank rank, Orders& orders);
  const Timeline& result() const { return timeline_; }
  Timeline take_result() { return std::move(timeline_); }
  [[noreturn]] void fail_stuck() const;

 private:
  struct Stage : Progress {
    int64_t size = 0;  // samples of each micro-batch
    int64_t held = 0;  // micro-batches in flight
    State state;
    double end = 0;  // of its last task so far
  };
  // The network cards of a unit: when each is free, equal times together, the earliest first.
  class Cards {
   public:
    explicit Cards(int count) : free_{{0.0, count}} {}
    double earliest(int count) const;    // when so many are free
    void take(int count, double until);  // those that are free first
   private:
    std::vector<std::pair<double, int>> free_;
  };
  struct Event {
    double time;
    int kind;  // 0: a task of stage `who` ends; 1: a message over edge who / 2 (odd: gradient)
    int who;
    bool operator>(const Event& o) const {
      return std::tie(time, kind, who) > std::tie(o.time, o.kind, o.who);
    }
  };

  bool run();
  bool is_ready(int stage, Task task) const;
  void look_at(int unit);
  void start_on(int unit);
  // The task that `stage` would start now, or -1; and its rank.
  int choose(int stage, int& rank) const;
  void start(int stage, Task task);
  void finish(int stage);
  void send(int edge, bool gradient);
  double seconds(int stage, Task task) const;
  void note_memory(int unit);
  double memory_of(int stage) const;
  double sent_memory(int stage) const;
  void note_order();
  int64_t surely_started(int stage, int neighbour, Task task) const;
  std::vector<double> sum_ends(Timeline& t) const;
  void finish_sums(Timeline& t) const;
  int64_t tasks_left(int stage) const;

  const Plan& plan_;
  const PlanCosts& costs_;
  const bool split_, record_;
  const Orders* orders_ = nullptr;
  struct Before {  // by task of the one kind: tasks of the other kind that its order has before it
    std::vector<int64_t> forwards, backwards;
  };
  std::vector<Before> before_;  // by stage, where messages are counted
  Rank rank_ = nullptr;
  Orders* written_ = nullptr;

  double now_ = 0;
  std::vector<Stage> stages_;
  std::vector<Task> running_;
  std::vector<std::vector<int>> members_;  // stages of each unit, in topological order, last first
  std::vector<int> place_;                 // of each stage in topological order
  std::vector<char> unit_busy_;
  std::vector<char> is_dirty_;  // units to look at before time goes on: `dirty_`
  std::vector<int> dirty_;
  std::vector<Cards> sending_, receiving_;                   // by unit
  std::vector<int64_t> forward_arrived_, gradient_arrived_;  // samples, by edge
  std::vector<int64_t> forward_sent_, gradient_sent_;        // messages, by edge
  std::vector<double> peak_;                                 // by unit
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Event> round_;
  Timeline timeline_;
};

}  // namespace ductile::plan
