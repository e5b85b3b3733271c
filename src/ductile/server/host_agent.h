#pragma once

// What runs on each host of a job beside its workers.
namespace ductile::server {

inline constexpr const char* kHostAgent = "host-agent";  // the argument that runs it

// `ductile host-agent`: takes requests from a controller as JSON lines from `in`, answers on `out`:
//
//   {"hello": {"run", "host", "nonce", "worker", "log", "threads"}} -> {"ready": {"proof"}}
//   {"start": {"worker", "arguments", "environment", "workers"}}    -> nothing, or {"failed": ...}
//   {"kill": ID}                                                    -> {"exited": ...}, in the end
//   {"adopt": [ID, ...]}                         -> {"adopted": {"found": [...], "gone": [...]}}
//   {"quit": true}: kills what runs, and ends
//
// and says by itself {"exited": {"worker", "code", "signal"}}, {"line": {"worker", "text"}}, and
// {"beat": true} every second. Ends without a kill when `in` ends: the workers go on, and end
// themselves when no controller comes for them. Returns the exit code.
int run_host_agent(int in, int out);

}  // namespace ductile::server
