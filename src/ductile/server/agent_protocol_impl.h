#pragma once

#include <chrono>
#include <string>

#include "ductile/base/files.h"
#include "ductile/net/secret.h"

namespace ductile::server {

constexpr std::chrono::seconds kAgentBeat{1};
// An agent that was silent for longer has lost its connection, whatever that says of itself.
constexpr std::chrono::seconds kAgentSilence{15};

// That the agent sees the same secret, and so the same run directory, as who asks. `what`: both
// nonces, or a name of its own.
std::string agent_proof(const net::Secret& secret, const std::string& what);
// Of the connection between the controller and the agent of `host`, which gave these nonces (64
// digits each).
net::Mac agent_key(const net::Secret& secret, const std::string& controller_nonce,
                   const std::string& agent_nonce, const std::string& host);

// The job's secret, made where there is none.
net::Secret secret_of(const fs::path& run);

}  // namespace ductile::server
