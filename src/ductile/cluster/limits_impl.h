#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ductile/cluster/http_server.h"

namespace ductile::cluster {

// What each client has and may have, so that one at its limit delays no other. A client is a
// principal, or the address or user behind a connection that has not said who it is. Thread-safe;
// remembers no more than kMostClients of those who have nothing.
class Limits {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Where all of them have few, one client has at most half of that.
  explicit Limits(const HttpLimits& limits);

  // The right to something while it lives.
  class Seat {
   public:
    enum class Kind : uint8_t { connection, stream, work };
    Seat() = default;
    Seat(Limits& limits, std::string who, Kind kind)
        : limits_(&limits), who_(std::move(who)), kind_(kind) {}
    Seat(Seat&& other) noexcept
        : limits_(std::exchange(other.limits_, nullptr)),
          who_(std::move(other.who_)),
          kind_(other.kind_) {}
    Seat& operator=(Seat&& other) noexcept {
      if (this == &other) return *this;
      release();
      limits_ = std::exchange(other.limits_, nullptr);
      who_ = std::move(other.who_);
      kind_ = other.kind_;
      return *this;
    }
    ~Seat() { release(); }
    explicit operator bool() const { return limits_ != nullptr; }
    const std::string& who() const { return who_; }
    void release();

   private:
    Limits* limits_ = nullptr;
    std::string who_;
    Kind kind_ = Kind::connection;
  };

  // None: the client, or all of them together, have as many as they may.
  Seat connection(const std::string& who, bool stranger);
  // What a client that was refused is told, which is called `name`. A connection: empty where all
  // of them together have as many as they may.
  std::string refused_connection(const std::string& who, std::string_view name) const;
  std::string refused_stream(const std::string& who, std::string_view name) const;
  // A stranger said who it is: its connection counts as that client's. False: who has enough.
  bool becomes(Seat& connection, const std::string& who);
  Seat stream(const std::string& who);
  // One of the few requests of a client that are worked at together; waits for it until then.
  Seat work(const std::string& who, Time until);

  // A request comes. 0: it may; else the seconds after which it may.
  double pace(const std::string& who, bool stranger, Time now);

  int connections() const;
  size_t clients() const;  // that are remembered

  static constexpr size_t kMostClients = 4096;

 private:
  struct Client {
    int connections = 0, streams = 0, works = 0;
    std::optional<double> allowance;  // requests that may come at once; none: not counted yet
    Time counted{};
  };
  void leave(const std::string& who, Seat::Kind kind);
  Client& client(const std::string& who);
  int connections_of(const std::string& who) const;  // at most
  void forget_idle();

  const HttpLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable worked_;
  std::map<std::string, Client> clients_;
  int connections_ = 0, strangers_ = 0, streams_ = 0;
};

// How many of `wanted` connections so many descriptors allow, of which the service, its store and
// its jobs need some.
int connections_within(uint64_t descriptors, int wanted);
// Raises the limit of descriptors of this process as far as that needs and may be, and says how
// many connections it allows.
int connections_for(int wanted);

// How limits call those who have not said who they are begin with this.
inline constexpr char kStranger = '?';

}  // namespace ductile::cluster
