#pragma once

#include <span>
#include <vector>

#include "ductile/plan/search_space_impl.h"

namespace ductile::plan {

// A unit of flow along the paths of a graph, from its sources to its sinks, in two colours: it
// starts as "forward", and at some operator turns into "round trip". What a plan's longest way
// there and back takes is at least what the average path of the flow takes, and that is a sum over
// stages: a stage is passed by flow of both colours, and in it some turns. So the least sum over
// all plans, a shortest path over the states of a search, is a lower bound (path_bound_impl.h).
class PathFlow {
 public:
  // All of it turns at the sources: the way there and back.
  static PathFlow round_trip(const SearchSpace& space);
  // It turns in proportion to the parameters still ahead: one way forward, back, and the gradient
  // sum of the stage where it turns.
  static PathFlow by_parameters(const SearchSpace& space);

  struct Amount {
    double round_trip = 0;
    double forward = 0;
  };
  // Of a stage.
  struct Through {
    Amount in;  // over its border
    double turns = 0;
    double forward_out = 0;  // still forward where it leaves the stage
    double round_out = 0;    // round trip where it leaves the stage or ends
  };
  Through through(int from, int transition, int to) const {
    const OfState& a = states_[from];
    const OfState& b = states_[to];
    Through t;
    t.in = b.out;
    if (!past_.empty()) {
      t.in.round_trip -= past_[transition].round_trip;
      t.in.forward -= past_[transition].forward;
    }
    t.turns = a.turns - b.turns;
    t.round_out = t.in.round_trip + t.turns;
    t.forward_out = t.in.forward + (a.begins - b.begins) - t.turns;
    return t;
  }
  // Of the paths that touch the rest of a state (they all begin in it).
  double begins(int state) const { return states_[state].begins; }
  // Over the edges from a group's operators to those outside the rest.
  const Amount& of_group(int group) const { return groups_[group]; }

 private:
  PathFlow(const SearchSpace& space, std::span<const double> turn_share);

  struct OfState {  // of its rest
    double begins = 0, turns = 0;
    Amount out;  // from there to outside
  };
  std::vector<OfState> states_;
  std::vector<Amount> groups_;
  std::vector<Amount> past_;  // per transition, from the smaller rest past the stage; or empty
};

}  // namespace ductile::plan
