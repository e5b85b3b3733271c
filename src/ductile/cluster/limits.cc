#include <algorithm>

#include <fmt/format.h>
#include <sys/resource.h>

#include "ductile/cluster/limits_impl.h"

namespace ductile::cluster {
namespace {

constexpr uint64_t kOtherDescriptors = 1024;

// Whatever all of them may have, one client leaves something to the others.
HttpLimits fair_limits(HttpLimits limits) {
  const auto half = [](int all) { return std::max(1, (all + 1) / 2); };
  limits.strangers = std::min(limits.strangers, half(limits.connections));
  limits.connections_of_one = std::min(limits.connections_of_one, half(limits.connections));
  limits.streams_of_one = std::min(limits.streams_of_one, half(limits.streams));
  return limits;
}

}  // namespace

Limits::Limits(const HttpLimits& limits) : limits_(fair_limits(limits)) {}

int connections_within(uint64_t descriptors, int wanted) {
  const uint64_t others = std::min(kOtherDescriptors, descriptors / 2);
  return static_cast<int>(
      std::clamp<uint64_t>(descriptors - others, 1, static_cast<uint64_t>(std::max(1, wanted))));
}

int connections_for(int wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t needed = static_cast<rlim_t>(std::max(1, wanted)) + kOtherDescriptors;
  if (limit.rlim_cur < needed && limit.rlim_cur < limit.rlim_max) {
    rlimit more = limit;
    more.rlim_cur = std::min(needed, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &more) == 0) limit = more;
  }
  return connections_within(limit.rlim_cur, wanted);
}

void Limits::Seat::release() {
  if (limits_ != nullptr) std::exchange(limits_, nullptr)->leave(who_, kind_);
}

// Those who have nothing are forgotten when there are too many: an attacker with many addresses
// must not fill the memory. What is then lost is how fast they asked a moment ago.
void Limits::forget_idle() {
  std::erase_if(clients_, [](const auto& entry) {
    const Client& c = entry.second;
    return c.connections == 0 && c.streams == 0 && c.works == 0;
  });
}

Limits::Client& Limits::client(const std::string& who) {
  if (clients_.size() >= kMostClients && !clients_.contains(who)) forget_idle();
  return clients_[who];
}

Limits::Seat Limits::connection(const std::string& who, bool stranger) {
  const std::lock_guard lock(mutex_);
  if (connections_ >= limits_.connections) return {};
  if (stranger && strangers_ >= limits_.strangers) return {};
  Client& c = client(who);
  if (c.connections >= connections_of(who)) return {};
  ++c.connections;
  ++connections_;
  if (stranger) ++strangers_;
  return {*this, who, Seat::Kind::connection};
}

bool Limits::becomes(Seat& connection, const std::string& who) {
  if (connection.who() == who) return true;
  {
    const std::lock_guard lock(mutex_);
    Client& c = client(who);
    if (c.connections >= limits_.connections_of_one) return false;
    ++c.connections;
    ++connections_;  // for a moment it counts twice
    if (who.front() == kStranger) ++strangers_;
  }
  connection = Seat(*this, who, Seat::Kind::connection);
  return true;
}

Limits::Seat Limits::stream(const std::string& who) {
  const std::lock_guard lock(mutex_);
  Client& c = client(who);
  if (c.streams >= limits_.streams_of_one || streams_ >= limits_.streams) return {};
  ++c.streams;
  ++streams_;
  return {*this, who, Seat::Kind::stream};
}

// Of strangers there may be fewer.
int Limits::connections_of(const std::string& who) const {
  const int all = who.front() == kStranger ? limits_.strangers : limits_.connections;
  return std::min(limits_.connections_of_one, std::max(1, (all + 1) / 2));
}

std::string Limits::refused_connection(const std::string& who, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(who);
  const int most = connections_of(who);
  if (found == clients_.end() || found->second.connections < most) return "";
  return fmt::format(
      "{} has {} connections, as many as one client may have; end some of them first", name, most);
}

std::string Limits::refused_stream(const std::string& who, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(who);
  const int most = limits_.streams_of_one;
  if (found == clients_.end() || found->second.streams < most)
    return fmt::format("there are {} event streams, as many as there may be; try again later",
                       limits_.streams);
  return fmt::format(
      "{} has {} event streams, as many as one client may have; end some of them first", name,
      most);
}

Limits::Seat Limits::work(const std::string& who, Time until) {
  std::unique_lock lock(mutex_);
  // Looked up anew each time: while it waits the entry may be forgotten and made again.
  const bool free =
      worked_.wait_until(lock, until, [&] { return client(who).works < limits_.requests_of_one; });
  if (!free) return {};
  ++client(who).works;
  return {*this, who, Seat::Kind::work};
}

double Limits::pace(const std::string& who, bool stranger, Time now) {
  const double rate = stranger ? limits_.strangers_rate : limits_.rate;
  const double burst = stranger ? limits_.strangers_burst : limits_.burst;
  const std::lock_guard lock(mutex_);
  Client& c = client(who);
  // Another thread of this client may have read the clock later and come first.
  const double gained =
      rate * std::max(0.0, std::chrono::duration<double>(now - c.counted).count());
  c.allowance = c.allowance ? std::min(burst, *c.allowance + gained) : burst;
  c.counted = std::max(c.counted, now);
  if (*c.allowance < 1) return (1 - *c.allowance) / rate;
  *c.allowance -= 1;
  return 0;
}

void Limits::leave(const std::string& who, Seat::Kind kind) {
  const std::lock_guard lock(mutex_);
  Client& c = clients_[who];
  switch (kind) {
    case Seat::Kind::connection:
      --c.connections;
      --connections_;
      if (who.front() == kStranger) --strangers_;
      break;
    case Seat::Kind::stream:
      --c.streams;
      --streams_;
      break;
    case Seat::Kind::work:
      --c.works;
      worked_.notify_all();
      break;
  }
}

int Limits::connections() const {
  const std::lock_guard lock(mutex_);
  return connections_;
}

size_t Limits::clients() const {
  const std::lock_guard lock(mutex_);
  return clients_.size();
}

}  // namespace ductile::cluster
