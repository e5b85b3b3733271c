#pragma once

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include <malloc.h>

#include "ductile/comm/testing/split_fixture.h"

// Sub-groups (Communicator::split) over every transport: included by the test file of each.
namespace ductile::comm {

TEST_P(SplitConformance, RandomGroupsDoWhatFreshCommunicatorsOfTheirShapeDo) {
  constexpr int kSize = 5;
  constexpr int kGroups = 5;
  uint64_t seed = 0;  // each transport draws groups of its own
  for (const char c : GetParam().name) seed = mix(seed, static_cast<uint64_t>(c));
  Rng rng(seed, 41);
  std::vector<std::vector<int>> lists;
  for (int g = 0; g < kGroups; ++g) lists.push_back(draw_group(rng, kSize));
  CommunicatorOptions options;
  for (int r = 0; r < kSize; ++r) options.topology.host.push_back(static_cast<int>(rng.below(2)));
  const auto count = [&](int g) { return g % 2 == 0 ? 37 : 20'011; };
  std::mutex mutex;
  std::map<std::pair<int, int>, std::vector<float>> results;  // by group and rank in it
  run(
      kSize,
      [&](Communicator& comm) {
        std::vector<std::unique_ptr<Communicator>> groups;  // all alive at the same time
        for (const auto& list : lists) {
          groups.push_back(contains(list, comm.rank()) ? comm.split(list) : nullptr);
        }
        for (int g = 0; g < kGroups; ++g) {
          if (groups[g] == nullptr) continue;
          Communicator& group = *groups[g];
          EXPECT_EQ(group.first_ranks(), lists[g]);
          EXPECT_EQ(lists[g][static_cast<size_t>(group.rank())], comm.rank());
          auto own = do_all(group, mix(seed, static_cast<uint64_t>(g)), count(g));
          const std::lock_guard lock(mutex);
          results[{g, group.rank()}] = std::move(own);
        }
        for (int g = 0; g < kGroups; ++g) {
          if (groups[g] == nullptr || groups[g]->rank() != 0) continue;
          run_twin(*groups[g], [&](Communicator& fresh) {
            const auto expected = do_all(fresh, mix(seed, static_cast<uint64_t>(g)), count(g));
            std::unique_lock lock(mutex);
            while (!results.contains({g, fresh.rank()})) {  // a member may still be at it
              lock.unlock();
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
              lock.lock();
            }
            EXPECT_TRUE(same_bits(results[{g, fresh.rank()}], expected))
                << "group " << g << " of seed " << seed << ", rank " << fresh.rank();
          });
        }
        comm.barrier();
      },
      options);
}

// Equal tags, equal peers, equal numbers: only the group differs.
TEST_P(SplitConformance, MessagesOfAGroupDoNotMixWithThoseOfItsParentAndSiblings) {
  run(3, [](Communicator& comm) {
    std::vector<std::unique_ptr<Communicator>> groups;
    groups.push_back(comm.split(std::vector<int>{0, 1, 2}));
    groups.push_back(comm.split(std::vector<int>{2, 1, 0}));
    if (comm.rank() < 2) groups.push_back(comm.split(std::vector<int>{1, 0}));
    groups.push_back(groups[0]->split(std::vector<int>{0, 1, 2}));
    std::vector<Communicator*> all{&comm};
    for (const auto& g : groups) all.push_back(g.get());
    constexpr size_t kMessages = 20;
    const auto value = [](const Communicator& c, size_t which, int from, size_t i) {
      const int first = c.first_ranks()[static_cast<size_t>(from)];
      return static_cast<int32_t>(which * 10'000 + static_cast<size_t>(first) * 1000 + i);
    };
    // Rank 2 has no third group: what follows it has another place there, the number is the same.
    const auto number = [&](size_t i) { return comm.rank() == 2 && i == 3 ? size_t{4} : i; };
    std::vector<std::vector<int32_t>> in(all.size(), std::vector<int32_t>(kMessages));
    std::vector<std::vector<int32_t>> out(in);
    std::vector<float> sums(all.size(), 1.0F);
    std::vector<Work> work;
    for (size_t k = 0; k < all.size(); ++k) {
      // Each rank begins with another one, and sends in another order than it receives.
      const size_t i = (k + static_cast<size_t>(comm.rank())) % all.size();
      const size_t j = all.size() - 1 - i;
      for (size_t m = 0; m < kMessages; ++m) {
        Communicator& to = *all[i];
        Communicator& from = *all[j];
        const int left = (from.rank() + from.size() - 1) % from.size();
        work.push_back(
            from.start_receive(left, 5, std::as_writable_bytes(std::span(&in[j][m], 1))));
        out[i][m] = value(to, number(i), to.rank(), m);
        work.push_back(
            to.start_send((to.rank() + 1) % to.size(), 5, std::as_bytes(std::span(&out[i][m], 1))));
      }
      work.push_back(all[i]->start_all_reduce(&sums[i], &sums[i], 1, DType::f32));
    }
    for (const Work& w : work) w.wait();
    for (size_t i = 0; i < all.size(); ++i) {
      const Communicator& c = *all[i];
      EXPECT_EQ(sums[i], static_cast<float>(c.size()));
      for (size_t m = 0; m < kMessages; ++m) {
        EXPECT_EQ(in[i][m], value(c, number(i), (c.rank() + c.size() - 1) % c.size(), m));
      }
    }
    comm.barrier();
  });
}

// A stage that sums among its replicas while the other talks point to point, each on two threads.
TEST_P(SplitConformance, GroupsAreUsedAtTheSameTimeFromSeveralThreads) {
  run(4, [](Communicator& comm) {
    const int r = comm.rank();
    const auto stage = comm.split(r < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
    const auto replica = comm.split(r % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{3, 1});
    const auto everyone = comm.split(std::vector<int>{3, 2, 1, 0});
    constexpr int kRounds = 30;
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        std::vector<float> x(5000, static_cast<float>(r + i));
        stage->all_reduce(x.data(), x.data(), 5000, DType::f32);
        EXPECT_EQ(x[4999], static_cast<float>((r < 2 ? 1 : 5) + 2 * i));
      }
    });
    threads.emplace_back([&] {
      std::vector<std::byte> bytes(3000);
      for (int i = 0; i < kRounds; ++i) {
        if (r < 2) {
          std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(i));
          replica->send(1 - replica->rank(), 3, bytes);
        } else {
          replica->receive(1 - replica->rank(), 3, bytes);
          EXPECT_EQ(bytes[2999], static_cast<std::byte>(i));
        }
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        double x = r == 3 ? i : -1;
        everyone->broadcast(&x, 1, DType::f64, 0);
        EXPECT_EQ(x, i);
      }
    });
    for (int i = 0; i < kRounds; ++i) comm.barrier();
    threads.clear();
  });
}

