#pragma once

// What runs on each host beside the workers of all jobs there.
namespace ductile::server {

inline constexpr const char* kHostAgent = "host-agent";  // the argument that runs it

// `ductile host-agent`: takes requests from a controller from `in`, answers on `out`, in JSON. RUN
// is the run directory of a job, by which the agent tells the jobs apart.
//
//   {"hello": {"protocol", "folder", "host", "nonce"}} -> {"greet": {"protocol", "nonce",
// "proof"}}, both as plain lines, or {"error"} where they speak different protocols; all that
// follows are messages that are encrypted, by a key from the secret in the folder:
//   {"begin": {"worker", "keeper", "devices", "notice", "machine"}} -> {"ready": {"cores",
//     "beside"}}, then {"hardware": ...} (node_devices.h), with `devices`. `machine`: that of the
//     controller (link::PeerAddress); `beside`: it is this one, too
//   {"open": {"run", "log", "threads", "keepers"}}       before anything else about a run
//   {"start": {"run", "worker", "arguments", "environment", "workers", "devices", "gpus"}} ->
//                                                        nothing, or "failed"
//   {"ask": {"run", "worker"}}: a keeper is to end       -> {"exited": ...}, in the end
//   {"kill": {"run", "worker"}}                          -> {"exited": ...}, in the end
//   {"adopt": {"run", "workers": [ID, ...]}} -> {"adopted": {"run", "found": [], "gone": []}}
//   {"close": {"run"}}: kills what runs of it            -> {"closed": {"run"}}, in the end
//   {"census": {}} -> {"census": [{"run", "worker"}, ...]}: all workers of this host, in the folder
//   {"end": {"run", "worker"}}: ends what the census showed, of whatever run
//   {"stop": {"late"}}: to one that is beside it: the controller begins to stop in good order, and
//     may have been told so as many seconds ago as `late` says
//
// and says by itself {"exited": {"run", "worker", "code", "signal"}}, {"line": {"run", "worker",
// "text"}}, {"hardware": ...} where that has changed, {"complaint": TEXT}, which is for the
// controller's log, and {"beat": true} every second. With
// `devices` each worker gets a share of the cores, and the GPUs that it asks for, for itself
// (node_devices.h). With a `notice` above 0, SIGTERM says that the host will be gone in so
// many seconds: the agent says {"leaving": SECONDS} and goes on, and so do the workers, which
// ignore the signal as it does. It writes the notice down at once (notice_impl.h), so
// that the next agent of the same machine has "leaving" in its {"ready"}. A signal that came before
// "begin" counts, too, but where no "hello" comes it ends the agent; one that came within five
// seconds of the "stop", or of when that was told, does not count, nor one to an
// agent beside its controller whose input has ended. A machine that is still there after twice that
// time stays: {"leaving": 0}. Keepers of
// commands are workers in all this; launcher.h has the differences.
//
// A host has one agent for a folder: a new one ends an earlier one that is still there, so that a
// request which was long on its way is never carried out. It never waits for who reads `out`. Ends
// without a kill when `in` ends, or when the controller has long read nothing: the
// workers go on, and end themselves when no controller comes for them. Returns the exit code.
int run_host_agent(int in, int out);

}  // namespace ductile::server
