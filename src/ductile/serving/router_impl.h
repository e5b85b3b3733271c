#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ductile/net/loop.h"
#include "ductile/net/socket.h"
#include "ductile/serving/http_message.h"
#include "ductile/serving/http_server.h"
#include "ductile/serving/router.h"

namespace ductile::serving {

// router.cc passes requests on and asks replicas for their health; router_weights.cc keeps them at
// the same weights.
class Router::Impl {
 public:
  Impl(net::Loop& loop, RouterOptions options);

  net::Address address() const { return http_.address(); }
  // `local`: by TCP, on this machine.
  void add(ReplicaId id, Connect connect, std::optional<int64_t> version, bool local);
  void retire(ReplicaId id, std::function<void()> on_idle);
  void remove(ReplicaId id);
  bool takes_requests(ReplicaId id) const {
    const auto found = replicas_.find(id);
    return found != replicas_.end() && found->second.takes_requests();
  }
  void want(std::optional<int64_t> version) {
    set_wanted(version);
    look_at_versions();
  }
  std::optional<int64_t> wanted() const { return wanted_; }
  void call_when_changed(std::function<void(ReplicaId, int64_t)> changed) {
    on_changed_ = std::move(changed);
  }
  void call_when_lost(std::function<void(ReplicaId)> on_lost) { on_lost_ = std::move(on_lost); }
  void call_when_loaded(std::function<void(int64_t)> loaded) { on_loaded_ = std::move(loaded); }
  void load_weights(const std::string& model, std::optional<int64_t> version,
                    HttpServer::Reply reply);
  Load load() const;
  void refuse_waiting();
  void drain(std::function<void()> on_drained);

 private:
  template <class Where>
  static bool has(const Where& where, ReplicaId id) {
    return std::ranges::find(where, id) != where.end();
  }

  // A request from its arrival to its answer.
  struct Passage {
    std::string bytes;  // as it goes to a replica
    HttpServer::Reply reply;
    net::Deadline arrived{}, asked{};
    net::Loop::Timer limit;
    ReplicaId at = 0;                // the replica that has it; 0: it waits for one
    std::vector<ReplicaId> refused;  // that were lost with it, or are ending
    std::vector<ReplicaId> ended;    // while they had the whole of it
    // Of a request to load weights.
    std::string load_path;           // empty: it is another request
    bool own = false;                // the router's
    std::vector<ReplicaId> done;     // have loaded them
    std::optional<int64_t> version;  // that is to be loaded; none: the newest
    HttpResponse loaded;             // the last good answer

    bool loads() const { return !load_path.empty(); }
  };
  using PassagePtr = std::shared_ptr<Passage>;

  // A connection to a replica, with a request or between two.
  struct Link {
    net::Socket socket;
    net::Loop::Watch watch;
    HttpReader reader{HttpReader::Kind::response};
    PassagePtr passage;
    size_t sent = 0;
    bool known = false;  // who answers there
  };
  // Questions about a replica's health, one after the other over one connection: behind a door a
  // new one costs a handshake.
  struct Probe {
    net::Socket socket;
    net::Loop::Watch watch;
    HttpReader reader{HttpReader::Kind::response};
    bool asking = false, sent = false;
    net::Clock::duration heard{};  // listening() when the replica last answered anything, or came

    void end() {
      watch.end();
      socket = {};
      asking = false;
    }
  };
  struct Replica {
    Connect connect;
    bool local = false;
    std::list<Link> links;
    Probe probe;
    size_t in_flight = 0;
    net::Deadline busy_since{};  // where something is in flight
    bool retiring = false, silent = false, told_lost = false;
    std::optional<int64_t> version;  // of its weights, where that is known
    bool catching_up = false;        // has other weights than it is to have
    std::function<void()> on_idle;
    bool takes_requests() const { return !retiring && !silent && !told_lost && !catching_up; }
  };

  static HttpResponse come_again(std::string_view text);
  void handle(HttpRequest request, HttpServer::Reply reply);
  std::string metrics() const;
  int64_t usable() const {
    return std::ranges::count_if(replicas_,
                                 [](const auto& one) { return one.second.takes_requests(); });
  }
  void dispatch(const PassagePtr& passage);
  void dispatch_all();
  ReplicaId choose(const Passage& passage) const;
  bool hand_to(ReplicaId id, const PassagePtr& passage);
  void on_ready(ReplicaId id, std::list<Link>::iterator link);
  bool write(Link& link);
  bool is_ours(const Replica& replica, const net::Socket& socket);
  void end_link(ReplicaId id, std::list<Link>::iterator link);
  // `ended`: the replica's process ended, or the way to it.
  void lost(ReplicaId id, std::list<Link>::iterator link, bool ended = false);
  void answered(ReplicaId id, std::list<Link>::iterator link);
  void again(const PassagePtr& passage, ReplicaId refused);
  void finish(const PassagePtr& passage, HttpResponse response);
  void leave(ReplicaId id, Passage& passage);
  void look_idle(ReplicaId id);
  net::Clock::duration listening() const;
  void probe_all();
  void ask_health(ReplicaId id, Replica& replica);
  void on_probe(ReplicaId id);
  void fall_silent(ReplicaId id, Replica& replica);
  void end_drain();
  void limit(const PassagePtr& passage);
  PassagePtr arrived(std::string bytes, HttpServer::Reply reply);
  void begin_load(PassagePtr passage);
  void next_load();
  void look_at_versions();
  void ask_for(Passage& passage, std::optional<int64_t> version);
  void set_wanted(std::optional<int64_t> version);
  void has_loaded(ReplicaId id, const PassagePtr& passage, HttpResponse response);
  bool goes_on_without(ReplicaId id, Passage& passage, int status);
  void leave_behind();
  void end_load(const PassagePtr& passage);
  static double seconds(net::Deadline from, net::Deadline to) {
    return std::chrono::duration<double>(to - from).count();
  }

  net::Loop& loop_;
  const RouterOptions options_;
  std::map<ReplicaId, Replica> replicas_;
  std::deque<PassagePtr> waiting_;
  PassagePtr loading_;              // the one request to load that is at a replica
  std::deque<PassagePtr> to_load_;  // wait for its end
  std::optional<int64_t> wanted_;   // weights of all replicas
  Load load_;
  int64_t open_ = 0;  // requests that are not answered
  bool draining_ = false;
  std::optional<bool>
      knows_users_;  // whether the kernel says who has the other end of a connection
  std::function<void()> on_drained_;
  net::Loop::Timer retry_, probe_;
  net::Deadline looked_;             // probe_all()
  net::Clock::duration listened_{};  // listening() at that time
  std::function<void(ReplicaId)> on_lost_;
  std::function<void(int64_t)> on_loaded_;
  std::function<void(ReplicaId, int64_t)> on_changed_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  HttpServer http_;
};

}  // namespace ductile::serving
