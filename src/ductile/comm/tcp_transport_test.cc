#include "ductile/comm/tcp_transport.h"

#include <future>

#include <unistd.h>

#include "ductile/comm/failure_detector.h"
#include "ductile/comm/testing/processes.h"
#include "ductile/comm/testing/split_conformance.h"
#include "ductile/comm/testing/transport_conformance.h"
#include "ductile/net/store_server.h"

namespace ductile::comm {
namespace {

using std::chrono::milliseconds;

net::Deadline in(int ms) { return net::Clock::now() + milliseconds(ms); }

const net::Secret& secret() {
  static const net::Secret s(std::string_view("the secret of the tests"));
  return s;
}

TransportSet make_set(int size, const TcpOptions& options) {
  std::shared_ptr<net::Store> store = net::make_memory_store();
  TransportSet set;
  set.ranks.resize(static_cast<size_t>(size));
  std::vector<std::future<void>> connecting;
  for (int r = 0; r < size; ++r) {
    connecting.push_back(std::async(std::launch::async, [&, r] {
      set.ranks[static_cast<size_t>(r)] =
          connect_tcp({"job", 3, r, size}, *store, secret(), options, in(20000));
    }));
  }
  for (auto& c : connecting) c.get();
  return set;
}

TransportMaker maker(const char* name, const TcpOptions& options) {
  return {name, [options](int size) { return make_set(size, options); }};
}

TcpOptions with(const std::function<void(TcpOptions&)>& change) {
  TcpOptions options;
  change(options);
  return options;
}

INSTANTIATE_TEST_SUITE_P(
    Tcp, TransportConformance,
    ::testing::Values(maker("tcp", {}), maker("two_rails", with([](TcpOptions& o) {
                                                o.links = {"127.0.0.1", "127.0.0.2"};
                                              })),
                      maker("small_buffers", with([](TcpOptions& o) {
                              o.socket.send_buffer = o.socket.receive_buffer = 8192;
                              o.unexpected_soft = 0;
                            })),
                      maker("spinning",
                            with([](TcpOptions& o) { o.spin = std::chrono::microseconds(100); })),
                      maker("ipv6", with([](TcpOptions& o) { o.links = {"::1"}; }))),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Tcp, SplitConformance,
                         ::testing::Values(maker("tcp", {}),
                                           maker("two_rails", with([](TcpOptions& o) {
                                                   o.links = {"127.0.0.1", "127.0.0.2"};
                                                 }))),
                         [](const auto& info) { return info.param.name; });

std::string failure_text(const std::function<void()>& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// A process of its own, killed in the middle of what it sends.
TEST(TcpTransport, AKilledProcessIsLostAndNamed) {
  Processes processes;  // before there are threads
  const int child =
      processes.start(1, [](int rank, const std::string& address, const Processes& self) {
        const auto store =
            net::connect_store(net::Address::parse(address), secret(), "job", in(20000));
        const auto t = connect_tcp({"job", 1, rank, 3}, *store, secret(), {}, in(20000));
        std::vector<std::byte> out(50'000'000);
        Transfer send;
        t->send(0, 1, out, send);
        self.say("sending");
        t->progress(std::chrono::minutes(1));
        pause();
      });
  net::StoreServer server({"127.0.0.1", 0}, secret(), "job");
  const net::Address address = server.address();
  processes.tell(child, address.to_string());
  const auto store = net::connect_store(address, secret(), "job", in(20000));
  auto two = std::async(std::launch::async, [&] {
    const auto own = net::connect_store(address, secret(), "job", in(20000));
    return connect_tcp({"job", 1, 2, 3}, *own, secret(), {}, in(20000));
  });
  const auto t = connect_tcp({"job", 1, 0, 3}, *store, secret(), {}, in(20000));
  const auto other = two.get();
  ASSERT_EQ(processes.hear(), "sending");
  std::vector<std::byte> got(50'000'000);
  Transfer receive;
  Transfer from_other;
  t->receive(1, 1, got, receive);
  t->receive(2, 1, got, from_other);
  t->progress(milliseconds(1));
  processes.end(child);
  const std::string text = failure_text(
      [&] {
        const net::Deadline patience = in(20000);
        while (net::Clock::now() < patience) t->progress(std::chrono::seconds(10));
      },
      ErrorCode::peer_lost);
  EXPECT_NE(text.find("rank 1 (127.0.0.1:"), std::string::npos) << text;
  EXPECT_EQ(receive.state, Transfer::State::failed);
  EXPECT_EQ(from_other.state, Transfer::State::failed);
}

// Two groups and all ranks sum at the same time; a member is killed, or stopped, in a process of
// its own.
class TcpGroups : public ::testing::TestWithParam<int> {};

TEST_P(TcpGroups, AMemberThatIsLostEndsTheWholeFamilyOfTheSurvivors) {
  constexpr int kSize = 4;
  Processes processes;
  for (int r = 0; r < kSize; ++r) {
    processes.start(r, [](int rank, const std::string& address, const Processes& self) {
      const auto store =
          net::connect_store(net::Address::parse(address), secret(), "job", in(20000));
      const Group group{"job", 1, rank, kSize};
      std::vector<float> x(60'000), y(60'000), z(60'000);  // outlive what is done with them
      Communicator comm(connect_tcp(group, *store, secret(), {}, in(20000)));
      DetectorOptions detection;
      detection.interval = milliseconds(20);
      detection.deadline = milliseconds(400);
      FailureDetector detector(
          group, *store, secret(), detection, [&](const PeerLoss& loss) { comm.report_loss(loss); },
          {}, in(20000));
      const auto pair = comm.split(rank < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3});
      const auto three = rank < 3 ? comm.split(std::vector<int>{2, 0, 1}) : nullptr;
      std::string said;
      try {
        for (int i = 0;; ++i) {
          const Work a = pair->start_all_reduce(x.data(), x.data(), 60'000, DType::f32);
          const Work b = comm.start_all_reduce(z.data(), z.data(), 60'000, DType::f32);
          if (three) three->all_reduce(y.data(), y.data(), 60'000, DType::f32);
          a.wait();
          b.wait();
          if (i == 3) self.say("ready");
        }
      } catch (const Error& e) {
        said = fmt::format("{} {};", to_string(e.code()), e.what());
      }
      for (Communicator* c : {&comm, pair.get(), three.get()}) {
        try {
          if (c == nullptr) continue;
          c->barrier();
          said += " none";
        } catch (const Error& e) {
          said += fmt::format(" {}", to_string(e.code()));
        }
      }
      self.say(said);
      pause();
    });
  }
  net::StoreServer server({"127.0.0.1", 0}, secret(), "job");
  for (int r = 0; r < kSize; ++r) processes.tell(r, server.address().to_string());
  for (int r = 0; r < kSize; ++r) ASSERT_EQ(processes.hear(), "ready");
  kill(processes.pid(2), GetParam());
  std::string all;
  for (int r = 0; r < kSize - 1; ++r) {
    const auto line = processes.hear();
    ASSERT_TRUE(line.has_value());
    EXPECT_EQ(line->rfind("peer_lost", 0), 0u) << *line;
    EXPECT_NE(line->find("; peer_lost peer_lost"), std::string::npos) << *line;
    EXPECT_EQ(line->find("none"), std::string::npos) << *line;
    all += *line + "\n";
  }
  EXPECT_NE(all.find("rank 2"), std::string::npos) << all;
}

INSTANTIATE_TEST_SUITE_P(TcpTransport, TcpGroups, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) {
                           return info.param == SIGKILL ? "killed" : "stopped";
                         });

TEST(TcpTransport, APeerThatReceivesNothingIsHeldBackAndNothingIsLost) {
  TcpOptions options;
  options.unexpected_soft = 100'000;
  TransportSet set = make_set(2, options);
  constexpr int kMessages = 200;
  constexpr size_t kBytes = 100'000;
  std::vector<std::byte> out(kBytes, std::byte{1});
  auto sends = std::make_unique<Transfer[]>(kMessages);
  for (int i = 0; i < kMessages; ++i) set.ranks[0]->send(1, static_cast<Tag>(i), out, sends[i]);
  const net::Deadline until = in(200);
  while (net::Clock::now() < until) {
    set.ranks[0]->progress(milliseconds(5));
    set.ranks[1]->progress(milliseconds(5));
  }
  EXPECT_FALSE(sends[kMessages - 1].settled()) << "20 MB were swallowed without a receive";
  std::vector<std::byte> got(kBytes);
  for (int i = 0; i < kMessages; ++i) {
    Transfer receive;
    set.ranks[1]->receive(0, static_cast<Tag>(i), got, receive);
    const net::Deadline patience = in(20000);
    while (!receive.settled() && net::Clock::now() < patience) {
      set.ranks[0]->progress(milliseconds(0));
      set.ranks[1]->progress(milliseconds(1));
    }
    ASSERT_EQ(receive.state, Transfer::State::done);
    ASSERT_EQ(got, out);
  }
}

TEST(TcpTransport, AFloodThatNobodyReceivesFailsWithTheRemedy) {
  TcpOptions options;
  options.unexpected_soft = 10'000;
  options.unexpected_hard = 1'000'000;
  TransportSet set = make_set(2, options);
  std::vector<std::byte> out(100'000);
  auto sends = std::make_unique<Transfer[]>(20);
  for (int i = 0; i < 20; ++i) set.ranks[0]->send(1, static_cast<Tag>(i), out, sends[i]);
  std::vector<std::byte> in_bytes(1);
  Transfer never;
  set.ranks[1]->receive(0, 99, in_bytes, never);  // so that it has to be searched for
  const std::string text = failure_text(
      [&] {
        const net::Deadline patience = in(20000);
        while (net::Clock::now() < patience) {
          set.ranks[0]->progress(milliseconds(1));
          set.ranks[1]->progress(milliseconds(1));
        }
      },
      ErrorCode::data_loss);
  EXPECT_NE(text.find("post receives"), std::string::npos) << text;
}

TEST(TcpTransport, ALateProcessOfAnOlderGenerationIsFencedOut) {
  const auto store = net::make_memory_store();
  // The new generation's rank 0 waits for its rank 1; the late one finds its address and knocks.
  std::vector<net::Refusal> refusals;
  TcpOptions options;
  options.on_refusal = [&](const net::Refusal& r) { refusals.push_back(r); };
  auto zero = std::async(std::launch::async, [&] {
    return connect_tcp({"job", 7, 0, 2}, *store, secret(), options, in(20000));
  });
  store->set("mesh/transport/6/0", store->get("mesh/transport/7/0", in(20000)), in(20000));
  const std::string text = failure_text(
      [&] {
        connect_tcp({"job", 6, 1, 2}, *store, secret(), {}, in(20000));
      },
      ErrorCode::conflict);
  EXPECT_NE(text.find("fenced out: generation 6 is over"), std::string::npos) << text;
  const auto one = connect_tcp({"job", 7, 1, 2}, *store, secret(), {}, in(20000));
  zero.get();
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_NE(refusals[0].reason.find("generation 6"), std::string::npos) << refusals[0].reason;
}

TEST(TcpTransport, RanksThatDoNotComeAreNamed) {
  const auto store = net::make_memory_store();
  const std::string text = failure_text(
      [&] {
        connect_tcp({"job", 1, 0, 3}, *store, secret(), {}, in(50));
      },
      ErrorCode::deadline);
  EXPECT_NE(text.find("ranks 1, 2"), std::string::npos) << text;
}

TEST(TcpTransport, HostsWithDifferentNumbersOfLinksAreRefused) {
  const auto store = net::make_memory_store();
  TcpOptions two;
  two.links = {"127.0.0.1", "127.0.0.2"};
  auto zero = std::async(std::launch::async, [&] {
    failure_text(
        [&] {
          connect_tcp({"job", 1, 0, 2}, *store, secret(), two, in(500));
        },
        ErrorCode::deadline);
  });
  failure_text(
      [&] {
        connect_tcp({"job", 1, 1, 2}, *store, secret(), {}, in(20000));
      },
      ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ductile::comm
