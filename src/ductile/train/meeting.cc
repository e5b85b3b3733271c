#include "ductile/train/meeting.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/comm/calibrate.h"
#include "ductile/comm/communicator.h"
#include "ductile/comm/composite_transport.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/comm/tcp_transport.h"
#include "ductile/link/addresses.h"
#include "ductile/net/store_server.h"

namespace ductile::train {
namespace {

using namespace std::chrono_literals;

// A member may have a long step to finish before it comes; the controller's word, which `given_up`
// passes on, comes sooner.
constexpr auto kPatience = std::chrono::minutes(30);
constexpr auto kStoreTry = 2s;
constexpr std::chrono::milliseconds kConnect = 3s;  // at least, for a connection between two hosts

// Who knows the name knows the secret.
std::string arena_name(const net::Secret& secret, const std::string& job,
                       control::Generation generation) {
  const net::Mac mac = secret.mac(
      {std::as_bytes(std::span(std::string_view("arena"))), std::as_bytes(std::span(job))});
  return fmt::format("ductile-{}-{}", net::to_hex(std::span(mac).first(16)), generation);
}

std::unique_ptr<net::Store> find_store(const MeetingOptions& options, const net::Secret& secret) {
  while (true) {
    const net::Address address = options.store();
    try {
      return net::connect_store(address, secret, options.job, net::Clock::now() + kStoreTry);
    } catch (const Error& e) {
      if (options.given_up && options.given_up()) throw;
      if (options.log) options.log(fmt::format("the store is not there yet: {}", e.what()));
    }
  }
}

}  // namespace

Meeting::Meeting(const control::GenerationPlan& plan, const net::Secret* secret,
                 MeetingOptions options)
    : options_(std::move(options)), layout_(options_.layout) {
  std::map<std::string, int> places;
  for (const control::Member& m : plan.members) {
    if (m.worker == options_.worker) rank_ = static_cast<int>(members_.size());
    members_.push_back(m.worker);
    const std::string place = link::PeerAddress::parse(m.address).place;
    hosts_.push_back(places.try_emplace(place, static_cast<int>(places.size())).first->second);
  }
  try {
    if (members_.size() == 1) {
      meet_nobody();
    } else if (secret == nullptr) {
      fail(ErrorCode::invalid_argument, "{} workers meet without a secret", members_.size());
    } else if (places.size() == 1) {
      meet_in_arena(plan, *secret);
    } else {
      meet_by_messages(plan, *secret);
    }
  } catch (const comm::UnreachablePeer& e) {
    throw MeetingFailed(e.what(), {members_[static_cast<size_t>(e.rank)]});
  } catch (const Error& e) {
    // Whatever kept them apart is for the protocol to settle.
    if (e.code() == ErrorCode::invalid_argument || e.code() == ErrorCode::internal) throw;
    throw MeetingFailed(
        fmt::format("generation {} did not come together: {}", plan.number, e.what()), {});
  }
}

Meeting::~Meeting() = default;

comm::ArenaOptions Meeting::arena_options(const std::vector<int>& ranks,
                                          const control::GenerationPlan& plan) const {
  comm::ArenaOptions options;
  for (const int r : ranks)
    options.labels.push_back(static_cast<int>(members_[static_cast<size_t>(r)]));
  options.generation = plan.number;
  options.given_up = options_.given_up;
  return options;
}

void Meeting::meet_nobody() {
  arena_ = std::move(
      comm::Arena::for_threads(1, {.region_bytes = parallel::arena_bytes(layout_)}).front());
  exchange_ = parallel::make_exchange(arena_, layout_);
}

void Meeting::meet_in_arena(const control::GenerationPlan& plan, const net::Secret& secret) {
  std::vector<int> ranks;
  for (int r = 0; r < layout_.num_workers(); ++r) ranks.push_back(r);
  comm::ArenaOptions options = arena_options(ranks, plan);
  options.region_bytes = parallel::arena_bytes(layout_);
  arena_ = comm::Arena::meet(arena_name(secret, options_.job, plan.number), rank_,
                             layout_.num_workers(), options, kPatience);
  if (options_.log) {
    arena_->report_stalls(options_.soft_deadline, [log = options_.log](const comm::Stall& stall) {
      log(comm::to_string(stall));
    });
  }
  exchange_ = parallel::make_exchange(arena_, layout_, engine_options());
}

// By messages a wait that is long is told, too, with the workers' numbers.
comm::EngineOptions Meeting::engine_options() const {
  comm::EngineOptions options;
  if (!options_.log) return options;
  options.soft_deadline = options_.soft_deadline;
  options.on_stall = [log = options_.log, members = members_](comm::Stall stall) {
    for (int& r : stall.ranks) r = static_cast<int>(members[static_cast<size_t>(r)]);
    log(comm::to_string(stall));
  };
  return options;
}

void Meeting::meet_by_messages(const control::GenerationPlan& plan, const net::Secret& secret) {
  const net::Deadline deadline = net::Clock::now() + kPatience;
  const std::unique_ptr<net::Store> store = find_store(options_, secret);
  const comm::Group group{options_.job, plan.number, rank_, layout_.num_workers()};
  const auto refused = [this](const net::Refusal& r) {
    if (options_.log) options_.log(fmt::format("refused {}: {}", r.address, r.reason));
  };
  comm::TcpOptions tcp;
  tcp.links = {options_.address};
  tcp.given_up = options_.given_up;
  tcp.connect_patience = std::max(2 * options_.deadline, kConnect);
  tcp.on_refusal = refused;
  std::unique_ptr<comm::Transport> transport =
      comm::connect_tcp(group, *store, secret, tcp, deadline);

  std::vector<int> local;
  const int own_host = hosts_[static_cast<size_t>(rank_)];
  for (int r = 0; r < layout_.num_workers(); ++r)
    if (hosts_[static_cast<size_t>(r)] == own_host) local.push_back(r);
  std::shared_ptr<comm::Arena> arena;  // of the members on this host
  if (local.size() > 1) {
    const auto place = std::find(local.begin(), local.end(), rank_) - local.begin();
    comm::ArenaOptions options = arena_options(local, plan);
    options.region_bytes = layout_.message_bytes;
    arena =
        comm::Arena::meet(arena_name(secret, options_.job, plan.number), static_cast<int>(place),
                          static_cast<int>(local.size()), options, kPatience);
    transport = comm::make_composite_transport(comm::make_shm_transport(arena), std::move(local),
                                               std::move(transport));
  }
  comm::CommunicatorOptions communicator;
  communicator.topology.host = hosts_;
  communicator.engine = engine_options();
  auto made = std::make_unique<comm::Communicator>(std::move(transport), std::move(communicator));
  comm::Communicator& links = *made;  // lives as long as the exchange
  exchange_ = parallel::make_exchange(std::move(made), layout_, arena);

  comm::DetectorOptions detector;
  detector.link = options_.address;
  detector.deadline = options_.deadline;
  detector.interval = std::max(options_.deadline / 8, 20ms);
  detector.given_up = options_.given_up;
  detector.on_refusal = refused;
  detector_ = std::make_unique<comm::FailureDetector>(
      group, *store, secret, detector,
      [this](const comm::PeerLoss& loss) {
        if (options_.log) options_.log(loss.reason);
        exchange_->fail(loss.reason);
      },
      [this](const comm::GroupStall& stall) {
        if (options_.log) options_.log(stall.text);
      },
      deadline);
  // Measured once for these hosts; the canonical sum has one algorithm alone. With the detector at
  // work, as a peer may be lost meanwhile.
  if (layout_.reduction == parallel::Reduction::fast) {
    const comm::Calibration calibration =
        comm::calibrate(links, {.cache = comm::calibration_cache(), .transport = "tcp"});
    if (options_.log && rank_ == 0 && calibration.seconds > 0) {
      options_.log(fmt::format("measured the links between the workers in {:.0f} ms",
                               1e3 * calibration.seconds));
    }
  }
}

int64_t Meeting::workers_here() const {
  return std::count(hosts_.begin(), hosts_.end(), hosts_[static_cast<size_t>(rank_)]);
}

int64_t Meeting::place_here() const {
  return std::count(hosts_.begin(), hosts_.begin() + rank_, hosts_[static_cast<size_t>(rank_)]);
}

std::vector<control::WorkerId> Meeting::lost() const {
  std::vector<int> ranks;
  if (arena_) {
    if (const auto loss = arena_->loss()) ranks = loss->ranks;
  } else if (detector_) {
    ranks = detector_->losses().ranks;
  }
  std::vector<control::WorkerId> workers;
  for (const int r : ranks) workers.push_back(members_[static_cast<size_t>(r)]);
  return workers;
}

}  // namespace ductile::train
