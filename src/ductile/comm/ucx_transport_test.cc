#include "ductile/comm/ucx_transport.h"

#include <future>

#include "ductile/comm/failure_detector.h"
#include "ductile/comm/testing/processes.h"
#include "ductile/comm/testing/split_conformance.h"
#include "ductile/comm/testing/transport_conformance.h"
#include "ductile/comm/testing/ucx_imposter.h"
#include "ductile/net/channel.h"
#include "ductile/net/store_server.h"

namespace ductile::comm {
namespace {

TransportMaker maker(const char* name, size_t eager_bytes, int spin) {
  return {name, [=](int size) {
            const auto secret = net::Secret::random();
            std::shared_ptr<net::Store> store = net::make_memory_store();
            UcxOptions options;
            options.tls = "tcp";
            options.net_devices = "lo";
            options.eager_bytes = eager_bytes;
            options.spin = std::chrono::microseconds(spin);
            TransportSet set;
            set.ranks.resize(static_cast<size_t>(size));
            std::vector<std::future<void>> connecting;
            for (int r = 0; r < size; ++r) {
              connecting.push_back(std::async(std::launch::async, [&, r] {
                set.ranks[static_cast<size_t>(r)] =
                    connect_ucx({"job", 3, r, size}, *store, secret, options,
                                net::Clock::now() + std::chrono::seconds(20));
              }));
            }
            for (auto& c : connecting) c.get();
            return set;
          }};
}

std::vector<TransportMaker> makers() {
  if (!have_ucx()) return {};
  return {maker("eager", 8192, 50), maker("rendezvous", 0, 0)};
}

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance, ::testing::ValuesIn(makers()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Ucx, SplitConformance, ::testing::ValuesIn(makers()),
                         [](const auto& info) { return info.param.name; });

// Two ranks exchange for ever; one is killed, or stopped, in a process of its own.
class UcxLoss : public ::testing::TestWithParam<int> {};

TEST_P(UcxLoss, TheSurvivorsLoseTheirPeer) {
  if (!have_ucx()) GTEST_SKIP() << "this build has no UCX";
  constexpr int kSize = 3;
  const net::Secret secret(std::string_view("the secret of the tests"));
  Processes processes;
  for (int r = 0; r < kSize; ++r) {
    processes.start(r, [&](int rank, const std::string& address, const Processes& self) {
      const auto deadline = net::Clock::now() + std::chrono::seconds(20);
      const auto store = net::connect_store(net::Address::parse(address), secret, "job", deadline);
      UcxOptions options;
      options.tls = "tcp";
      options.net_devices = "lo";
      const auto t = connect_ucx({"job", 1, rank, kSize}, *store, secret, options, deadline);
      DetectorOptions detection;
      detection.interval = std::chrono::milliseconds(20);
      detection.deadline = std::chrono::milliseconds(400);
      FailureDetector detector(
          {"job", 1, rank, kSize}, *store, secret, detection,
          [&](const PeerLoss& loss) { t->fail(loss); }, {}, deadline);
      self.say("ready");
      std::vector<std::byte> out(300'000);
      std::vector<std::byte> got(300'000);
      try {
        for (Tag tag = 1;; ++tag) {
          Transfer send;
          Transfer receive;
          t->send((rank + 1) % kSize, tag, out, send);
          t->receive((rank + kSize - 1) % kSize, tag, got, receive);
          while (!send.settled() || !receive.settled()) t->progress(std::chrono::minutes(10));
        }
      } catch (const Error& error) {
        self.say(fmt::format("{} {}", to_string(error.code()), error.what()));
      }
      pause();
    });
  }
  net::StoreServer server({"127.0.0.1", 0}, secret, "job");
  for (int r = 0; r < kSize; ++r) processes.tell(r, server.address().to_string());
  for (int r = 0; r < kSize; ++r) ASSERT_EQ(processes.hear(), "ready");
  kill(processes.pid(1), GetParam());
  // A survivor that is told late may see the end of the other one's part first, and name that.
  std::string all;
  for (int r = 0; r < kSize - 1; ++r) {
    const auto line = processes.hear();
    ASSERT_TRUE(line.has_value());
    EXPECT_EQ(line->rfind("peer_lost", 0), 0u) << *line;
    all += *line + "\n";
  }
  EXPECT_NE(all.find("rank 1"), std::string::npos) << all;
}

INSTANTIATE_TEST_SUITE_P(UcxTransport, UcxLoss, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) {
                           return info.param == SIGKILL ? "killed" : "stopped";
                         });

// Rank 1 is played by hand: first without, then with the token it was given.
TEST(UcxTransport, AMessageWithoutThePeersTokenIsDroppedAndReported) {
  if (!have_ucx()) GTEST_SKIP() << "this build has no UCX";
  const auto deadline = net::Clock::now() + std::chrono::seconds(20);
  const auto secret = net::Secret::random();
  const auto store = net::make_memory_store();
  std::atomic<int> refusals{0};
  UcxOptions options;
  options.tls = "tcp";
  options.net_devices = "lo";
  options.on_refusal = [&](const net::Refusal&) { ++refusals; };
  auto connecting = std::async(std::launch::async, [&] {
    return connect_ucx({"job", 1, 0, 2}, *store, secret, options, deadline);
  });
  MeshOptions mesh;
  mesh.role = "ucx";
  std::vector<MeshLink> links = connect_mesh({"job", 1, 1, 2}, *store, secret, mesh, deadline);
  net::Channel side(std::move(links[0].socket), *std::move(links[0].seal));
  const std::vector<std::byte> theirs = side.receive(deadline);
  std::vector<std::byte> frame(8);
  const auto imposter = make_ucx_imposter(theirs);
  frame.insert(frame.end(), imposter->address.begin(), imposter->address.end());
  side.send(frame, deadline);
  imposter->send(2, 0, {}, true);  // its hello
  const auto t = connecting.get();
  EXPECT_EQ(refusals, 0);
  std::vector<std::byte> forged(100, std::byte{1});
  std::vector<std::byte> right(100, std::byte{2});
  imposter->send(1, 5, forged, false);
  imposter->send(1, 5, right, true);
  std::vector<std::byte> got(100);
  Transfer receive;
  t->receive(1, 5, got, receive);
  while (!receive.settled() && net::Clock::now() < deadline) {
    imposter->progress();
    t->progress(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(got, right);
  EXPECT_EQ(refusals, 1);
}

TEST(UcxTransport, SaysWhatIsMissingWhereItIsNotBuilt) {
  if (have_ucx()) GTEST_SKIP() << "this build has UCX";
  EXPECT_THROW(maker("absent", 0, 0).make(1), Error);
}

}  // namespace
}  // namespace ductile::comm
