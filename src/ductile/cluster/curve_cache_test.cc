#include "ductile/cluster/curve_cache.h"

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/run/folder.h"

namespace ductile::cluster {
namespace {

using namespace std::chrono_literals;

// Reading takes a second of a clock that the test moves; what is read is how often it was.
class Curves : public ::testing::Test {
 protected:
  Curves() : folder_(run::RunFolder::create_at(temporary_.path() / "run", "[train]\n")) {}
  CurveCache::Curves look() { return cache_.of(folder_.path()); }
  void grow() { write_file_atomic(folder_.metrics_file(), std::string(++size_, '\n')); }
  std::string read() {
    if (hold_) {
      begun_ = true;
      may_go_.get_future().wait();
    }
    now_ = now_.load() + 1s;
    ++reads;
    if (fails) throw std::runtime_error("no disk");
    return std::to_string(reads);
  }

  std::atomic<int> reads = 0;
  std::atomic<bool> fails = false, hold_ = false, begun_ = false;
  std::promise<void> may_go_;
  std::atomic<std::chrono::steady_clock::duration> now_{};
  CurveCache cache_{[this](const run::RunFolder&) { return read(); },
                    [this] { return CurveCache::Time(now_.load()); }};

 private:
  TempFolder temporary_;
  run::RunFolder folder_;
  size_t size_ = 0;
};

TEST_F(Curves, OfARunThatGrowsAreReadAgainAfterTenTimesAsLong) {
  EXPECT_EQ(look().text, "1");
  grow();
  now_ = now_.load() + 9s;
  EXPECT_EQ(look().text, "1");
  now_ = now_.load() + 2s;
  EXPECT_EQ(look().text, "2");
  now_ = now_.load() + 100s;
  EXPECT_EQ(look().text, "2") << "it has not grown";
}

TEST_F(Curves, ThatCannotBeReadAreNotTriedAtEachLook) {
  fails = true;
  EXPECT_THROW(look(), std::runtime_error);
  EXPECT_THROW(look(), std::runtime_error);
  EXPECT_EQ(reads, 1);
  fails = false;
  now_ = now_.load() + 11s;
  EXPECT_EQ(look().text, "2");
}

TEST_F(Curves, AreThoseThatAreKnownWhileAnotherOneReads) {
  EXPECT_EQ(look().text, "1");
  grow();
  now_ = now_.load() + 11s;
  hold_ = true;
  auto reader = std::async(std::launch::async, [this] { return look().text; });
  while (!begun_) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(look().text, "1");
  may_go_.set_value();
  EXPECT_EQ(reader.get(), "2");
}

}  // namespace
}  // namespace ductile::cluster
