#include "ductile/comm/ucx_transport.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/comm/loss_latch_impl.h"
#include "ductile/comm/ucx_endpoints_impl.h"
#include "ductile/net/channel.h"

namespace ductile::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

enum MessageId : unsigned { kData = 1, kHello = 2, kGoodbye = 3 };

struct Header {
  uint64_t token = 0;  // the receiver gave it to this sender, over the authenticated channel
  Tag tag = 0;
  uint64_t length = 0;
  int64_t source = 0;
};

uint64_t random_token() {
  const net::Nonce nonce = net::random_nonce();
  uint64_t token;
  std::memcpy(&token, nonce.data(), sizeof token);
  return token;
}

class UcxTransport final : public Transport {
 public:
  UcxTransport(const Group& group, const UcxOptions& options, std::vector<MeshLink> links,
               net::Deadline deadline)
      : group_(group),
        options_(options),
        peers_(static_cast<size_t>(group.size)),
        loss_(group),
        ucx_(options, group.size,
             [this](int peer, ucs_status_t status) { on_endpoint_error(peer, status); }) {
    epoll_ = opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    wake_ = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    watch(wake_.get(), -1, EPOLLIN);
    watch(ucx_.event_fd(), -2, EPOLLIN);
    for (const MessageId id : {kData, kHello, kGoodbye}) {
      handlers_[id] = {this, id};
      ucx_.handle(id, &UcxTransport::on_message, &handlers_[id]);
    }
    exchange_addresses(std::move(links), deadline);
    greet(deadline);
  }

