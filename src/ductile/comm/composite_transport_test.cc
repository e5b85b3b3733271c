#include "ductile/comm/composite_transport.h"

#include "ductile/comm/inproc.h"
#include "ductile/comm/shm_transport.h"
#include "ductile/comm/testing/split_conformance.h"
#include "ductile/comm/testing/transport_conformance.h"

namespace ductile::comm {
namespace {

// Hosts of two ranks, dealt out so that neighbours by number are on different hosts.
TransportSet two_a_host(int size) {
  TransportSet set;
  auto between = make_inproc_transports(size, {});
  set.ranks.resize(static_cast<size_t>(size));
  const int hosts = (size + 1) / 2;
  for (int h = 0; h < hosts; ++h) {
    std::vector<int> local{h};
    if (h + hosts < size) local.push_back(h + hosts);
    auto arenas = Arena::for_threads(static_cast<int>(local.size()),
                                     {.region_bytes = 1 << 20, .labels = local});
    for (size_t k = 0; k < local.size(); ++k) {
      set.ranks[local[k]] = make_composite_transport(make_shm_transport(std::move(arenas[k])),
                                                     local, std::move(between[local[k]]));
    }
  }
  return set;
}

TransportSet one_host(int size) {
  TransportSet set;
  auto between = make_inproc_transports(size, {});
  auto arenas = Arena::for_threads(size, {.region_bytes = 1 << 20});
  std::vector<int> local;
  for (int r = 0; r < size; ++r) local.push_back(r);
  for (int r = 0; r < size; ++r) {
    set.ranks.push_back(make_composite_transport(make_shm_transport(std::move(arenas[r])), local,
                                                 std::move(between[r])));
  }
  return set;
}

INSTANTIATE_TEST_SUITE_P(Composite, TransportConformance,
                         ::testing::Values(TransportMaker{"two_a_host", two_a_host},
                                           TransportMaker{"one_host", one_host}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Composite, SplitConformance,
                         ::testing::Values(TransportMaker{"two_a_host", two_a_host},
                                           TransportMaker{"one_host", one_host}),
                         [](const auto& info) { return info.param.name; });

TEST(CompositeTransport, OnlyMemoryOfTheSameHostIsAddressable) {
  const int size = 4;
  auto between = make_inproc_transports(size, {});
  auto arenas = Arena::for_threads(2, {.region_bytes = 1 << 20});
  std::shared_ptr<Arena> arena = std::move(arenas[1]);
  std::byte* const own = arena->allocate(100);
  const auto t = make_composite_transport(make_shm_transport(arena), {0, 2}, std::move(between[2]));
  EXPECT_EQ(t->peer_memory(0, own), arena->peer(0, own));
  EXPECT_EQ(t->peer_memory(1, own), nullptr);
  EXPECT_EQ(t->peer_memory(3, own), nullptr);
}

TEST(CompositeTransport, ADistantLossSettlesLocalTransfersToo) {
  TransportSet set = two_a_host(4);  // hosts {0, 2} and {1, 3}
  std::vector<std::byte> bytes(100'000);
  Transfer near, far;
  set.ranks[0]->receive(2, 1, bytes, near);
  set.ranks[0]->receive(1, 1, bytes, far);
  set.ranks[1].reset();
  try {
    while (true) set.ranks[0]->progress(std::chrono::seconds(20));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_lost);
  }
  EXPECT_EQ(near.state, Transfer::State::failed);
  EXPECT_EQ(far.state, Transfer::State::failed);
}

TEST(CompositeTransport, RefusesLocalRanksThatMakeNoSense) {
  const auto make = [](std::vector<int> local) {
    auto between = make_inproc_transports(4, {});
    auto arenas = Arena::for_threads(2, {.region_bytes = 1 << 20});
    make_composite_transport(make_shm_transport(std::move(arenas[0])), std::move(local),
                             std::move(between[0]));
  };
  EXPECT_NO_THROW(make({0, 3}));
  EXPECT_THROW(make({0}), Error);
  EXPECT_THROW(make({0, 4}), Error);
  EXPECT_THROW(make({0, 0}), Error);
  EXPECT_THROW(make({3, 0}), Error);
}

}  // namespace
}  // namespace ductile::comm
