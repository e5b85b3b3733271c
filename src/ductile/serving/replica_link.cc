#include "ductile/serving/replica_link.h"

#include <cerrno>
#include <utility>
#include <variant>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/log.h"
#include "ductile/serving/loopback_impl.h"

namespace ductile::serving {
namespace {

constexpr std::chrono::seconds kDialPatience{5};
// What was sent and is not acknowledged for so long was sent to a machine that is gone.
constexpr std::chrono::seconds kSilentFront{20};
constexpr int64_t kRefusalsAlone = 20;  // that are told one by one; then a line a minute at most
constexpr std::chrono::minutes kRefusalLine{1};

net::Identity front_identity(const std::string& job) { return {"front", job, 0, -1, 0}; }

net::Identity replica_identity(const std::string& job, uint64_t replica) {
  if (replica == 0 || replica > INT32_MAX)
    fail(ErrorCode::invalid_argument, "replica {}: numbers go from 1 to {}", replica, INT32_MAX);
  return {"replica", job, 0, static_cast<int32_t>(replica), 0};
}

}  // namespace

net::Socket begin_connect_here(uint16_t port) {
  const net::Address to{"127.0.0.1", port};
  net::Socket out(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), to.to_string());
  if (!out) fail_errno("socket", errno);
  const int on = 1;
  ::setsockopt(out.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(out.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS)
    fail_errno(to.to_string(), errno);
  return out;
}

nlohmann::json FrontPlace::to_json() const {
  return {{"place", place}, {"towards", towards}, {"job", job}};
}

FrontPlace FrontPlace::from_json(const nlohmann::json& value) {
  const JsonFields fields(value, "front");
  return {fields.text("place"), fields.text("towards"), fields.text("job")};
}

// ---- The replica's end.

ReplicaDoor::ReplicaDoor(net::Loop& loop, const std::string& host, const net::Secret& secret,
                         const std::string& job, uint64_t replica, const net::Address& server)
    : loop_(loop),
      server_(server),
      gate_(
          loop, net::Listener({host, 0}, {.user_timeout = kSilentFront}), secret,
          replica_identity(job, replica), {},
          [front = front_identity(job)](const net::Identity& peer) {
            return peer == front ? net::Verdict::admitted : net::Verdict::unexpected;
          },
          [this](const net::Refusal& refusal) { refused(refusal); },
          [this](net::Admission admission) { admit(std::move(admission)); }) {}

void ReplicaDoor::admit(net::Admission admission) {
  const uint64_t number = ++last_;
  const std::string peer = admission.socket.peer();
  try {
    relays_[number] =
        std::make_unique<net::Relay>(loop_, begin_connect_here(server_.port), std::move(admission),
                                     [this, number] { relays_.erase(number); });
  } catch (const Error& error) {  // out of descriptors: the front tries again
    relays_.erase(number);
    refused({peer, error.what()});
  }
}

// Anybody can knock, as often as he likes, and must not fill a disk.
void ReplicaDoor::refused(const net::Refusal& refusal) {
  ++refusals_;
  if (refusals_ > kRefusalsAlone && loop_.now() < next_line_) return;
  next_line_ = loop_.now() + kRefusalLine;
  log_line(fmt::format("replica: refused at its door: {}: {} ({} so far)", refusal.address,
                       refusal.reason, refusals_));
}

std::unique_ptr<ReplicaDoor> open_door(net::Loop& loop, const FrontPlace& front,
                                       const std::string& place, const std::string& host,
                                       uint64_t replica, const net::Address& server) {
  if (front.place == place) return nullptr;
  try {
    const std::string at = host.empty() ? net::local_address_towards({front.towards, 0}) : host;
    return std::make_unique<ReplicaDoor>(loop, at, net::Secret::load(), front.job, replica, server);
  } catch (const Error& error) {  // of this machine, and not of what is served
    fail(ErrorCode::unavailable, "no way for the front's requests: {}", error.what());
  }
}

// ---- The front's end.

// Whoever has the stream writes into one end of a pair of sockets, whose other end the relay has
// once there is a connection. So it is a socket like any other, and waits where it has to.
net::Socket ReplicaLinks::open(uint64_t replica, const net::Address& door) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
    fail_errno("socketpair", errno);
  net::Socket theirs(ends[0], door.to_string());
  const uint64_t number = ++last_;
  Stream& stream = streams_[number];
  stream.replica = replica;
  stream.near = net::Socket(ends[1], "the front");
  try {
    stream.dialing = std::make_unique<net::Dialing>(
        loop_, door, secret_, front_identity(job_), replica_identity(job_, replica), kDialPatience,
        [this, number](net::Dialing::Outcome outcome) { dialled(number, std::move(outcome)); });
  } catch (const Error& error) {
    streams_.erase(number);
    if (error.code() != ErrorCode::unavailable && on_trouble_) on_trouble_(replica, error.what());
    throw;
  }
  return theirs;
}

void ReplicaLinks::dialled(uint64_t number, net::Dialing::Outcome outcome) {
  Stream& stream = streams_.at(number);
  std::string trouble;
  if (auto* admission = std::get_if<net::Admission>(&outcome)) {
    try {
      stream.relay =
          std::make_unique<net::Relay>(loop_, std::move(stream.near), std::move(*admission),
                                       [this, number] { streams_.erase(number); });
      stream.dialing.reset();
      return;
    } catch (const Error& error) {
      trouble = error.what();
    }
  } else {
    trouble = std::get<Error>(outcome).what();
  }
  const uint64_t replica = stream.replica;
  streams_.erase(number);
  if (on_trouble_) on_trouble_(replica, trouble);
}

}  // namespace ductile::serving
