#pragma once

#include <chrono>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"

// The caller's side of a live job: what `ductile status, resize, preempt ...` say to its
// controller.
namespace ductile::server {

// Sends one request to the controller of the run and returns its answer. Requests:
//
//   {"request": "status"}                        phase, reason, why, wanted, workers, step ...
//   {"request": "resize", "workers": N}
//   {"request": "preempt"}                       save, end all processes; then the controller ends
//   {"request": "resume", "workers": N}          take a preemption back; N may be left out
//   {"request": "save"}                          a checkpoint soon
//   {"request": "stop"}                          give the job up
//
// All requests except status return as soon as the controller has begun to act. Throws not_found if
// no controller runs for this run, conflict if a process trains there without one, deadline if the
// controller does not answer, or the error with which the controller refused. A controller that is
// stopped is not waited for beyond a moment: the error names its process. One that does not answer
// in time may still carry out the request, and one that ended before it answered (deadline, too)
// may have carried it out, which the error says.
nlohmann::json ask(const fs::path& run, const nlohmann::json& request,
                   std::chrono::milliseconds deadline = std::chrono::seconds(10));

// Until no controller runs for this run. Throws deadline, as ask() does, when `patience` has gone
// by since `since`: of several that end at the same time each is waited for from when all were
// asked.
void await_end(const fs::path& run, std::chrono::milliseconds patience,
               std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now());

// What became of a run that was asked to save and end, once no controller runs for it, by its own
// word and in words: preempted, or done before. Throws unavailable if it does not say that it has
// saved all of its steps, as where its controller or its workers were killed, and peer_lost if it
// failed.
std::string what_became_of(const fs::path& run);

// Whether a controller runs for this run, even a stopped one.
bool has_controller(const fs::path& run);

}  // namespace ductile::server