// Rank 1 comes only when ranks 0 and 2 have met, though rank 0 was called for rank 1 first.
TEST_P(SplitConformance, ASplitDoesNotWaitForAnotherOneOnAnotherThread) {
  std::atomic<bool> begun{false}, met{false};
  run(3, [&](Communicator& comm) {
    const auto wait_for = [](const std::atomic<bool>& flag) {
      while (!flag) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    const auto meet = [&](const std::vector<int>& list) {
      const auto group = comm.split(list);
      int32_t x = comm.rank();
      group->all_reduce(&x, &x, 1, DType::i32);
      EXPECT_EQ(x, list[0] + list[1]);
    };
    if (comm.rank() == 1) {
      wait_for(met);
      meet({0, 1});
    } else if (comm.rank() == 2) {
      meet({2, 0});
      met = true;
    } else {
      std::jthread other([&] {
        begun = true;
        meet({0, 1});
      });
      wait_for(begun);
      while (!comm.oldest() || comm.oldest()->operation.find("[0, 1]") == std::string::npos) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      meet({2, 0});
    }
    comm.barrier();
  });
}

TEST_P(SplitConformance, GroupsOutliveTheirParentsAndAreDestroyedInAnyOrder) {
  for (const bool parent_first : {true, false}) {
    TransportSet set = GetParam().make(3);
    std::vector<std::jthread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        CommunicatorOptions options;
        if (!set.arenas.empty()) options.arena = std::move(set.arenas[r]);
        auto parent = std::make_unique<Communicator>(std::move(set.ranks[r]), options);
        options = {};
        auto child = parent->split(std::vector<int>{2, 0, 1});
        auto grandchild = child->split(std::vector<int>{1, 0, 2});
        const std::vector<int> expected{0, 2, 1};
        EXPECT_EQ(grandchild->first_ranks(), expected);
        (parent_first ? parent : child).reset();
        const auto check = [](Communicator& comm) {
          float x = static_cast<float>(comm.rank());
          comm.all_reduce(&x, &x, 1, DType::f32);
          EXPECT_EQ(x, 3.0F);
        };
        check(*grandchild);
        check(parent_first ? *child : *parent);
        const auto late = grandchild->split(std::vector<int>{2, 1, 0});
        grandchild.reset();
        check(*late);
        (parent_first ? child : parent).reset();
        check(*late);
      });
    }
  }
}

