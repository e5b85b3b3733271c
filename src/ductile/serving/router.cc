#include "ductile/serving/router.h"

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/net/peer_user.h"
#include "ductile/serving/loopback_impl.h"
#include "ductile/serving/router_impl.h"

namespace ductile::serving {
namespace {

constexpr std::chrono::milliseconds kRetry{100};
// Replicas that ended while they had a request: more would end in the same way.
constexpr size_t kMostEnded = 3;
constexpr std::string_view kEnding = "the server is ending; ask another one";

using Reply = HttpServer::Reply;
using ReplicaId = Router::ReplicaId;

}  // namespace

Router::Impl::Impl(net::Loop& loop, RouterOptions options)
    : loop_(loop),
      options_(std::move(options)),
      http_(loop, options_.http, [this](HttpRequest request, Reply reply) {
        handle(std::move(request), std::move(reply));
      }) {
  looked_ = loop_.now();
  probe_ = loop_.every(options_.silence / 4, [this] { probe_all(); });
}

std::string Router::Impl::metrics() const {
  const Load now = load();
  std::string out;
  const auto add = [&](const char* name, const char* help, const char* type, auto value) {
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
  };
  add("ductile_router_replicas", "Replicas that take requests.", "gauge", usable());
  add("ductile_router_requests_total", "Requests that arrived.", "counter", now.arrived);
  add("ductile_router_answers_total", "Requests that a replica answered.", "counter", now.answered);
  add("ductile_router_retries_total", "Requests that went to another replica.", "counter",
      now.retried);
  add("ductile_router_in_flight", "Requests at replicas.", "gauge", now.in_flight);
  add("ductile_router_waiting", "Requests without a replica.", "gauge", now.waiting);
  add("ductile_router_busy_seconds_total", "Time of requests at replicas.", "counter",
      now.busy_seconds);
  return out;
}

HttpResponse Router::Impl::come_again(std::string_view text) {
  HttpResponse response = error_response(503, text);
  response.headers.emplace_back("Retry-After", "1");
  return response;
}

void Router::Impl::handle(HttpRequest request, Reply reply) {
  const auto plain = [&](int status, std::string text) {
    HttpResponse response;
    response.status = status;
    response.type = "text/plain; charset=utf-8";
    response.body = std::move(text);
    reply(std::move(response));
  };
  // A replica's answer to HEAD has a length and no body to wait for.
  if (request.method != "GET" && request.method != "POST")
    return reply(error_response(405, "GET and POST are what there is"));
  if (request.method == "GET" && request.path == "/healthz") return plain(200, "ok\n");
  if (request.method == "GET" && request.path == "/metrics") return plain(200, metrics());
  if (request.method == "GET" && request.path == "/readyz" && (draining_ || usable() == 0))
    return plain(503, draining_ ? "draining\n" : "no replica\n");
  const bool loads = request.method == "POST" && request.path.ends_with("/load");
  if (loads && !is_own(request))  // the replicas would see this process as the one that asks
    return reply(error_response(403, "weights are changed by the user whose server this is"));
  const bool full = open_ >= static_cast<int64_t>(options_.most_waiting);
  if (draining_) return reply(come_again(kEnding));
  if (full) {
    ++load_.arrived;
    return reply(come_again("too many requests wait; try again later"));
  }
  const PassagePtr passage = arrived(to_bytes(request, address().to_string()), std::move(reply));
  if (loads) {
    passage->load_path = request.path;
    return begin_load(passage);
  }
  limit(passage);
  dispatch(passage);
}

Router::Impl::PassagePtr Router::Impl::arrived(std::string bytes, HttpServer::Reply reply) {
  ++load_.arrived;
  ++open_;
  const auto passage = std::make_shared<Passage>();
  passage->bytes = std::move(bytes);
  passage->reply = std::move(reply);
  passage->arrived = loop_.now();
  return passage;
}

void Router::Impl::limit(const PassagePtr& passage) {
  passage->limit = loop_.after(options_.patience, [this, weak = std::weak_ptr(passage)] {
    const PassagePtr passage = weak.lock();
    if (!passage) return;
    // One that answers questions about its health still loads them, and will have them.
    if (passage->loads() && passage->at != 0 && !replicas_.at(passage->at).silent)
      return limit(passage);
    finish(passage, error_response(504, "no replica answered in time"));
  });
}

// The one with the fewest requests, of those that have not refused this one; if all have, any.
ReplicaId Router::Impl::choose(const Passage& passage) const {
  if (passage.loads()) {
    const auto next = std::ranges::find_if(replicas_, [&](const auto& one) {
      const Replica& replica = one.second;
      const bool need_not =
          passage.own &&
          (replica.silent || (passage.version && replica.version == passage.version));
      return !need_not && !replica.retiring && !replica.told_lost &&
             !has(passage.done, one.first) && !has(passage.refused, one.first);
    });
    return next == replicas_.end() ? 0 : next->first;
  }
  ReplicaId best = 0;
  const auto rank = [&](ReplicaId id) {
    return std::pair(has(passage.refused, id), replicas_.at(id).in_flight);
  };
  for (const auto& [id, replica] : replicas_) {
    if (replica.takes_requests() && (best == 0 || rank(id) < rank(best))) best = id;
  }
  return best;
}

void Router::Impl::dispatch(const PassagePtr& passage) {
  if (passage->ended.size() >= kMostEnded) {
    return finish(
        passage,
        error_response(502,
                       "three replicas ended while they had this request; no other one gets it"));
  }
  const ReplicaId id = choose(*passage);
  if (id == 0 && passage->loads()) return end_load(passage);
  const bool refused = has(passage->refused, id);
  if (id != 0 && !refused && hand_to(id, passage)) return;
  if (id != 0 && !refused) return again(passage, id);  // nobody listens there any more
  // None, or none that has not lost this one: a new one comes, or one of these recovers.
  passage->refused.clear();
  waiting_.push_back(passage);
  loop_.arm_once(retry_, kRetry, [this] { dispatch_all(); });
}

void Router::Impl::dispatch_all() {
  for (const PassagePtr& passage : std::exchange(waiting_, {})) dispatch(passage);
}

bool Router::Impl::hand_to(ReplicaId id, const PassagePtr& passage) {
  Replica& replica = replicas_.at(id);
  auto link = std::ranges::find_if(replica.links, [](const Link& l) { return !l.passage; });
  if (link == replica.links.end()) {
    bool is_listed = false;
    try {
      Link made;
      made.socket = replica.connect();
      link = replica.links.insert(replica.links.end(), std::move(made));
      is_listed = true;
      link->watch = loop_.watch(link->socket.fd(), net::Interest::both,
                                [this, id, link](net::Ready) { on_ready(id, link); });
    } catch (const Error&) {
      if (is_listed) replica.links.erase(link);  // nobody would hear what comes over it
      return false;
    }
  } else {
    link->watch.set(net::Interest::both);
  }
  link->passage = passage;
  link->sent = 0;
  link->reader = HttpReader(HttpReader::Kind::response, {.body = options_.most_answer});
  passage->at = id;
  passage->asked = loop_.now();
  if (replica.in_flight++ == 0) replica.busy_since = passage->asked;
  return true;
}

// False: the connection is broken.
bool Router::Impl::write(Link& link) {
  const std::string& bytes = link.passage->bytes;
  while (link.sent < bytes.size()) {
    const ssize_t n = ::send(link.socket.fd(), bytes.data() + link.sent, bytes.size() - link.sent,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    link.sent += static_cast<size_t>(n);
  }
  link.watch.set(net::Interest::read);
  return true;
}

// Whether what has come is from a process of this user, or of root. A replica that has ended leaves
// its port to anybody on this machine, who could answer what he likes before its end is known here.
bool Router::Impl::is_ours(const Replica& replica, const net::Socket& socket) {
  if (!replica.local) return true;  // who gets in there has proved that he may
  const auto user = net::user_at_other_end(socket.fd());
  // Who has answered and is gone is nobody to be believed. That no descriptor is left to ask the
  // kernel says nothing of him.
  if (!user) {
    if (!knows_users_) knows_users_ = net::kernel_knows_users();
    return !knows_users_.value_or(false) || !Descriptor(::dup(socket.fd()));
  }
  return *user == 0 || *user == ::geteuid();
}

void Router::Impl::on_ready(ReplicaId id, std::list<Link>::iterator link) {
  if (link->passage && link->sent < link->passage->bytes.size() && !write(*link))
    return lost(id, link);
  char block[65536];
  const ssize_t n = ::recv(link->socket.fd(), block, sizeof block, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0 || !link->passage) return lost(id, link, /*ended=*/true);
  if (!link->known) link->known = is_ours(replicas_.at(id), link->socket);
  if (!link->known) return lost(id, link);
  link->reader.take(std::string_view(block, static_cast<size_t>(n)));
  if (link->reader.fault()) return lost(id, link);
  if (link->reader.whole()) answered(id, link);
}

void Router::Impl::end_link(ReplicaId id, std::list<Link>::iterator link) {
  link->watch.end();
  replicas_.at(id).links.erase(link);
}

// The request is no longer at the replica.
void Router::Impl::leave(ReplicaId id, Passage& passage) {
  Replica& replica = replicas_.at(id);
  const net::Deadline now = loop_.now();
  if (--replica.in_flight == 0) load_.replica_seconds += seconds(replica.busy_since, now);
  passage.at = 0;
  load_.busy_seconds += seconds(passage.asked, now);
}

void Router::Impl::lost(ReplicaId id, std::list<Link>::iterator link, bool ended) {
  const PassagePtr passage = std::move(link->passage);
  const bool had_it = passage && link->sent == passage->bytes.size();
  end_link(id, link);
  if (!passage) return;  // it was between two requests
  leave(id, *passage);
  if (ended && had_it && !passage->loads() && !has(passage->ended, id))
    passage->ended.push_back(id);
  again(passage, id);
  look_idle(id);
}

void Router::Impl::again(const PassagePtr& passage, ReplicaId refused) {
  passage->refused.push_back(refused);
  ++load_.retried;
  if (passage->reply) {
    // Not from here: the replica that is lost may be about to be removed.
    loop_.post([this, passage, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired() && passage->reply && passage->at == 0) dispatch(passage);
    });
  }
}

void Router::Impl::answered(ReplicaId id, std::list<Link>::iterator link) {
  const PassagePtr passage = std::move(link->passage);
  replicas_.at(id).probe.heard = listening();
  HttpResponse response = link->reader.response();
  const bool goes_on = response.keep_alive;
  response.keep_alive = true;
  if (goes_on) {
    link->watch.set(net::Interest::read);
  } else {
    end_link(id, link);
  }
  leave(id, *passage);
  const bool others = std::ranges::any_of(
      replicas_, [&](const auto& one) { return one.first != id && one.second.takes_requests(); });
  if (passage->loads() && response.status == 200) {
    has_loaded(id, passage, std::move(response));
    dispatch(passage);  // the next replica loads them
  } else if (passage->loads() && goes_on_without(id, *passage, response.status)) {
    dispatch(passage);
  } else if (response.status == 503 && others && !passage->loads() && passage->refused.size() < 8) {
    again(passage, id);
  } else {
    ++load_.answered;
    finish(passage, std::move(response));
  }
  look_idle(id);
}

void Router::Impl::finish(const PassagePtr& passage, HttpResponse response) {
  if (!passage->reply) return;
  passage->limit.cancel();
  std::erase(waiting_, passage);
  std::exchange(passage->reply, {})(std::move(response));
  --open_;
  if (passage->at != 0) {  // given up: what it would answer is not waited for
    const ReplicaId id = passage->at;
    auto& links = replicas_.at(id).links;
    const auto link =
        std::ranges::find_if(links, [&](const Link& l) { return l.passage == passage; });
    if (passage->loads() && !options_.model.empty() && wanted_) {
      // It may load them all the same, once it goes on.
      replicas_.at(id).version.reset();
      replicas_.at(id).catching_up = true;
    }
    leave(id, *passage);
    if (link != links.end()) end_link(id, link);
    look_idle(id);
  }
  if (passage == loading_) {
    loading_.reset();
    // Where no replica could load them now, probe_all() looks again.
    const bool futile = passage->own && passage->done.empty();
    loop_.post([this, futile, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired() && !(futile && to_load_.empty())) next_load();
    });
  }
  if (draining_ && open_ == 0) end_drain();
}

