#include "ductile/link/disk.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"

namespace ductile::link {
namespace {

using namespace std::chrono_literals;

std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.message();
  }
}

TEST(Disk, TheOwnThreadsIsDoneAtOnceAndTellsErrors) {
  DiskHere disk;
  std::string order;
  disk.run([&] { order += 'a'; }, [&](const std::exception_ptr& e) { order += text_of(e) + 'b'; });
  disk.run([] { fail(ErrorCode::unavailable, "full"); },
           [&](const std::exception_ptr& e) { order += text_of(e); });
  EXPECT_EQ(order, "abfull");
}

TEST(Disk, AThreadWorksInOrderAndTellsTheLoop) {
  net::Loop loop;
  DiskThread disk(loop);
  const std::thread::id here = std::this_thread::get_id();
  std::vector<int> worked, done;
  std::string errors;
  for (int i = 0; i < 200; ++i) {
    disk.run(
        [&, i] {
          EXPECT_NE(std::this_thread::get_id(), here);
          worked.push_back(i);
          if (i == 70) fail(ErrorCode::unavailable, "full");
        },
        [&, i](const std::exception_ptr& e) {
          EXPECT_EQ(std::this_thread::get_id(), here);
          EXPECT_GE(worked.size(), static_cast<size_t>(i));
          done.push_back(i);
          errors += text_of(e);
          if (i == 199) loop.stop();
        });
    if (i != 70 && i != 199) disk.run([] {});
  }
  ASSERT_TRUE(loop.run_until(loop.now() + 60s));
  EXPECT_EQ(done.size(), 200u);
  EXPECT_EQ(worked, done);
  EXPECT_EQ(errors, "full");
}

// The loop turns while the disk is at work.
TEST(Disk, KeepsNobodyWaiting) {
  net::Loop loop;
  std::promise<void> stuck;
  DiskThread disk(loop);
  bool done = false;
  disk.run([&] { stuck.get_future().wait(); },
           [&](const std::exception_ptr&) {
             done = true;
             loop.stop();
           });
  int turns = 0;
  for (int i = 0; i < 100; ++i) {
    loop.post([&] { ++turns; });
    loop.turn(loop.now());
  }
  EXPECT_EQ(turns, 100);
  EXPECT_FALSE(done);
  stuck.set_value();
  EXPECT_TRUE(loop.run_until(loop.now() + 60s));
  EXPECT_TRUE(done);
}

TEST(Disk, AThreadThatEndsFinishesWhatItIsAtAndTellsNobody) {
  net::Loop loop;
  std::promise<void> begun, stuck;
  std::atomic<int> finished = 0;
  int told = 0;
  std::optional<DiskThread> disk(loop);
  disk->run(
      [&] {
        begun.set_value();
        stuck.get_future().wait();
        ++finished;
      },
      [&](const std::exception_ptr&) { ++told; });
  disk->run([&] { finished += 10; }, [&](const std::exception_ptr&) { ++told; });
  begun.get_future().wait();
  std::jthread releaser([&] {
    std::this_thread::sleep_for(20ms);
    stuck.set_value();
  });
  disk.reset();
  EXPECT_EQ(finished, 1);
  loop.turn(loop.now());
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace ductile::link