  ~UcxTransport() override {
    if (!loss_.failed() && sends_.empty()) {
      for (int peer = 0; peer < group_.size; ++peer) {
        if (of(peer).channel && !of(peer).left) send_control(peer, kGoodbye);
      }
      ucx_.flush(milliseconds(1000));
      say_goodbye_aside();
    }
    tear_down();
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  void send(int peer, Tag tag, std::span<const std::byte> bytes, Transfer& transfer) override {
    guarded(&transfer, [&] {
      check_peer(peer);
      if (of(peer).left) lose(peer, "has left the job");
      transfer.state.store(Transfer::State::pending, std::memory_order_relaxed);
      start_send(peer, kData, {of(peer).their_token, tag, bytes.size(), group_.rank}, bytes,
                 &transfer);
    });
  }

  void receive(int peer, Tag tag, std::span<std::byte> bytes, Transfer& transfer) override {
    guarded(&transfer, [&] {
      check_peer(peer);
      Peer& from = of(peer);
      transfer.state.store(Transfer::State::pending, std::memory_order_relaxed);
      const auto found = from.unexpected.find(tag);
      if (found == from.unexpected.end()) {
        if (from.left) lose(peer, "has left the job");
        from.posted[tag] = {bytes, &transfer};
        return;
      }
      Unexpected message = std::move(found->second);
      from.unexpected.erase(found);
      if (message.descriptor == nullptr) from.unexpected_bytes -= message.bytes.size();
      if (message.length != bytes.size()) {
        if (message.descriptor != nullptr) {
          ucp_am_data_release(ucx_.worker(), message.descriptor);
        }
        wrong_length(peer, tag, message.length, bytes.size());
      }
      if (message.descriptor != nullptr) {
        start_fetch(peer, message.descriptor, {bytes, &transfer});
      } else {
        if (!bytes.empty()) std::memcpy(bytes.data(), message.bytes.data(), bytes.size());
        settle(&transfer);
      }
    });
  }

  void progress(nanoseconds wait) override {
    guarded(nullptr, [&] {
      const auto start = Clock::now();
      const auto deadline = start + std::min<nanoseconds>(wait, std::chrono::hours(1));
      auto now = start;
      look_aside(milliseconds(0));
      while (true) {
        ucx_.progress_all();
        throw_found_loss();
        if (settled_ > 0 || woken_ || loss_.failed()) break;
        now = Clock::now();
        if (now >= deadline) break;
        if (now < start + options_.spin || !ucx_.arm()) continue;
        look_aside(deadline - now);
      }
      settled_ = 0;
      woken_ = false;
    });
  }

  void wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void fail(PeerLoss loss) override {
    loss_.latch(ErrorCode::peer_lost, std::move(loss));
    wake();
  }

  std::byte* peer_memory(int, const std::byte*) override { return nullptr; }

 private:
  struct Posted {
    std::span<std::byte> into;
    Transfer* transfer;
  };
  // A message without a receive: its bytes, or UCX's promise of them.
  struct Unexpected {
    size_t length = 0;
    std::vector<std::byte> bytes;
    void* descriptor = nullptr;
  };
  struct Peer {
    std::optional<net::Channel> channel;
    uint64_t own_token = 0;    // what its messages must carry
    uint64_t their_token = 0;  // what messages to it carry
    bool greeted = false;
    bool left = false;        // its goodbye came behind all its messages
    bool left_aside = false;  // its goodbye came on the side channel: the other must follow
    Clock::time_point left_aside_at{};
    std::unordered_map<Tag, Posted> posted;
    std::unordered_map<Tag, Unexpected> unexpected;
    size_t unexpected_bytes = 0;
  };
  // One send or fetch that UCX has under way; the header must stay in place until it ends.
  struct Operation {
    UcxTransport* owner;
    int peer;
    Transfer* transfer;
    Header header;
    std::list<Operation>* home;
    std::list<Operation>::iterator self;
  };
  struct Handler {
    UcxTransport* owner;
    MessageId id;
  };

  Peer& of(int peer) { return peers_[static_cast<size_t>(peer)]; }

  void check_peer(int peer) const {
    if (peer < 0 || peer >= group_.size || peer == group_.rank) {
      ductile::fail(ErrorCode::invalid_argument, "rank {} of {} has no connection to rank {}",
                    group_.rank, group_.size, peer);
    }
  }

  [[noreturn]] void lose(int peer, const std::string& how) {
    lost_peer_ = {peer};
    ductile::fail(ErrorCode::peer_lost, "rank {} {}", peer, how);
  }

  [[noreturn]] void wrong_length(int peer, Tag tag, size_t got, size_t posted) {
    lost_peer_ = {peer};
    ductile::fail(ErrorCode::data_loss,
                  "rank {} sent {} bytes under tag {:#x}, {} were to be received; do all ranks run "
                  "the same collectives in the same order?",
                  peer, got, tag, posted);
  }

  void watch(int fd, int peer, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = peer;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail_errno("epoll_ctl", errno);
  }

  void exchange_addresses(std::vector<MeshLink> links, net::Deadline deadline) {
    const std::vector<std::byte> address = ucx_.address();
    for (MeshLink& link : links) {
      Peer& peer = of(link.peer);
      peer.own_token = random_token();
      peer.channel.emplace(std::move(link.socket), *std::move(link.seal));
      std::vector<std::byte> frame(sizeof peer.own_token + address.size());
      std::memcpy(frame.data(), &peer.own_token, sizeof peer.own_token);
      std::memcpy(frame.data() + sizeof peer.own_token, address.data(), address.size());
      peer.channel->send(frame, deadline);
    }
    for (int r = 0; r < group_.size; ++r) {
      if (!of(r).channel) continue;
      const std::vector<std::byte> frame = of(r).channel->receive(deadline);
      DUCTILE_CHECK(frame.size() > sizeof(uint64_t), "a worker's address is missing");
      std::memcpy(&of(r).their_token, frame.data(), sizeof(uint64_t));
      ucx_.connect(r, std::span(frame).subspan(sizeof(uint64_t)));
      watch(of(r).channel->socket().fd(), r, EPOLLIN | EPOLLRDHUP);
    }
  }

  // Connects for good now, since UCX itself does so at the first message.
  void greet(net::Deadline deadline) {
    for (int r = 0; r < group_.size; ++r) {
      if (of(r).channel) send_control(r, kHello);
    }
    for (int r = 0; r < group_.size; ++r) {
      while (of(r).channel && !of(r).greeted) {
        ucx_.progress_all();
        throw_found_loss();
        if (Clock::now() >= deadline) {
          ductile::fail(ErrorCode::deadline, "rank {} does not answer over UCX (UCX_TLS={})", r,
                        options_.tls.empty() ? "default" : options_.tls);
        }
        if (!of(r).greeted && ucx_.arm()) look_aside(milliseconds(20));
      }
    }
  }

  void send_control(int peer, MessageId id) {
    start_send(peer, id, {of(peer).their_token, 0, 0, group_.rank}, {}, nullptr);
  }

  void start_send(int peer, MessageId id, const Header& header, std::span<const std::byte> bytes,
                  Transfer* transfer) {
    auto& list = id == kData ? sends_ : controls_;
    list.push_back({this, peer, transfer, header, &list, {}});
    Operation& operation = list.back();
    operation.self = std::prev(list.end());
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    params.cb.send = [](void* request, ucs_status_t status, void* argument) {
      on_end(request, status, argument);
    };
    params.user_data = &operation;
    params.flags =
        bytes.size() > options_.eager_bytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    void* request = ucp_am_send_nbx(ucx_.endpoint(peer), id, &operation.header, sizeof(Header),
                                    bytes.data(), bytes.size(), &params);
    if (request == nullptr) {
      list.erase(operation.self);
      settle(transfer);
    } else if (UCS_PTR_IS_ERR(request)) {
      list.erase(operation.self);
      lose(peer, fmt::format("cannot be sent to: {}", ucs_status_string(UCS_PTR_STATUS(request))));
    }
  }

  void start_fetch(int peer, void* descriptor, const Posted& posted) {
    fetches_.push_back({this, peer, posted.transfer, {}, &fetches_, {}});
    Operation& operation = fetches_.back();
    operation.self = std::prev(fetches_.end());
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* argument) {
      on_end(request, status, argument);
    };
    params.user_data = &operation;
    void* request = ucp_am_recv_data_nbx(ucx_.worker(), descriptor, posted.into.data(),
                                         posted.into.size(), &params);
    if (request == nullptr) {
      fetches_.erase(operation.self);
      settle(posted.transfer);
    } else if (UCS_PTR_IS_ERR(request)) {
      found_loss(peer, fmt::format("cannot be received from: {}",
                                   ucs_status_string(UCS_PTR_STATUS(request))));
    }
  }

