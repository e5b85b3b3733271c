#include "ductile/comm/bench_ranks.h"

#include <algorithm>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/comm/composite_transport.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/comm/ucx_transport.h"

namespace ductile::comm {
namespace {

constexpr std::chrono::seconds kPatience{30};

}  // namespace

BenchRank::BenchRank(const BenchPlace& place, const net::Secret& secret) {
  const auto deadline = net::Clock::now() + kPatience;
  const Group group{place.job, 1, place.rank, place.size};
  CommunicatorOptions options;
  options.topology.ranks_per_host = place.ranks_per_host;
  options.topology.num_rails = static_cast<int>(place.tcp.links.size());

  std::unique_ptr<Transport> inside;
  std::vector<int> local;
  const int host = place.rank / place.ranks_per_host;
  for (int r = host * place.ranks_per_host;
       r < std::min(place.size, (host + 1) * place.ranks_per_host); ++r) {
    local.push_back(r);
  }
  const bool one_host = place.transport == "shm";
  if (one_host || place.shm_inside) {
    ArenaOptions arena;
    arena.region_bytes = place.arena_bytes + (size_t{4} << 20);
    arena.labels = local;
    arena_ = Arena::meet(fmt::format("{}-{}", place.job, host), place.rank - local.front(),
                         static_cast<int>(local.size()), arena, kPatience);
    inside = make_shm_transport(arena_);
  }
  if (one_host) {
    options.arena = arena_;
    communicator_ = std::make_unique<Communicator>(std::move(inside), options);
    return;
  }
  store_ = net::connect_store(place.store, secret, place.job, deadline);
  std::unique_ptr<Transport> between;
  if (place.transport == "tcp") {
    between = connect_tcp(group, *store_, secret, place.tcp, deadline);
  } else if (place.transport == "ucx") {
    UcxOptions ucx;
    ucx.link = place.tcp.links.front();
    between = connect_ucx(group, *store_, secret, ucx, deadline);
  } else {
    fail(ErrorCode::invalid_argument, "transport '{}': there are shm, tcp and ucx",
         place.transport);
  }
  if (inside != nullptr) {
    between = make_composite_transport(std::move(inside), local, std::move(between));
  }
  communicator_ = std::make_unique<Communicator>(std::move(between), options);
  DetectorOptions detection;
  detection.link = place.tcp.links.front();
  detector_ = std::make_unique<FailureDetector>(
      group, *store_, secret, detection,
      [this](const PeerLoss& loss) { communicator_->report_loss(loss); },
      FailureDetector::OnStall{}, deadline);
}

float* BenchRank::memory(size_t count) {
  if (arena_ != nullptr) {
    return reinterpret_cast<float*>(arena_->allocate(count * sizeof(float)));
  }
  return own_.emplace_back(count).data();
}

}  // namespace ductile::comm