// ---- Health. A process that is stopped keeps its connections open, and answers nothing.

// The time in which replicas could have been heard. Where this process was stopped itself nobody
// was asked meanwhile, so of the time between two looks no more counts than twice what they are
// apart.
net::Clock::duration Router::Impl::listening() const {
  const net::Clock::duration most = options_.silence / 2;
  return listened_ + std::min(loop_.now() - looked_, most);
}

void Router::Impl::probe_all() {
  listened_ = listening();
  looked_ = loop_.now();
  std::vector<ReplicaId> lost;
  for (auto& [id, replica] : replicas_) {
    const auto silent_for = listening() - replica.probe.heard;
    if (!replica.silent && silent_for > options_.silence) fall_silent(id, replica);
    if (!replica.told_lost && silent_for > options_.lost * options_.silence) {
      replica.told_lost = true;
      lost.push_back(id);
    }
    if (!replica.probe.asking) ask_health(id, replica);
  }
  for (const ReplicaId id : lost) {
    if (on_lost_) on_lost_(id);
    // Nobody can end it where its machine is cut off, so what it has is not waited for.
    for (auto one = replicas_.find(id); one != replicas_.end() && !one->second.links.empty();)
      this->lost(id, one->second.links.begin());
  }
  look_at_versions();
}

void Router::Impl::ask_health(ReplicaId id, Replica& replica) {
  Probe& probe = replica.probe;
  try {
    if (probe.socket) {
      probe.watch.set(net::Interest::both);
    } else {
      probe.socket = replica.connect();
      probe.watch = loop_.watch(probe.socket.fd(), net::Interest::both,
                                [this, id](net::Ready) { on_probe(id); });
    }
    probe.reader = HttpReader(HttpReader::Kind::response);
    probe.asking = true;
    probe.sent = false;
  } catch (const Error& error) {
    probe.end();
    // No descriptor is left: that says nothing of the replica.
    if (error.code() == ErrorCode::unavailable) probe.heard = listening();
  }
}

