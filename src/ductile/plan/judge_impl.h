#pragma once

#include <memory>
#include <vector>

#include "ductile/plan/interval_search_impl.h"
#include "ductile/plan/machines_impl.h"

namespace ductile::plan {

// The best plan so far as evaluate() has it, of any machine, with its orders written down.
class Judge {
 public:
  // `graph` and `options` must outlive this. Plans that the options exclude are refused.
  // `most_tasks`: simulated, all in all; then only what fits in between is looked at.
  Judge(const graph::Graph& graph, const PlannerOptions& options, int64_t most_tasks,
        Clock::time_point deadline);

  // From here on plans are for these devices.
  void set_machine(std::shared_ptr<const Machine> machine) { machine_ = std::move(machine); }

  // From here on plans are those of another graph of the same operators, a chain: placed as its
  // plans are, chosen by what they take on it, and also carried out in the orders that are best
  // there. Null: no other. It must outlive its use.
  void set_other_graph(const graph::Graph* other) { other_ = other; }

  // Several orders of the best candidates by the formula, each plan as it is, with more in flight,
  // and with zero bubbles. Where that is too much, the plans that do best in the plain order.
  // Candidates are sorted, and those found twice dropped. Returned: the least seconds of those that
  // were carried out; what cannot be better than the best is not.
  double judge(std::vector<Candidate>& found);
  // All of them, the best by the formula first, as far as a limit on tasks allows.
  void judge_all(std::vector<Candidate>& found);
  // One plan, placed or not, as it is and in all ways of the above.
  void consider(Candidate candidate);
  // One plan with orders made on another graph of the same operators: a chain, whose stages wait
  // for one another where these do not.
  void consider_as(Plan plan, const graph::Graph& other);

  // False where a placed plan is busy for longer than the best takes.
  bool may_be_best(const Plan& plan);

  bool any() const { return any_; }
  double seconds() const { return seconds_; }       // infinite where there is none
  Plan plan() const;                                // its devices are those of all
  const Plan& local_plan() const { return plan_; }  // those of its machine
  const Devices& devices() const { return of_plan_->devices; }
  int64_t tasks() const { return tasks_; }
  // The tasks of all that judge() chose, carried out or not since it could not be better.
  int64_t wanted() const { return wanted_; }
  // The largest micro-batch of a plan that nobody can carry out, as it has too many of them, where
  // nobody named micro-batches; 0: there was none.
  int64_t left_out() const { return left_out_; }
  bool is_late() const { return tasks_ > most_tasks_ || is_past(deadline_); }

 private:
  bool is_asked_for(const Plan& plan) const;
  void place(Candidate& candidate) const;
  bool can_be_better(const Plan& plan, const PlanCosts& costs);
  // More micro-batches than anyone can carry out.
  bool has_too_many(const Plan& plan);
  void try_plan(const Plan& plan);
  double plain_seconds(const Plan& plan);
  void try_ways(const Plan& plan);
  void keep(const Plan& plan, const Orders& orders, const Timeline& line);

  const graph::Graph& graph_;
  const PlannerOptions& options_;
  const graph::Graph* other_ = nullptr;
  int64_t most_tasks_;
  Clock::time_point deadline_;
  std::shared_ptr<const Machine> machine_, of_plan_;
  bool any_ = false;
  double seconds_;
  bool fitted_ = false;  // in this call of judge(): one fits, or need not be looked at
  double least_of_call_ = 0;
  Plan plan_;
  int64_t tasks_ = 0, wanted_ = 0, left_out_ = 0;
};

}  // namespace ductile::plan
