#include "ductile/comm/mesh.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include <fmt/ranges.h>

#include "ductile/base/error.h"

namespace ductile::comm {
namespace {

using net::Admission;
using net::Deadline;
using net::Identity;
using net::Verdict;
using net::WaitingGate;

std::string address_key(const Group& group, const std::string& role, int rank) {
  return fmt::format("mesh/{}/{}/{}", role, group.generation, rank);
}

constexpr std::chrono::milliseconds kLook{100};
// For one try to connect: long enough for a handshake over any network.
constexpr std::chrono::milliseconds kTry{2000};

Deadline soon(Deadline deadline, std::chrono::milliseconds wait) {
  return std::min(deadline, net::Clock::now() + wait);
}

void check_given_up(const MeshOptions& options) {
  if (options.given_up && options.given_up())
    fail(ErrorCode::peer_lost, "{} connections: the meeting was given up", options.role);
}

// Calls `once(deadline)` again and again, up to `wait` each time, until it does not run into its
// deadline, or that has passed which is everybody's.
template <class Once>
auto in_slices(const MeshOptions& options, std::chrono::milliseconds wait, Deadline deadline,
               const Once& once) {
  while (true) {
    check_given_up(options);
    const Deadline end = soon(deadline, wait);
    try {
      return once(end);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::deadline || end == deadline) throw;
    }
  }
}

// Takes the connections of the higher ranks, one thread a link, until all are there.
class Reception {
 public:
  Reception(const Group& group, const net::Secret& secret, const MeshOptions& options)
      : group_(group), options_(options), role_(options.role) {
    for (size_t lane = 0; lane < options.links.size(); ++lane) {
      Identity self{role_, group.job, group.generation, group.rank, static_cast<uint32_t>(lane)};
      gates_.push_back(std::make_unique<WaitingGate>(
          net::Listener({options.links[lane], 0}, options.socket), secret, self,
          net::GateOptions{.wire = options.wire},
          [this, self](const Identity& peer) { return admit(self, peer); }, options.on_refusal));
      missing_.emplace_back();
      for (int r = group.rank + 1; r < group.size; ++r) missing_.back().insert(r);
    }
  }

  std::string addresses() const {
    std::vector<std::string> all;
    for (const auto& gate : gates_) all.push_back(gate->address().to_string());
    return fmt::format("{}", fmt::join(all, " "));
  }

  void start(Deadline deadline) {
    for (size_t lane = 0; lane < gates_.size(); ++lane) {
      threads_.emplace_back([this, lane, deadline](std::stop_token stop) {
        try {
          take(lane, deadline, stop);
        } catch (...) {
          const std::lock_guard lock(mutex_);
          error_ = std::current_exception();
        }
      });
    }
  }

  // Waits for the threads; `give_up` ends them early.
  std::vector<MeshLink> finish(bool give_up) {
    if (give_up) {
      for (auto& t : threads_) t.request_stop();
      for (auto& gate : gates_) gate->wake();
    }
    for (auto& t : threads_) t.join();
    threads_.clear();
    if (error_) std::rethrow_exception(error_);
    std::set<int> missing;
    for (const auto& of_lane : missing_) missing.insert(of_lane.begin(), of_lane.end());
    if (!missing.empty() && !give_up) {
      fail(ErrorCode::deadline,
           "rank {}, {} connections: ranks {} of generation {} did not connect in time; are they "
           "running, and can they reach {}?",
           group_.rank, role_, fmt::join(missing, ", "), group_.generation, addresses());
    }
    return std::move(links_);
  }

 private:
  Verdict admit(const Identity& self, const Identity& peer) const {
    const Verdict verdict = net::same_job(self, peer);
    if (verdict != Verdict::admitted) return verdict;
    const bool wanted =
        peer.role == self.role && peer.lane == self.lane && missing_[self.lane].contains(peer.peer);
    return wanted ? Verdict::admitted : Verdict::unexpected;
  }

  void take(size_t lane, Deadline deadline, const std::stop_token& stop) {
    while (!missing_[lane].empty() && !stop.stop_requested()) {
      check_given_up(options_);
      std::optional<Admission> a = gates_[lane]->accept(soon(deadline, kLook));
      if (!a) {
        if (net::Clock::now() >= deadline) return;
        continue;
      }
      missing_[lane].erase(a->peer.peer);
      const std::lock_guard lock(mutex_);
      links_.push_back(
          {a->peer.peer, static_cast<int>(lane), std::move(a->socket), std::move(a->seal)});
    }
  }

