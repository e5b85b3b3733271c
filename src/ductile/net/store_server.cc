#include "ductile/net/store_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <map>
#include <thread>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/net/store_protocol_impl.h"

namespace ductile::net {

namespace {

// A client gives up by itself at its deadline; a little later its request is dropped here.
constexpr std::chrono::seconds kGrace{1};

}  // namespace

// One thread runs run(); nothing else is shared with others but the gate's wake().
class StoreServer::Loop {
 public:
  Loop(const Address& at, const Secret& secret, const std::string& job, StoreServerOptions options,
       OnRefusal on_refusal)
      : options_(options),
        self_{"store", job, 0, -1, 0},
        table_(options.max_bytes),
        gate_(
            Listener(at), secret, self_, options.gate,
            [this](const Identity& peer) { return admit(peer); }, std::move(on_refusal)) {
    epoll_ = opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    stop_ = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    watch(gate_.fd(), &gate_, EPOLLIN, EPOLL_CTL_ADD);
    watch(stop_.get(), &stop_, EPOLLIN, EPOLL_CTL_ADD);
    address_ = gate_.address();
    thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
  }

  ~Loop() {
    thread_.request_stop();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
    thread_.join();
  }

  Address address() const { return address_; }

 private:
  struct Client {
    Client(Admission a)
        : socket(std::move(a.socket)),
          writer(a.keys.from_server, kStoreMaxFrame),
          reader(a.keys.from_client, kStoreMaxFrame) {}
    Socket socket;
    FrameWriter writer;
    FrameReader reader;
    std::vector<std::byte> unsent;
    bool wants_out = false;
    bool dead = false;
    std::list<Client>::iterator self;
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
    if (clients_.size() >= static_cast<size_t>(options_.max_clients)) return Verdict::busy;
    return peer.role == self_.role ? same_job(self_, peer) : Verdict::unexpected;
  }

  void watch(int fd, void* who, uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = who;
    if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0)
      fail_errno("cannot watch a connection", errno);
  }
  // One that cannot be watched ends, and dials again.
  void watch(Client& client, uint32_t events, int operation) {
    try {
      watch(client.socket.fd(), &client, events, operation);
    } catch (const Error&) {
      client.dead = true;
    }
  }

  void run(const std::stop_token& stop) {
    std::array<epoll_event, 64> events;
    while (!stop.stop_requested()) {
      Deadline next = gate_.next_deadline();
      for (const Parked& p : parked_) next = std::min(next, p.deadline + kGrace);
      const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   poll_milliseconds(next));
      for (int i = 0; i < count; ++i) {
        void* who = events[static_cast<size_t>(i)].data.ptr;
        if (who == &stop_ || who == &gate_) continue;
        Client& client = *static_cast<Client*>(who);
        try {
          if (events[static_cast<size_t>(i)].events & EPOLLOUT) flush(client);
          if (events[static_cast<size_t>(i)].events & ~static_cast<uint32_t>(EPOLLOUT)) {
            read_from(client);
          }
        } catch (const Error&) {  // forged or malformed: this client alone ends
          client.dead = true;
        }
      }
      while (auto admission = gate_.poll()) {
        clients_.emplace_back(std::move(*admission));
        clients_.back().self = std::prev(clients_.end());
        watch(clients_.back(), EPOLLIN, EPOLL_CTL_ADD);
      }
      serve_parked();
      std::erase_if(parked_, [](const Parked& p) { return p.client->dead; });
      clients_.remove_if([](const Client& c) { return c.dead; });
    }
  }

  void read_from(Client& client) {
    std::array<std::byte, 65536> chunk;
    const ssize_t got = recv(client.socket.fd(), chunk.data(), chunk.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      client.dead = true;
      return;
    }
    client.reader.feed(std::span(chunk).first(static_cast<size_t>(got)));
    while (auto frame = client.reader.next()) handle(client, *frame);
  }

  void handle(Client& client, std::span<const std::byte> frame) {
    FieldReader fields(frame);
    const auto kind = static_cast<StoreRequest>(fields.number<uint8_t>());
    const auto id = fields.number<uint32_t>();
    try {
      switch (kind) {
        case StoreRequest::set: {
          const std::string key = fields.text();
          table_.set(key, fields.text());
          changed_ = true;
          return answer(client, id, 0, "");
        }
        case StoreRequest::add: {
          const std::string key = fields.text();
          const int64_t sum = table_.add(key, fields.number<int64_t>());
          changed_ = true;
          return answer(client, id, 0, std::to_string(sum));
        }
        case StoreRequest::get:
        case StoreRequest::wait: {
          Parked parked{&client, id, kind == StoreRequest::get, {}, {}};
          const auto wait = std::min<uint64_t>(fields.number<uint64_t>(), 30ull * 86400 * 1000);
          parked.deadline = Clock::now() + std::chrono::milliseconds(wait);
          const size_t count = fields.number<uint32_t>();
          if (parked.get && count != 1)
            fail(ErrorCode::invalid_argument, "a get of {} keys; it takes one", count);
          for (size_t i = 0; i < count; ++i) parked.keys.push_back(fields.text());
          changed_ = true;  // it may be there already
          parked_.push_back(std::move(parked));
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

  void serve_parked() {
    const Deadline now = Clock::now();
    std::erase_if(parked_, [&](const Parked& p) {
      if (p.client->dead) return true;
      const auto missing =
          !changed_ ? p.keys.begin()
                    : std::find_if(p.keys.begin(), p.keys.end(),
                                   [&](const std::string& key) { return !table_.has(key); });
      if (changed_ && missing == p.keys.end()) {
        answer(*p.client, p.id, 0, p.get ? *table_.get(p.keys.front()) : "");
        return true;
      }
      return p.deadline + kGrace <= now;
    });
    changed_ = false;
  }

  void answer(Client& client, uint32_t id, uint8_t status, std::string_view text) {
    std::vector<std::byte> payload;
    append_number(payload, id);
    append_number(payload, status);
    append_text(payload, text);
    client.writer.append(payload, client.unsent);
    flush(client);
  }

  void flush(Client& client) {
    size_t sent = 0;
    while (sent < client.unsent.size()) {
      const ssize_t now = ::send(client.socket.fd(), client.unsent.data() + sent,
                                 client.unsent.size() - sent, MSG_NOSIGNAL);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK) client.dead = true;
        break;
      }
      sent += static_cast<size_t>(now);
    }
    client.unsent.erase(client.unsent.begin(),
                        client.unsent.begin() + static_cast<ptrdiff_t>(sent));
    if (client.unsent.size() > options_.max_unsent) client.dead = true;
    const bool want = !client.unsent.empty() && !client.dead;
    if (want != client.wants_out) {
      client.wants_out = want;
      watch(client, want ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
    }
  }

  StoreServerOptions options_;
  Identity self_;
  StoreTable table_;
  std::list<Client> clients_;
  std::vector<Parked> parked_;
  bool changed_ = false;
  Gate gate_;
  Address address_;
  Descriptor epoll_;
  Descriptor stop_;
  std::jthread thread_;
};

StoreServer::StoreServer(const Address& at, const Secret& secret, const std::string& job,
                         StoreServerOptions options, OnRefusal on_refusal)
    : loop_(std::make_unique<Loop>(at, secret, job, options, std::move(on_refusal))) {}

StoreServer::~StoreServer() = default;

Address StoreServer::address() const { return loop_->address(); }

}  // namespace ductile::net