  static void on_end(void* request, ucs_status_t status, void* argument) {
    auto& operation = *static_cast<Operation*>(argument);
    UcxTransport& t = *operation.owner;
    ucp_request_free(request);
    if (status == UCS_OK && !t.loss_.failed()) {
      t.settle(operation.transfer);
    } else {
      if (operation.transfer != nullptr) {
        operation.transfer->state.store(Transfer::State::failed, std::memory_order_release);
        t.found_loss(operation.peer,
                     fmt::format("broke off a transfer: {}", ucs_status_string(status)));
      }
    }
    operation.home->erase(operation.self);
  }

  static ucs_status_t on_message(void* argument, const void* header_bytes, size_t header_size,
                                 void* data, size_t length, const ucp_am_recv_param_t* param) {
    const auto& handler = *static_cast<Handler*>(argument);
    UcxTransport& t = *handler.owner;
    Header header;
    const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (header_size != sizeof header) return t.turn_away("a message without our header");
    std::memcpy(&header, header_bytes, sizeof header);
    const bool known = header.source >= 0 && header.source < t.group_.size &&
                       header.source != t.group_.rank &&
                       t.of(static_cast<int>(header.source)).own_token == header.token;
    if (!known || header.length != length) return t.turn_away("a message without a peer's token");
    const int source = static_cast<int>(header.source);
    Peer& peer = t.of(source);
    switch (handler.id) {
      case kHello:
        peer.greeted = true;
        return UCS_OK;
      case kGoodbye:
        t.on_left(source);
        return UCS_OK;
      case kData:
        break;
    }
    const auto found = peer.posted.find(header.tag);
    if (found == peer.posted.end()) {
      return t.keep(source, header, data, rendezvous);
    }
    const Posted posted = found->second;
    if (posted.into.size() != length) {
      t.found_wrong_length(source, header.tag, length, posted.into.size());
      return UCS_OK;
    }
    peer.posted.erase(found);
    if (rendezvous) {
      t.start_fetch(source, data, posted);
      return UCS_INPROGRESS;
    }
    if (length > 0) std::memcpy(posted.into.data(), data, length);
    t.settle(posted.transfer);
    return UCS_OK;
  }