// Whatever it says, it lives. The question stays where nothing comes, so that its answer is heard
// as soon as the replica goes on.
void Router::Impl::on_probe(ReplicaId id) {
  Replica& replica = replicas_.at(id);
  Probe& probe = replica.probe;
  if (probe.asking && !std::exchange(probe.sent, true)) {
    static constexpr std::string_view kAsk = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    if (::send(probe.socket.fd(), kAsk.data(), kAsk.size(), MSG_NOSIGNAL | MSG_DONTWAIT) <= 0)
      return probe.end();
    return probe.watch.set(net::Interest::read);
  }
  char block[4096];
  const ssize_t n = ::recv(probe.socket.fd(), block, sizeof block, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // It is gone, or has no place for one more, or ends what waits: the next probe tells.
  if (n <= 0 || !probe.asking || !is_ours(replica, probe.socket)) return probe.end();
  probe.reader.take(std::string_view(block, static_cast<size_t>(n)));
  if (probe.reader.whole()) probe.asking = false;
  if (probe.reader.fault() || (probe.reader.whole() && !probe.reader.response().keep_alive))
    probe.end();
  probe.heard = listening();
  if (std::exchange(replica.silent, false)) dispatch_all();
}

// Weights are loaded by every replica, so those requests stay until it is lost.
void Router::Impl::fall_silent(ReplicaId id, Replica& replica) {
  replica.silent = true;
  replica.probe.end();  // a new connection is not held up by what was sent and got lost
  for (auto link = replica.links.begin(); link != replica.links.end();) {
    const auto next = std::next(link);
    if (!link->passage || !link->passage->loads()) lost(id, link);
    link = next;
  }
}

void Router::Impl::look_idle(ReplicaId id) {
  const auto found = replicas_.find(id);
  if (found == replicas_.end() || !found->second.retiring || found->second.in_flight > 0) return;
  const auto on_idle = std::exchange(found->second.on_idle, {});
  if (on_idle) loop_.post(on_idle);
}

void Router::Impl::add(ReplicaId id, Connect connect, std::optional<int64_t> version, bool local) {
  DUCTILE_CHECK(id != 0 && !replicas_.contains(id), "replica {}", id);
  Replica& replica = replicas_[id];
  replica.connect = std::move(connect);
  replica.local = local;
  replica.probe.heard = listening();
  replica.version = version;
  if (!options_.model.empty()) {
    if (!wanted_) wanted_ = version;
    replica.catching_up = version != wanted_ && version;
    look_at_versions();
  }
  dispatch_all();
}

void Router::Impl::retire(ReplicaId id, std::function<void()> on_idle) {
  Replica& replica = replicas_.at(id);
  replica.retiring = true;
  replica.on_idle = std::move(on_idle);
  look_idle(id);
}

void Router::Impl::remove(ReplicaId id) {
  const auto found = replicas_.find(id);
  if (found == replicas_.end()) return;
  found->second.retiring = true;
  found->second.probe.watch.end();
  while (!found->second.links.empty()) lost(id, found->second.links.begin(), /*ended=*/true);
  replicas_.erase(found);
}

Router::Load Router::Impl::load() const {
  Load out = load_;
  for (const auto& [id, replica] : replicas_) {
    out.in_flight += static_cast<int64_t>(replica.in_flight);
    if (replica.in_flight > 0) out.replica_seconds += seconds(replica.busy_since, loop_.now());
  }
  out.waiting = static_cast<int64_t>(waiting_.size());
  return out;
}

void Router::Impl::refuse_waiting() {
  for (const PassagePtr& passage : std::exchange(waiting_, {}))
    finish(passage, come_again(kEnding));
}

void Router::Impl::drain(std::function<void()> on_drained) {
  draining_ = true;
  on_drained_ = std::move(on_drained);
  if (open_ == 0) end_drain();
}

void Router::Impl::end_drain() {
  http_.drain([this] {
    if (on_drained_) std::exchange(on_drained_, {})();
  });
}

Router::Router(net::Loop& loop, RouterOptions options)
    : impl_(std::make_unique<Impl>(loop, std::move(options))) {}
Router::~Router() = default;
net::Address Router::address() const { return impl_->address(); }
void Router::add(ReplicaId id, const net::Address& address, std::optional<int64_t> version) {
  impl_->add(
      id, [port = address.port] { return begin_connect_here(port); }, version, /*local=*/true);
}
void Router::add(ReplicaId id, Connect connect, std::optional<int64_t> version) {
  impl_->add(id, std::move(connect), version, /*local=*/false);
}
void Router::want(std::optional<int64_t> version) { impl_->want(version); }
std::optional<int64_t> Router::wanted() const { return impl_->wanted(); }
void Router::call_when_changed(std::function<void(ReplicaId, int64_t)> on_changed) {
  impl_->call_when_changed(std::move(on_changed));
}
void Router::retire(ReplicaId id, std::function<void()> on_idle) {
  impl_->retire(id, std::move(on_idle));
}
void Router::remove(ReplicaId id) { impl_->remove(id); }
bool Router::takes_requests(ReplicaId id) const { return impl_->takes_requests(id); }
void Router::call_when_lost(std::function<void(ReplicaId)> on_lost) {
  impl_->call_when_lost(std::move(on_lost));
}
void Router::call_when_loaded(std::function<void(int64_t)> on_loaded) {
  impl_->call_when_loaded(std::move(on_loaded));
}
void Router::load_weights(const std::string& model, std::optional<int64_t> version,
                          HttpServer::Reply reply) {
  impl_->load_weights(model, version, std::move(reply));
}
Router::Load Router::load() const { return impl_->load(); }
void Router::refuse_waiting() { impl_->refuse_waiting(); }
void Router::drain(std::function<void()> on_drained) { impl_->drain(std::move(on_drained)); }

}  // namespace ductile::serving
