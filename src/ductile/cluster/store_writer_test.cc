#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/cluster/store_writer_impl.h"

namespace ductile::cluster {
namespace {

struct Written {
  TempFolder folder;
  Store store{folder.path() / "store.db"};
  CommitQueue queue{store};
  net::Loop loop;
  StoreWriter writer{loop, queue};
  std::vector<int> done;
  std::vector<ErrorCode> failures;

  Written() {
    writer.call_at_failure([this](const Error& error) { failures.push_back(error.code()); });
    writer.call_when_idle([this] { loop.stop(); });
  }
  void write(int number) {
    writer.write([](Change& change) { change.record(0, "test", "{}", 1); },
                 [this, number] { done.push_back(number); });
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

}  // namespace
}  // namespace ductile::cluster
