#include "ductile/net/store_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <utility>

#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/net/send_now_impl.h"
#include "ductile/net/store_protocol_impl.h"

namespace ductile::net {

namespace {

// A client gives up by itself at its deadline; a little later its request is dropped here.
constexpr std::chrono::seconds kGrace{1};

}  // namespace

struct StoreService::Impl {
  Impl(Loop& l, const Address& at, const Secret& secret, const std::string& job,
       StoreServerOptions o, OnRefusal on_refusal)
      : loop(l),
        options(o),
        self{"store", job, 0, -1, 0},
        table(options.max_bytes),
        gate(
            loop, Listener(at), secret, self, options.gate,
            [this](const Identity& peer) { return admit(peer); }, std::move(on_refusal),
            [this](Admission a) { take(std::move(a)); }) {}

  struct Client {
    explicit Client(Admission a) : socket(std::move(a.socket)), seal(*std::move(a.seal)) {
      seal.set_max_payload(kStoreMaxFrame);
    }
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    ~Client() {  // says so
      if (!unsent.empty()) return;
      seal.end(unsent);
      ::send(socket.fd(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    }
    Socket socket;
    Seal seal;
    std::vector<std::byte> unsent;
    bool dead = false;
    Loop::Watch watch;
  };

  // A get or wait whose keys are not all there yet.
  struct Parked {
    Client* client;
    uint32_t id;
    bool get;
    std::vector<std::string> keys;
    Deadline deadline;
  };

  Verdict admit(const Identity& peer) const {
    if (clients.size() >= static_cast<size_t>(options.max_clients)) return Verdict::busy;
    return peer.role == self.role ? same_job(self, peer) : Verdict::unexpected;
  }

  void take(Admission admission) {
    const auto client = clients.emplace(clients.end(), std::move(admission));
    try {
      client->watch = loop.watch(client->socket.fd(), Interest::read,
                                 [this, &c = *client](Ready ready) { on_ready(c, ready); });
    } catch (const Error&) {  // one that cannot be watched ends, and dials again
      clients.erase(client);
    }
  }

  void on_ready(Client& client, Ready ready) {
    try {
      if (ready.writable) flush(client);
      if (ready.readable) read_from(client);
    } catch (const Error&) {  // forged or malformed: this client alone ends
      client.dead = true;
    }
    serve_parked();
  }

  void read_from(Client& client) {
    std::array<std::byte, 65536> chunk;
    const ssize_t got = recv(client.socket.fd(), chunk.data(), chunk.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      client.dead = true;
      return;
    }
    client.seal.feed(std::span(chunk).first(static_cast<size_t>(got)));
    while (auto frame = client.seal.next()) handle(client, *frame);
    if (client.seal.ended()) client.dead = true;
  }

  void handle(Client& client, std::span<const std::byte> frame) {
    FieldReader fields(frame);
    const auto kind = static_cast<StoreRequest>(fields.number<uint8_t>());
    const auto id = fields.number<uint32_t>();
    try {
      switch (kind) {
        case StoreRequest::set: {
          const std::string key = fields.text();
          table.set(key, fields.text());
          changed = true;
          return answer(client, id, 0, "");
        }
        case StoreRequest::add: {
          const std::string key = fields.text();
          const int64_t sum = table.add(key, fields.number<int64_t>());
          changed = true;
          return answer(client, id, 0, std::to_string(sum));
        }
        case StoreRequest::get:
        case StoreRequest::wait: {
          Parked request{&client, id, kind == StoreRequest::get, {}, {}};
          const auto wait = std::min<uint64_t>(fields.number<uint64_t>(), 30ull * 86400 * 1000);
          request.deadline = Clock::now() + std::chrono::milliseconds(wait);
          const size_t count = fields.number<uint32_t>();
          if (request.get && count != 1)
            fail(ErrorCode::invalid_argument, "a get of {} keys; it takes one", count);
          for (size_t i = 0; i < count; ++i) request.keys.push_back(fields.text());
          changed = true;  // it may be there already
          parked.push_back(std::move(request));
          return;
        }
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::data_loss) throw;
      return answer(client, id, static_cast<uint8_t>(1 + static_cast<int>(error.code())),
                    error.message());
    }
    fail(ErrorCode::data_loss, "unknown request {}", static_cast<int>(kind));
  }

  // Answers whom it can, forgets who has gone or given up, and waits for the next of these.
  void serve_parked() {
    const Deadline now = loop.now();
    std::erase_if(parked, [&](const Parked& p) {
      if (p.client->dead) return true;
      if (changed && std::all_of(p.keys.begin(), p.keys.end(),
                                 [&](const std::string& key) { return table.has(key); })) {
        try {
          answer(*p.client, p.id, 0, p.get ? *table.get(p.keys.front()) : "");
        } catch (const Error&) {  // its connection takes nothing more: this client alone ends
          p.client->dead = true;
        }
        return true;
      }
      return p.deadline + kGrace <= now;
    });
    changed = false;
    // An answer that was not taken may have ended a client that waits for others.
    std::erase_if(parked, [](const Parked& p) { return p.client->dead; });
    clients.remove_if([](const Client& c) { return c.dead; });
    Deadline next = Deadline::max();
    for (const Parked& p : parked) next = std::min(next, p.deadline + kGrace);
    expiry = next == Deadline::max() ? Loop::Timer() : loop.at(next, [this] { serve_parked(); });
  }

  void answer(Client& client, uint32_t id, uint8_t status, std::string_view text) {
    std::vector<std::byte> payload;
    append_number(payload, id);
    append_number(payload, status);
    append_text(payload, text);
    client.seal.append(payload, client.unsent);
    flush(client);
  }

  void flush(Client& client) {
    if (send_now(client.socket.fd(), client.unsent) != 0) client.dead = true;
    if (client.unsent.size() > options.max_unsent) client.dead = true;
    const bool full = !client.unsent.empty();
    try {
      if (!client.dead) client.watch.set(full ? Interest::both : Interest::read);
    } catch (const Error&) {
      client.dead = true;
    }
  }

  Loop& loop;
  StoreServerOptions options;
  Identity self;
  StoreTable table;
  std::list<Client> clients;
  std::vector<Parked> parked;
  bool changed = false;
  Loop::Timer expiry;  // of the first parked request
  Gate gate;
};

StoreService::StoreService(Loop& loop, const Address& at, const Secret& secret,
                           const std::string& job, StoreServerOptions options, OnRefusal on_refusal)
    : impl_(std::make_unique<Impl>(loop, at, secret, job, options, std::move(on_refusal))) {}

StoreService::~StoreService() = default;

Address StoreService::address() const { return impl_->gate.address(); }

StoreServer::StoreServer(const Address& at, const Secret& secret, const std::string& job,
                         StoreServerOptions options, OnRefusal on_refusal) {
  thread_.call([&] {
    service_.emplace(thread_.loop(), at, secret, job, options, std::move(on_refusal));
    address_ = service_->address();
  });
}

StoreServer::~StoreServer() {
  thread_.call([this] { service_.reset(); });
}

}  // namespace ductile::net