TEST_P(SplitConformance, ListsThatMakeNoSenseAreRefusedBeforeAnythingIsSent) {
  run(3, [](Communicator& comm) {
    std::string text;
    const auto refuse = [&](const std::vector<int>& list) {
      EXPECT_EQ(code_of([&] { comm.split(list); }, &text), ErrorCode::invalid_argument) << text;
      return text;
    };
    EXPECT_NE(refuse({0, 1, 2, 3}).find("ranks [0, 1, 2, 3]: there is no rank 3 of 3"),
              std::string::npos)
        << text;
    refuse({-1, 0, 1, 2});
    EXPECT_NE(refuse({0, 1, 2, 1}).find("ranks [0, 1, 2, 1]: rank 1 is in it twice"),
              std::string::npos)
        << text;
    const int other = (comm.rank() + 1) % 3;
    EXPECT_EQ(refuse({other}),
              fmt::format("rank {} splits into ranks [{}] and is not one of them: only members "
                          "call it",
                          comm.rank(), other));
    refuse({});
    const auto group = comm.split(std::vector<int>{2, 1, 0});  // the communicator is as it was
    EXPECT_EQ(code_of([&] { group->send(group->rank(), 1, {}); }), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of([&] { group->split(std::vector<int>{3}); }, &text),
              ErrorCode::invalid_argument);
    EXPECT_NE(text.find("among ranks [2, 1, 0]"), std::string::npos) << text;
    group->barrier();
    comm.barrier();
  });
}

