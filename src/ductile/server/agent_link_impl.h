#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/json_value.h"
#include "ductile/net/loop.h"
#include "ductile/net/secret.h"
#include "ductile/process/line_reader.h"
#include "ductile/server/agent_wire_impl.h"
#include "ductile/server/agents.h"

namespace ductile::server {

// The controller's end of the connection to one host's agent.
class AgentLink {
 public:
  enum class State { down, greeting, ready };

  // `launcher`: of this host, as HostSetup has it. `on_words` is called when take() may have
  // something.
  AgentLink(net::Loop& loop, const AgentsOptions& options, const Host& host, std::string launcher,
            std::function<void()> on_words);
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;
  ~AgentLink();

  const Host& host() const { return host_; }
  State state() const { return state_; }
  const std::string& error() const { return error_; }  // why it is down; empty: it was never up
  int64_t cores() const { return cores_; }
  double leaving() const { return leaving_; }  // as it said when it became ready: Agents::leaving()
  bool beside() const { return beside_; }      // its agent is on this machine, and has said so

  void dial(const net::Secret& secret);  // starts the agent
  bool may_dial() const;
  void say(const nlohmann::json& value);
  // What the agent said, but for the greeting; notices when it is gone.
  std::vector<nlohmann::json> take();
  // Ends the launcher command; the agent sees the end of its input.
  void hang_up();

  const Descriptor& answers() const { return from_; }
  const Descriptor& talk() const { return talk_; }

 private:
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  std::string command() const;
  void flush();
  void fall(const std::string& why);
  bool hear(std::string& trouble, std::vector<nlohmann::json>& said);
  // Keeps the last words of a host that does not speak as an agent does.
  void remember(std::string_view words);
  std::string hear_line(const nlohmann::json& value);
  std::string hear_message(nlohmann::json value, std::vector<nlohmann::json>& said);

  net::Loop& loop_;
  const AgentsOptions& options_;
  const Host host_;
  const std::string launcher_;
  const std::function<void()> on_words_;
  State state_ = State::down;
  std::string error_;
  int64_t cores_ = 0;
  double leaving_ = 0;
  bool beside_ = false;
  pid_t pid_ = -1;
  Descriptor to_, from_, talk_;
  net::Loop::Watch to_watch_, from_watch_, talk_watch_;  // the first while words wait for it
  AgentWire wire_;
  process::LineReader talk_lines_;
  std::vector<std::string> last_words_;  // of the launcher command
  std::optional<net::Secret> secret_;    // while it is greeted
  std::string nonce_;
  Clock::time_point dialled_at_{}, heard_at_{}, retry_at_{};
  milliseconds retry_in_;
};

}  // namespace ductile::server
