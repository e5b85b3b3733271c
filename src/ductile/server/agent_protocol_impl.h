#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/net/secret.h"
#include "ductile/server/run_secret.h"

namespace ductile::server {

// What agents and controllers speak; it rises by one with each change that the other end has to
// know. Each says its own in its first line, "protocol", and refuses another one by name; who says
// none is of before 2026-11-28, and counts as 1.
constexpr int64_t kAgentProtocol = 2;

constexpr std::chrono::seconds kAgentBeat{1};

// Of a first line's value.
int64_t agent_protocol_of(const nlohmann::json& value);

// That the agent sees the same secret, and so the same run directory, as who asks. `what`: both
// nonces, or a name of its own.
std::string agent_proof(const net::Secret& secret, const std::string& what);
// Of the connection between the controller and the agent of `host`, which gave these nonces (64
// digits each).
net::Mac agent_key(const net::Secret& secret, const std::string& controller_nonce,
                   const std::string& agent_nonce, const std::string& host);

// What tells a run from another one that has taken its place. Numbers of files and file systems
// would not do, as some change when these are mounted again.
struct RunMark {
  std::string secret;  // its text; empty: it cannot be seen now
  std::string runs;    // of the folder that it lies in (run/runs_mark.h); empty: that has none
};
RunMark mark_of(const fs::path& run);
// Throws data_loss if the run with this mark is not there any more, so that nobody would find a
// result of it; unavailable if the folder that it lies in is missing, too, or is another one, as
// where its disk is not mounted. What cannot be seen now is believed to be there.
void require_run(const fs::path& run, const RunMark& mark);

}  // namespace ductile::server
