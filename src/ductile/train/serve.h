#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/run/folder.h"
#include "ductile/serving/inference_server.h"
#include "ductile/serving/replica_link.h"
#include "ductile/spec/job.h"

namespace ductile::train {

// What the command line, which links no torch, asks a worker to serve.
struct ServeRequest {
  std::string name;     // of the model
  fs::path run;         // that is served; empty: the one of the worker's own --run
  int64_t threads = 0;  // that compute; 0: as the job says
  // Ends where nobody, not even a probe, asked anything for so long; 0: never.
  std::chrono::seconds alone{0};
  serving::ServingOptions options;
  // Of a replica behind a front that may be on another machine; `worker` is its number there.
  std::optional<serving::FrontPlace> front;
  uint64_t worker = 0;
  std::string address;  // of this machine for others; empty: the one that faces the front

  // {"name", "host", "port", "threads", "max_batch", "max_delay_us", "max_waiting", "follow_ms",
  // "version", "run", "alone", "front" (these may be absent)}. Throws invalid_argument.
  static ServeRequest from_json(const nlohmann::json& value);
};

// Serves the run until `interrupted`, and then finishes what it has accepted. Rows to `tell`:
// {"address": "HOST:PORT", "name", "version", "place"} once, when it can be asked, with {"door":
// "HOST:PORT"} where its front is in another place, and {"told": a line}.
void serve(ServeRequest request, const run::RunFolder& folder, const spec::JobOptions& job,
           const std::function<void(const nlohmann::json&)>& tell,
           const std::function<bool()>& interrupted);

}  // namespace ductile::train
