#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/cluster/scheduler.h"
#include "ductile/cluster/why_impl.h"
#include "ductile/net/loop.h"
#include "ductile/net/secret.h"
#include "ductile/serving/replica_link.h"
#include "ductile/serving/router.h"

namespace ductile::cluster {

inline constexpr int64_t kMostVersion = int64_t{1} << 60;

// The event by which somebody wants other weights: {"version", "by"}; null: the newest.
inline constexpr std::string_view kReload = "reload";

// A job of kind "serve": replicas that answer inference requests for a run.
struct ServeSpec {
  fs::path run;                    // that is served; absolute
  std::string model;               // what it is called in addresses
  uint16_t port = 0;               // of this machine; 0: any free one, which is then kept
  std::optional<int64_t> version;  // the checkpoint to begin with; none: the newest weights
  bool follow = false;             // takes newer weights as they come
  int64_t max_batch = 32, max_waiting = 1024;
  double max_delay = 0;  // milliseconds that a sample waits for others
  double target = 0.5;   // seconds within which requests are to be answered
};

// Throws invalid_argument, which says what is wrong.
ServeSpec serve_of(const nlohmann::json& spec);

// From what a router counts: the requests that come, the most that came lately, and how many one
// replica answers per second. A pure function of its readings.
//
// The rate is counted while a replica has requests. Where it has few at a time that says less than
// what it could do, since batches grow with the load; so the rate falls only by what is seen of
// replicas that are busy most of the time.
class LoadMeter {
 public:
  // `interval`: seconds between two decisions.
  explicit LoadMeter(double interval) : smooth_(interval / 2), memory_(6 * interval) {}

  // `now` rises; `replicas` take requests.
  void add(double now, const serving::Router::Load& total, int64_t replicas);
  ServiceLoad load() const;

 private:
  const double smooth_, memory_;  // seconds: over which load is averaged, for which the most counts
  struct Reading {
    double time = 0;
    int64_t arrived = 0;
  };
  std::deque<Reading> readings_;
  std::deque<std::pair<double, double>> loads_;  // by time
  double rate_ = 0;
  // Since the rate was looked at last.
  std::optional<double> since_;
  int64_t answered_ = 0;
  double busy_ = 0, could_ = 0;  // replica-seconds
  double last_ = 0;
};

// What a service's front keeps over its own end, in the store.
struct FrontMemory {
  uint16_t port = 0;  // 0: none yet
  uint64_t last = 0;  // the number of the youngest replica
  struct Replica {
    std::string address;             // where it listens; empty: unknown
    std::optional<int64_t> version;  // of its weights, where that is known
    bool has_door = false;           // the address is that of a serving::ReplicaDoor
  };
  std::map<uint64_t, Replica> replicas;  // that may live
  // Of the weights of all of them: those that the first one found, or that somebody had them load.
  std::optional<int64_t> version;
  Revision reloaded = 0;  // the last event of kind kReload that was carried out

  nlohmann::json to_json() const;
  // Throws data_loss.
  static FrontMemory from_json(const nlohmann::json& value);
};

std::string front_memory_name(JobId job);

// The address of a service job: it stays while replicas come and go, on whichever nodes, and holds
// requests while there is none. It belongs to the loop's thread.
class Front {
 public:
  struct Callbacks {
    // Puts the memory on the disk, then calls `then`.
    std::function<void(const FrontMemory&, std::function<void()> then)> save;
    std::function<void()> on_load;                 // now and then
    std::function<void(const std::string&)> tell;  // what happened, in a line
  };

  // Of this process, by each request on its way to a replica: those of its client, and of a
  // connection to a door (serving::ReplicaLinks).
  static constexpr int kDescriptorsOfARequest = 4;

  // At most so many clients are connected at once; more are told to come again. Throws unavailable
  // where the port is taken.
  Front(net::Loop& loop, ServeSpec spec, FrontMemory memory, double interval, Callbacks callbacks,
        size_t most_connections = serving::HttpOptions{}.most_connections);
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;
  ~Front();  // what still waits is refused

  const ServeSpec& spec() const { return spec_; }
  serving::Router& router() { return router_; }
  FrontMemory& memory() { return memory_; }
  void save(std::function<void()> then = {});

  // From now on replicas with a door can be added, until close_doors(), which ends all connections
  // to them. `job`: serving::FrontPlace::job.
  void use_doors(const net::Secret& secret, const std::string& job);
  void close_doors() { links_.reset(); }
  // It gets requests, by the address under which it is kept.
  void add(uint64_t id, const FrontMemory::Replica& replica);
  void tell(const std::string& line) const { callbacks_.tell(line); }

  // Somebody wants all replicas to have these weights (none: the newest), by the event `asked`. It
  // is done once there is a replica, and only the newest of these events is.
  void reload(Revision asked, std::optional<int64_t> version);

  std::string address() const;  // http://HOST:PORT/v2/models/NAME
  // Those that take requests; also by the names of their nodes, where there are several.
  void set_ready(int64_t replicas, std::map<std::string, int64_t> by_node = {}) {
    ready_ = replicas;
    by_node_ = std::move(by_node);
  }
  // Why some of its replicas are not started now, for people; empty: all are.
  void set_trouble(std::string text) { trouble_ = std::move(text); }
  ServiceLoad load() const { return meter_.load(); }
  ServingFigures figures() const;

  // Refuses what comes from now on. The callback comes when all that was accepted is answered, or
  // after a while.
  void close();
  bool closing() const { return closing_; }
  void call_when_quiet(std::function<void()> on_quiet);

 private:
  void look();
  void try_reload(std::optional<int64_t> version);

  net::Loop& loop_;
  const ServeSpec spec_;
  FrontMemory memory_;
  const Callbacks callbacks_;
  std::optional<serving::ReplicaLinks> links_;
  std::set<uint64_t> troubled_;  // whose first trouble was told
  serving::Router router_;
  LoadMeter meter_;
  int64_t ready_ = 0;
  std::map<std::string, int64_t> by_node_;
  std::string trouble_;
  bool closing_ = false, quiet_ = false;
  std::function<void()> on_quiet_;
  Revision reloading_ = 0;  // the event that is carried out, or was last
  net::Loop::Timer look_, patience_, reload_;
};

}  // namespace ductile::cluster
