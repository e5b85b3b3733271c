#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/cluster/store_writer_impl.h"
#include "ductile/cluster/testing/failing_vfs.h"

namespace ductile::cluster {
namespace {

using testing::FailingVfs;

struct Written {
  TempFolder folder;
  Store store{folder.path() / "store.db", FailingVfs::name()};
  CommitQueue queue{store};
  net::Loop loop;
  StoreWriter writer{loop, queue};
  std::vector<int> done;
  std::vector<ErrorCode> failures;

  Written() {
    writer.call_at_failure([this](const Error& error) { failures.push_back(error.code()); });
    writer.call_when_idle([this] { loop.stop(); });
  }
  ~Written() { FailingVfs::heal(); }
  void write(int number) {
    writer.write([](Change& change) { change.record(0, "test", "{}", 1); },
                 [this, number] { done.push_back(number); });
  }
  void write_newest(const std::string& key, int number) {
    writer.write_newest(
        key, [number](Change& change) { change.record(0, std::to_string(number), "{}", 1); },
        [this, number] { done.push_back(number); });
  }
  std::vector<std::string> kinds() {
    std::vector<std::string> out;
    for (const Event& event : Reader(folder.path() / "store.db").events(0, 1000))
      out.push_back(event.kind);
    return out;
  }
};

TEST(StoreWriter, WhatWasWrittenIsCalledInOrder) {
  Written w;
  for (int i = 0; i < 5; ++i) w.write(i);
  w.loop.run();
  EXPECT_EQ(w.done, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(w.failures.empty());
  EXPECT_EQ(Reader(w.folder.path() / "store.db").last_event(), 5);
}

// What was not written must not be acted upon, nor what was to follow it.
TEST(StoreWriter, AWriteThatFailsForGoodIsTheLast) {
  Written w;
  w.writer.call_at_failure([&w](const Error& error) {
    w.failures.push_back(error.code());
    w.loop.stop();
  });
  w.writer.write([](Change& change) { change.set_phase(17, Phase::running, "no such job", 1); },
                 [&w] { w.done.push_back(1); });
  w.write(2);
  w.loop.run();
  w.write(3);
  EXPECT_TRUE(w.writer.idle());
  EXPECT_EQ(w.failures, std::vector<ErrorCode>{ErrorCode::not_found});
  EXPECT_TRUE(w.done.empty());
  EXPECT_EQ(Reader(w.folder.path() / "store.db").last_event(), 0);
}

// Else a disk that is full for long would fill the memory.
TEST(StoreWriter, WhileNothingCanBeWrittenOnlyTheNewestOfEachKindWaits) {
  Written w;
  FailingVfs::fail_at(1, FailingVfs::How::full);
  w.writer.call_on_refusal([&w] { w.loop.stop(); });
  w.write(-1);
  w.loop.run();
  ASSERT_TRUE(w.writer.refusal());
  EXPECT_EQ(to_string(w.writer.refusal()->fault), "full");
  for (int i = 0; i < 1000; ++i) w.write_newest(i % 2 == 0 ? "even" : "odd", i);
  w.write(-2);
  EXPECT_EQ(w.writer.waiting(), 4u);
  FailingVfs::heal();
  w.writer.call_on_refusal({});
  w.loop.run();
  EXPECT_FALSE(w.writer.refusal());
  EXPECT_EQ(w.kinds(), (std::vector<std::string>{"test", "998", "999", "test"}));
  ASSERT_EQ(w.done.size(), 1002u) << "who waits for an older one is told, too";
  EXPECT_EQ(w.done.front(), -1);
  EXPECT_EQ(w.done.back(), -2);
}

// Each may be an event that somebody waits for.
TEST(StoreWriter, WhileItCanBeWrittenNothingIsLeftOut) {
  Written w;
  for (int i = 0; i < 4; ++i) w.write_newest("key", i);
  w.loop.run();
  EXPECT_EQ(w.kinds(), (std::vector<std::string>{"0", "1", "2", "3"}));
  EXPECT_EQ(w.done, (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace ductile::cluster