  ucs_status_t keep(int source, const Header& header, void* data, bool rendezvous) {
    Peer& peer = of(source);
    Unexpected& message = peer.unexpected[header.tag];
    message.length = header.length;
    if (rendezvous) {
      message.descriptor = data;
      return UCS_INPROGRESS;
    }
    peer.unexpected_bytes += header.length;
    if (peer.unexpected_bytes > options_.unexpected_bytes) {
      found_loss(source,
                 fmt::format("sent more than {} bytes that nobody receives; post receives "
                             "about in the order of the sends",
                             options_.unexpected_bytes),
                 ErrorCode::data_loss);
      return UCS_OK;
    }
    const auto* bytes = static_cast<const std::byte*>(data);
    message.bytes.assign(bytes, bytes + header.length);
    return UCS_OK;
  }

  ucs_status_t turn_away(const char* why) {
    if (options_.on_refusal) options_.on_refusal({"(over UCX)", why});
    return UCS_OK;
  }

  void settle(Transfer* transfer) {
    if (transfer == nullptr) return;
    transfer->state.store(Transfer::State::done, std::memory_order_release);
    ++settled_;
  }

  void on_left(int peer) {
    of(peer).left = true;
    of(peer).left_aside = false;
    const bool owes = std::any_of(sends_.begin(), sends_.end(),
                                  [&](const Operation& o) { return o.peer == peer; });
    if (!of(peer).posted.empty() || owes) found_loss(peer, "has left the job");
  }

  void on_endpoint_error(int peer, ucs_status_t status) {
    if (!of(peer).left && !of(peer).left_aside) {
      found_loss(peer, fmt::format("is lost: UCX says: {}", ucs_status_string(status)));
    }
  }

  // From within UCX's callbacks, which no exception may cross: thrown by throw_found_loss().
  void found_loss(int peer, const std::string& how, ErrorCode code = ErrorCode::peer_lost) {
    if (found_) return;
    found_.emplace(code, fmt::format("rank {} {}", peer, how));
    lost_peer_ = {peer};
  }

  void found_wrong_length(int peer, Tag tag, size_t got, size_t posted) {
    try {
      wrong_length(peer, tag, got, posted);
    } catch (const Error& error) {
      if (!found_) found_ = error;
    }
  }

  void throw_found_loss() {
    for (int r = 0; r < group_.size && !found_; ++r) {
      // Its last messages should be here by now.
      if (of(r).left_aside && Clock::now() > of(r).left_aside_at + milliseconds(1000)) on_left(r);
    }
    if (found_) throw Error(*found_);
  }