TEST_P(SplitConformance, MembersThatComeWithDifferentListsAllLearnOfIt) {
  const std::vector<std::vector<std::vector<int>>> cases = {
      {{0, 1, 2}, {0, 2, 1}, {0, 1, 2}},  // another order
      {{0, 1, 2}, {1, 2}, {0, 1, 2}},     // rank 1 does not wait for rank 0
      {{0, 1, 2}, {0, 1, 2}, {0, 1, 2, 3}, {2, 3, 1}},
  };
  for (const auto& lists : cases) {
    std::atomic<int> refused{0};
    run(static_cast<int>(lists.size()), [&](Communicator& comm) {
      std::string text;
      const ErrorCode code =
          code_of([&] { comm.split(lists[static_cast<size_t>(comm.rank())]); }, &text);
      // Where a failure is one for all ranks at once, some may see that first.
      EXPECT_TRUE(code == ErrorCode::conflict || code == ErrorCode::peer_lost) << text;
      EXPECT_NE(text.find("all members give the same list"), std::string::npos) << text;
      EXPECT_NE(text.find("splits into ranks ["), std::string::npos) << text;
      ++refused;
      const auto until = Clock::now() + kPatience;  // nobody leaves before all have heard
      while (refused < static_cast<int>(lists.size()) && Clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_EQ(refused, static_cast<int>(lists.size()));
      std::string again;
      EXPECT_NE(code_of([&] { comm.barrier(); }, &again), ErrorCode::internal);
    });
  }
}

TEST_P(SplitConformance, ALossInAGroupEndsTheFamilyAndTheOtherWayRound) {
  for (const bool in_group : {true, false}) {
    std::atomic<int> ready{0};
    std::atomic<bool> gone{false};
    run(4, [&](Communicator& comm) {
      const int r = comm.rank();
      std::vector<float> x(100'000, 1.0F);
      std::vector<float> y(x);
      const auto pair = r < 2 ? comm.split(std::vector<int>{0, 1}) : nullptr;
      auto late = r < 3 ? comm.split(std::vector<int>{2, 1, 0}) : nullptr;
      comm.barrier();
      ++ready;
      while (ready < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (r == 3) return;  // leaves: no member of any group, and nobody's business yet
      if (r == 2) {
        if (in_group) {  // in the middle of a sum, which cannot end before rank 1 comes
          const Work work = late->start_all_reduce(x.data(), x.data(), 100'000, DType::f32,
                                                   with(Algorithm::ring));
          EXPECT_FALSE(work.wait_for(std::chrono::milliseconds(10)));
        }
        late.reset();
        gone = true;
        return;
      }
      while (r == 1 && !gone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto lost = [&](const std::function<void()>& f) {
        std::string text;
        EXPECT_EQ(code_of(f, &text), ErrorCode::peer_lost) << text;
      };
      if (in_group) {
        lost([&] {
          late->all_reduce(x.data(), x.data(), 100'000, DType::f32, with(Algorithm::ring));
        });
      } else {
        lost([&] {
          comm.all_reduce(x.data(), x.data(), 100'000, DType::f32, with(Algorithm::ring));
        });
      }
      // Not one of them goes on, not even where rank 2 is no member.
      lost([&] { pair->all_reduce(y.data(), y.data(), 10, DType::f32, with(Algorithm::ring)); });
      lost([&] { pair->barrier(); });
      lost([&] { late->barrier(); });
      lost([&] { comm.barrier(); });
      lost([&] { pair->split(std::vector<int>{0, 1}); });
    });
  }
}

TEST_P(SplitConformance, AReportedLossEndsWhatWaitsInAnyOfTheFamily) {
  std::atomic<int> done{0};
  run(3, [&](Communicator& comm) {
    const auto group = comm.split(std::vector<int>{2, 1, 0});
    const auto pair = comm.rank() < 2 ? comm.split(std::vector<int>{1, 0}) : nullptr;
    if (comm.rank() != 0) {
      while (done < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    std::vector<std::byte> a(10), b(10), c(10);
    const Work in_pair = pair->start_receive(0, 1, a);
    const Work in_group = group->start_receive(0, 1, b);
    const Work in_whole = comm.start_receive(1, 1, c);
    EXPECT_FALSE(in_pair.wait_for(std::chrono::milliseconds(20)));
    group->report_loss({{0}, "rank 2 is silent"});
    for (const Work* w : {&in_pair, &in_group, &in_whole}) {
      std::string text;
      EXPECT_EQ(code_of([&] { w->wait(); }, &text), ErrorCode::peer_lost);
      EXPECT_NE(text.find("rank 2 is silent"), std::string::npos) << text;
    }
    ++done;
  });
}

TEST_P(SplitConformance, AGroupClosedWithWorkUnderWayEndsTheFamily) {
  std::atomic<int> ready{0}, done{0};
  run(2, [&](Communicator& comm) {
    std::vector<std::byte> in(100, std::byte{7});
    std::vector<float> sum(10, 1.0F);
    auto group = comm.split(std::vector<int>{1, 0});
    ++ready;
    while (ready < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (comm.rank() == 1) {
      while (done < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const Work receive = group->start_receive(0, 1, in);
    const Work reduce = group->start_all_reduce(sum.data(), sum.data(), 10, DType::f32);
    group.reset();
    EXPECT_TRUE(receive.done() && reduce.done()) << "their memory may go now";
    std::string text;
    EXPECT_EQ(code_of([&] { receive.wait(); }, &text), ErrorCode::unavailable);
    EXPECT_NE(text.find("among ranks [1, 0] was closed before"), std::string::npos) << text;
    EXPECT_NE(code_of([&] { reduce.wait(); }), ErrorCode::internal);
    EXPECT_NE(code_of([&] { comm.barrier(); }), ErrorCode::internal);
    EXPECT_EQ(in[0], std::byte{7});
    ++done;
  });
}

TEST_P(SplitConformance, WhoIsMissingIsNamedByItsNumberInTheWhole) {
  std::mutex mutex;
  std::vector<Stall> told;
  CommunicatorOptions options;
  options.engine.soft_deadline = std::chrono::milliseconds(60);
  options.engine.on_stall = [&](const Stall& stall) {
    const std::lock_guard lock(mutex);
    told.push_back(stall);
  };
  const auto heard = [&](const std::string& operation, int missing) {
    const auto until = Clock::now() + kPatience;
    while (Clock::now() < until) {
      {
        const std::lock_guard lock(mutex);
        for (const Stall& s : told) {
          if (s.operation.find(operation) != std::string::npos &&
              s.ranks == std::vector<int>{missing}) {
            return true;
          }
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  };
  run(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 0) {
          comm.barrier();
          return;
        }
        const std::vector<int> list{2, 1};
        EXPECT_TRUE(comm.rank() == 2 || heard("split into ranks [2, 1]", 1));
        const auto group = comm.split(list);
        std::vector<float> x(8, 1.0F);
        EXPECT_TRUE(comm.rank() == 2 || heard("all_reduce (ring) of 8 f32 among ranks [2, 1]", 1));
        const Work work =
            group->start_all_reduce(x.data(), x.data(), 8, DType::f32, with(Algorithm::ring));
        if (comm.rank() == 2) {
          std::optional<Stall> own, whole;
          do {
            (void)work.wait_for(std::chrono::milliseconds(5));
            own = group->oldest();
            whole = comm.oldest();
          } while (!work.done() && (!own || own->ranks.empty()));
          if (!work.done()) {
            EXPECT_EQ(own->ranks, std::vector<int>{1});
            EXPECT_EQ(whole->ranks, std::vector<int>{1});
          }
        }
        work.wait();
        EXPECT_EQ(x[7], 2.0F);
        group->barrier();
        EXPECT_FALSE(group->oldest().has_value());
        comm.barrier();
      },
      options);
}

// More than there are contexts, so that all of them come again; most of one rank, which send
// nothing.
TEST_P(SplitConformance, ManySplitsLeaveNoDescriptorThreadOrMemoryBehind) {
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator{});
  };
  std::ptrdiff_t descriptors = 0, threads = 0;
  size_t memory = 0;
  std::atomic<int> round{0};
  run(2, [&](Communicator& comm) {
    const auto some = [&](int count) {
      for (int i = 0; i < count; ++i) {
        const auto group = comm.split(std::vector<int>{i % 2, 1 - i % 2});
        if (i % 8 != 0) continue;
        float x = 1;
        group->all_reduce(&x, &x, 1, DType::f32);
        EXPECT_EQ(x, 2.0F);
        group->start_all_reduce(&x, &x, 1, DType::f32).wait();
        if (i % 64 == 0) group->split(std::vector<int>{1, 0})->barrier();
      }
      for (int i = 0; i < 15 * count; ++i) (void)comm.split(std::vector<int>{comm.rank()});
      comm.barrier();
    };
    some(100);
    if (comm.rank() == 0) {
      descriptors = entries("/proc/self/fd");
      threads = entries("/proc/self/task");
      memory = mallinfo2().uordblks;
    }
    comm.barrier();
    some(300);
    if (comm.rank() == 0) {
      EXPECT_EQ(entries("/proc/self/fd"), descriptors);
      EXPECT_EQ(entries("/proc/self/task"), threads);
      EXPECT_LT(mallinfo2().uordblks, memory + (64 << 10));
    }
    comm.barrier();
  });
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SplitConformance);

}  // namespace ductile::comm