  const Group& group_;
  const MeshOptions& options_;
  const std::string role_;
  std::vector<std::unique_ptr<WaitingGate>> gates_;
  std::vector<std::set<int>> missing_;  // by lane; belongs to the lane's thread
  std::mutex mutex_;
  std::vector<MeshLink> links_;
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;
};

struct Call {
  int peer;
  int lane;
  net::Address address;
};

// The addresses of the lower ranks, which this rank connects to.
std::vector<Call> look_up(const Group& group, net::Store& store, const MeshOptions& options,
                          Deadline deadline) {
  std::vector<Call> calls;
  for (int peer = 0; peer < group.rank; ++peer) {
    std::istringstream text(in_slices(options, kLook, deadline, [&](Deadline end) {
      return store.get(address_key(group, options.role, peer), end);
    }));
    std::string address;
    int lane = 0;
    while (text >> address) calls.push_back({peer, lane++, net::Address::parse(address)});
    if (lane != static_cast<int>(options.links.size())) {
      fail(ErrorCode::invalid_argument,
           "rank {} has {} links and rank {} has {}; every host must give as many", peer, lane,
           group.rank, options.links.size());
    }
  }
  return calls;
}

// Several at a time, since each takes a few round trips.
std::vector<MeshLink> dial_all(const Group& group, const net::Secret& secret,
                               const MeshOptions& options, const std::vector<Call>& calls,
                               Deadline deadline) {
  std::vector<MeshLink> links(calls.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < calls.size(); i = next++) {
      const Call& call = calls[i];
      const auto lane = static_cast<uint32_t>(call.lane);
      net::DialOptions dialing;
      dialing.wire = options.wire;
      dialing.socket = options.socket;
      dialing.socket.local_address = options.links[lane];
      try {
        const Deadline patience = soon(deadline, options.connect_patience);
        Admission a = in_slices(options, kTry, patience, [&](Deadline end) {
          return net::dial(
              call.address, secret, {options.role, group.job, group.generation, group.rank, lane},
              {options.role, group.job, group.generation, call.peer, lane}, dialing, end);
        });
        links[i] = {call.peer, call.lane, std::move(a.socket), std::move(a.seal)};
      } catch (Error& e) {
        e.with_context(
            fmt::format("rank {} connecting to rank {} ({})", group.rank, call.peer, options.role));
        const std::lock_guard lock(mutex);
        const bool unreachable =
            e.code() == ErrorCode::deadline || e.code() == ErrorCode::unavailable;
        if (!error)
          error = unreachable ? std::make_exception_ptr(UnreachablePeer(e, call.peer))
                              : std::make_exception_ptr(e);
        next = calls.size();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min<size_t>(calls.size(), 16); ++i) threads.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
  return links;
}

}  // namespace

std::vector<MeshLink> connect_mesh(const Group& group, net::Store& store, const net::Secret& secret,
                                   const MeshOptions& options, Deadline deadline) {
  if (group.generation == 0 || group.rank < 0 || group.rank >= group.size) {
    fail(ErrorCode::invalid_argument, "rank {} of {} in generation {}: no such member", group.rank,
         group.size, group.generation);
  }
  if (options.links.empty()) {
    fail(ErrorCode::invalid_argument, "no link given: name at least one address of this host");
  }
  Reception reception(group, secret, options);
  store.set(address_key(group, options.role, group.rank), reception.addresses(), deadline);
  reception.start(deadline);
  std::vector<MeshLink> links;
  try {
    links = dial_all(group, secret, options, look_up(group, store, options, deadline), deadline);
  } catch (...) {
    reception.finish(true);
    throw;
  }
  for (MeshLink& link : reception.finish(false)) links.push_back(std::move(link));
  std::sort(links.begin(), links.end(), [](const MeshLink& a, const MeshLink& b) {
    return std::pair(a.peer, a.lane) < std::pair(b.peer, b.lane);
  });
  return links;
}

}  // namespace ductile::comm