  // The eventfd, UCX's descriptor and the side channels.
  void look_aside(nanoseconds wait) {
    std::array<epoll_event, 32> events;
    const bool any_leaving =
        std::any_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.left_aside; });
    if (any_leaving) wait = std::min<nanoseconds>(wait, milliseconds(100));
    timespec timeout;
    timeout.tv_sec = static_cast<time_t>(wait.count() / 1'000'000'000);
    timeout.tv_nsec = static_cast<long>(wait.count() % 1'000'000'000);
    const int count = epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   &timeout, nullptr);
    for (int i = 0; i < count; ++i) {
      const int who = events[static_cast<size_t>(i)].data.fd;
      if (who == -1) {
        uint64_t ignored;
        woken_ = ::read(wake_.get(), &ignored, sizeof ignored) > 0;
      } else if (who >= 0) {
        hear_aside(who);
      }
    }
  }

  // The side channel carries nothing but a goodbye any more.
  void hear_aside(int peer) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, of(peer).channel->socket().fd(), nullptr);
    try {
      of(peer).channel->receive(Clock::now());
      of(peer).left_aside = !of(peer).left;
      of(peer).left_aside_at = Clock::now();
    } catch (const Error&) {
      if (!of(peer).left) found_loss(peer, "is lost: its process ended");
    }
  }

  void say_goodbye_aside() {
    const std::array<std::byte, 1> goodbye{};
    for (Peer& peer : peers_) {
      if (!peer.channel) continue;
      try {
        peer.channel->send(goodbye, Clock::now());
      } catch (const Error&) {  // it has gone before
      }
    }
  }

  template <class Body>
  void guarded(Transfer* transfer, const Body& body) {
    const auto checked = [&] {
      body();
      if (transfer != nullptr) throw_found_loss();
    };
    loss_.guard(transfer, lost_peer_, checked, [&] { tear_down(); });
  }

  // After the endpoints are closed nothing touches the callers' memory any more. (A receive that
  // was under way when its peer broke off was measured not to end by itself.)
  void tear_down() {
    const auto give_up = [](Transfer* transfer) {
      if (transfer != nullptr && transfer->state == Transfer::State::pending) {
        transfer->state.store(Transfer::State::failed, std::memory_order_release);
      }
    };
    for (Peer& peer : peers_) {
      for (auto& [tag, message] : peer.unexpected) {
        if (message.descriptor != nullptr) ucp_am_data_release(ucx_.worker(), message.descriptor);
      }
      peer.unexpected.clear();
    }
    ucx_.close(milliseconds(100));
    const auto deadline = Clock::now() + milliseconds(100);
    const auto busy = [&] { return !sends_.empty() || !fetches_.empty() || !controls_.empty(); };
    while (busy() && Clock::now() < deadline) ucp_worker_progress(ucx_.worker());
    for (auto* list : {&sends_, &fetches_}) {
      for (Operation& operation : *list) give_up(std::exchange(operation.transfer, nullptr));
    }
    for (Peer& peer : peers_) {
      for (auto& [tag, posted] : peer.posted) give_up(posted.transfer);
      peer.posted.clear();
      peer.channel.reset();  // the peers see the end of this process's part
    }
  }

  const Group group_;
  const UcxOptions options_;
  Descriptor epoll_;
  Descriptor wake_;
  std::vector<Peer> peers_;
  std::array<Handler, 4> handlers_{};
  std::list<Operation> sends_;
  std::list<Operation> controls_;
  std::list<Operation> fetches_;
  int settled_ = 0;
  bool woken_ = false;
  std::optional<Error> found_;
  std::vector<int> lost_peer_;
  LossLatch loss_;
  UcxEndpoints ucx_;  // last: its end may call back into the rest
};

}  // namespace

bool have_ucx() { return true; }

std::unique_ptr<Transport> connect_ucx(const Group& group, net::Store& store,
                                       const net::Secret& secret, const UcxOptions& options,
                                       net::Deadline deadline) {
  MeshOptions mesh;
  mesh.role = "ucx";
  mesh.links = {options.link};
  mesh.on_refusal = options.on_refusal;
  return std::make_unique<UcxTransport>(
      group, options, connect_mesh(group, store, secret, mesh, deadline), deadline);
}

}  // namespace ductile::comm
