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
// All but status return at once, when the controller has begun. Throws not_found where no
// controller runs for this run, deadline, or what the controller refused with.
nlohmann::json ask(const fs::path& run, const nlohmann::json& request,
                   std::chrono::milliseconds deadline = std::chrono::seconds(10));

// Whether a controller runs for this run, be it stopped.
bool has_controller(const fs::path& run);

}  // namespace ductile::server
