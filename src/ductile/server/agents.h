#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/control/protocol.h"
#include "ductile/net/loop.h"
#include "ductile/net/secret.h"
#include "ductile/server/hosts.h"
#include "ductile/server/node_devices.h"

namespace ductile::server {

class AgentLink;

struct AgentsOptions {
  HostSetup setup;
  fs::path folder;       // that all hosts share; the runs of all jobs are in it, or are it
  fs::path program;      // ductile: the same path on every host
  fs::path worker;       // ductile-worker: the same path on every host, or beside `program` there
  fs::path keeper = {};  // ductile-keeper, likewise
  // The hosts from this one on are lent: none of them is called before call() says so, and then by
  // `lent_launcher` in place of the setup's.
  size_t lent_from = SIZE_MAX;
  std::string lent_launcher = {};
  bool devices = false;  // each place of a host is a device: a share of its cores for one worker
  std::chrono::milliseconds patience = std::chrono::seconds(30);  // for a host to answer
  std::chrono::milliseconds silence = std::chrono::seconds(15);   // of one that has answered
};

// The agents of several hosts (host_agent.h), one each, at the other end of a launcher command's
// stdin and stdout. An agent whose connection breaks is started again, at growing intervals. All
// jobs of one controller use the same agents, each through a launcher of its own (hosts.h).
//
// A host that has come (again) may have workers of its past: those that no job knows any more are
// ended, and until all of them are gone the host is not clean().
//
// It belongs to the thread of its loop; none of its methods but meet() and await() waits.
class Agents {
 public:
  // One job.
  class Job {
   public:
    virtual ~Job() = default;
    virtual void ready(size_t host) = 0;  // its agent has come (again)
    virtual void changed(size_t host) = 0;
    virtual void heard(size_t host, const nlohmann::json& said) = 0;
    enum class Knows { no, yes, not_yet };
    virtual Knows knows(control::WorkerId worker) const = 0;
  };

  // Begins to call the hosts.
  Agents(net::Loop& loop, AgentsOptions options);
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;
  ~Agents();  // the agents end; workers go on

  size_t hosts() const { return states_.size(); }
  const Host& host(size_t h) const;
  bool ready(size_t h) const;         // its agent answers
  bool clean(size_t h) const;         // and no worker is there that no job knows
  std::string error(size_t h) const;  // why it is not ready, or not clean
  bool calling(size_t h) const;       // it has not answered yet
  // Seconds within which its machine will be gone, as its agent was told; 0: nobody said so. Also
  // of one whose agent has gone since, until the next one says that it stays.
  double leaving(size_t h) const { return states_[h].leaving; }
  // It was called, and has neither answered nor failed yet: it may be clean at any moment.
  bool coming(size_t h) const;
  int64_t cores(size_t h) const;  // that its agent may use; 0: not known
  // What its agent said last that there is; nothing: no agent has said it yet, or none is asked.
  const std::optional<NodeHardware>& hardware(size_t h) const { return states_[h].hardware; }
  // Called when a host became ready, clean, or neither, or leaving, or its hardware is another; it
  // must only note this.
  void call_on_change(std::function<void()> on_change) { on_change_ = std::move(on_change); }

  // A host that is not there now, for this reason: it is not called, and its agent is given up.
  void hold(size_t h, std::string why);
  void call(size_t h);  // it is there: from now on it is called, at once

  // This process is about to end in good order. What tells it may have told the agents on this
  // machine, too, within some seconds of when it told this process, which may hear it late: to
  // these that is no notice.
  void stop();

  void say(size_t h, const nlohmann::json& request);
  void join(const std::string& run, Job& job);
  void leave(const std::string& run);

  // Waits until every host has answered or failed. Throws unavailable, with what they said, if none
  // can be used, or with `all` if one cannot.
  void meet(bool all);
  // For those whose loop does not turn: waits for words, and hears them.
  void await(std::chrono::milliseconds wait);

  net::Loop& loop() { return loop_; }

 private:
  struct State {
    std::unique_ptr<AgentLink> link;
    bool clean = false, asked = false;  // asked: for a census
    std::string held;                   // why it is not called
    size_t strays = 0;
    double leaving = 0;
    std::optional<NodeHardware> hardware;
    net::Deadline next_census{};
  };

  void wake();
  void turn();
  void hear(size_t h, const nlohmann::json& said);
  void hear_hardware(size_t h, const nlohmann::json& said);
  void take_census(size_t h, const nlohmann::json& workers);
  void changed(size_t h);
  void forget(State& state);

  net::Loop& loop_;
  const AgentsOptions options_;
  const net::Secret secret_;
  std::vector<State> states_;
  std::map<std::string, Job*> jobs_;
  std::function<void()> on_change_;
  bool awake_ = false, meeting_ = false;
  net::Loop::Timer tick_, sweep_;
  std::optional<control::Time> stop_;  // when it began
  // What had come by the former was heard before the latter, unless it waits still.
  control::Time heard_before_{}, heard_{};
  control::Time told_{};  // that it is to stop: not before this
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ductile::server
