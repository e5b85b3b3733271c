#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// The whole job in virtual time: the real Membership and the real WorkerProtocol, model processes,
// a model network and a model disk, faults drawn from a seed, invariants checked at every event.
// For tests.
namespace ductile::control {

// A machine broken on purpose, to see that the invariants notice.
enum class Mutation {
  none,
  commit_without_vote,  // a worker applies a step once it alone has the reduction
  worker_publishes,     // a worker makes its checkpoint count by itself
  no_generation_check,  // messages between workers are taken whatever generation they are of
  saves_are_lost,       // the controller carries out commands whose state was not saved
  no_lease,             // workers go on without the controller for ever
  record_is_not_read,   // workers take it for granted that the saved state lets them go on
  promise_is_not_kept,  // a worker says that it halted, and goes on
  votes_are_forgotten,  // a worker hides that it holds the reduction of its step
  refusals_are_damage,  // a worker takes a checkpoint that it cannot read now for a damaged one
  parts_are_claimed,    // a worker says that it has parts of the state before they are there
  nobody_is_met,        // who keeps its state goes on without having met the others
};
std::string_view to_string(Mutation mutation);

struct ModelJobResult {
  std::string violation;  // empty: none
  int64_t events = 0;
  int64_t generations = 0;
  int64_t kills = 0;
  int64_t redone = 0;     // steps begun again after a change with survivors
  int64_t fallbacks = 0;  // generations begun from a checkpoint or from nothing, beyond the first
  int64_t restarts = 0;   // of the controller
  int64_t publications = 0;
  int64_t preemptions = 0;
  double seconds = 0;  // virtual
};

// One random schedule. With `trace`, what happens goes to stderr.
ModelJobResult run_model_job(uint64_t seed, Mutation mutation = Mutation::none, bool trace = false);

}  // namespace ductile::control
