#include "ductile/comm/engine.h"

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/comm/communicator.h"
#include "ductile/comm/testing/rank_threads.h"

// Messages that wait for one another; what else the engine does is in communicator_test.cc.
namespace ductile::comm {
namespace {

TEST(Engine, OneMayWaitForWhicheverMessageComesFirst) {
  run_ranks(3, [](Communicator& comm) {
    std::byte word{};
    if (comm.rank() > 0) {
      // Rank 2 first; rank 1 once it is told to.
      if (comm.rank() == 1) comm.receive(0, 1, {&word, 1});
      word = static_cast<std::byte>(comm.rank());
      comm.send(0, 0, {&word, 1});
      return comm.barrier();
    }
    std::byte got[2]{};
    const std::vector<Work> works{comm.start_receive(1, 0, {&got[0], 1}),
                                  comm.start_receive(2, 0, {&got[1], 1})};
    const std::span<const Work> first(works.data(), 1);
    EXPECT_FALSE(Work::wait_for_any(first, std::chrono::milliseconds(1)));
    while (!Work::wait_for_any(works, std::chrono::milliseconds(100))) {
    }
    EXPECT_TRUE(works[1].done());
    EXPECT_EQ(got[1], std::byte{2});
    EXPECT_FALSE(works[0].done());
    comm.send(1, 1, {&word, 1});
    while (!Work::wait_for_any(first, std::chrono::milliseconds(100))) {
    }
    EXPECT_EQ(got[0], std::byte{1});
    comm.barrier();
  });
}

TEST(Engine, AMessageMayComeAfterAnotherAndKeepsItsPlace) {
  run_ranks(2, [](Communicator& comm) {
    std::byte word{};
    if (comm.rank() == 0) {
      const std::byte data[] = {std::byte{7}, std::byte{8}};
      const Work asked = comm.start_receive(1, 5, {&word, 1});
      const Work first = comm.start_send_after(asked, 1, 5, {&data[0], 1});
      const Work second = comm.start_send(1, 5, {&data[1], 1});
      EXPECT_FALSE(first.wait_for(std::chrono::milliseconds(5)));
      comm.send(1, 6, {&word, 1});
      first.wait();
      second.wait();
      // One that may go at once.
      comm.start_send_after(asked, 1, 5, {&data[0], 1}).wait();
    } else {
      comm.receive(0, 6, {&word, 1});
      std::byte got[2]{};
      const Work first = comm.start_receive(0, 5, {&got[0], 1});
      const Work second = comm.start_receive(0, 5, {&got[1], 1});
      second.wait();
      EXPECT_FALSE(first.wait_for(std::chrono::milliseconds(5)));
      comm.send(0, 5, {&word, 1});
      first.wait();
      EXPECT_EQ(got[0], std::byte{7});
      EXPECT_EQ(got[1], std::byte{8});
      comm.receive(0, 5, {&word, 1});
      EXPECT_EQ(word, std::byte{7});
    }
    comm.barrier();
  });
}

}  // namespace
}  // namespace ductile::comm
