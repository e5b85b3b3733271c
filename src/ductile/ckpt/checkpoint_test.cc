#include "ductile/ckpt/checkpoint.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/interruption.h"
#include "ductile/base/testing.h"
#include "ductile/ckpt/testing/training_state.h"
#include "ductile/ckpt/writer.h"

namespace ductile::ckpt {
namespace {

using testing::FastFolder;
using testing::load;
using testing::OwnedTensor;
using testing::random_bytes;
using testing::random_tensor;
using testing::State;
using testing::state_of_step;
using testing::views;

constexpr WriterOptions kSmall{.chunk_bytes = 4096};

SaveResult save(CheckpointWriter& writer, int64_t step, const State& state) {
  writer.save(step, {{"step", step}}, views(state));
  writer.wait();
  const std::optional<SaveResult> result = writer.take_result();
  EXPECT_TRUE(result);
  return result.value_or(SaveResult{});
}

using ductile::testing::code_of;

State arbitrary_state() {
  State state;
  const int count = *rc::gen::inRange(0, 12);
  for (int i = 0; i < count; ++i) {
    OwnedTensor t;
    t.dtype = static_cast<DType>(*rc::gen::inRange(0, 11));
    const int dims = *rc::gen::inRange(0, 4);
    for (int d = 0; d < dims; ++d) t.shape.push_back(*rc::gen::inRange(0, 25));
    const auto bytes = static_cast<size_t>(num_elements(t.shape)) * size_of(t.dtype);
    t.bytes = random_bytes(bytes, *rc::gen::arbitrary<uint64_t>());
    const char* section = *rc::gen::element("", "model/", "optimizer/");
    state[section + ("t" + std::to_string(*rc::gen::inRange(0, 40)))] = std::move(t);
  }
  return state;
}

RC_GTEST_PROP(Checkpoint, ComesBackAsSaved, ()) {
  const FastFolder folder;
  const State state = arbitrary_state();
  const nlohmann::json extra = {{"text", *rc::gen::string<std::string>()}, {"value", 0.1}};
  bool utf8 = true;
  try {
    (void)extra.dump();
  } catch (const nlohmann::json::exception&) {
    utf8 = false;
  }
  CheckpointWriter writer(folder.path(), {.chunk_bytes = 4096 * *rc::gen::inRange(0, 4)});
  if (!utf8) {
    RC_ASSERT_THROWS_AS(writer.save(1, extra, views(state)), Error);
    return;
  }
  writer.save(1, extra, views(state));
  writer.wait();
  const LatestResult latest = open_latest(folder.path());
  RC_ASSERT(latest.refused.empty());
  RC_ASSERT(latest.checkpoint->step() == 1);
  RC_ASSERT(latest.checkpoint->state() == extra);
  RC_ASSERT(load(*latest.checkpoint) == state);
}

RC_GTEST_PROP(Checkpoint, AnyRangeOfATensorCanBeRead, ()) {
  const FastFolder folder;
  const State state = state_of_step(1);
  CheckpointWriter writer(folder.path(), kSmall);
  save(writer, 1, state);
  const Checkpoint checkpoint = Checkpoint::open(folder.path(), 1);
  for (int i = 0; i < 30; ++i) {
    for (const auto& [name, t] : state) {
      const auto size = static_cast<int>(t.bytes.size());
      const int begin = *rc::gen::inRange(0, size + 1);
      const int n = *rc::gen::inRange(0, size - begin + 1);
      std::vector<std::byte> part(static_cast<size_t>(n));
      checkpoint.read_range(name, begin, part);
      RC_ASSERT(std::equal(part.begin(), part.end(), t.bytes.begin() + begin));
    }
  }
}

TEST(Checkpoint, WrongNamesSizesAndRangesAreRefused) {
  const TempFolder folder("ckpt");
  CheckpointWriter writer(folder.path(), kSmall);
  save(writer, 1, state_of_step(1));
  const Checkpoint c = Checkpoint::open(folder.path(), 1);
  std::vector<std::byte> room(41);
  EXPECT_EQ(code_of([&] { c.read("nothing", room); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { c.read("model/bias", room); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { c.read_range("model/bias", 0, room); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { c.read_range("model/bias", -1, std::span(room).first(1)); }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { c.read_range("model/bias", INT64_MAX, room); }),
            ErrorCode::invalid_argument);
  std::string text;
  EXPECT_EQ(code_of([&] { Checkpoint::open(folder.path(), 2); }, &text), ErrorCode::not_found);
  EXPECT_NE(text.find("no checkpoint of step 2; there are those of the steps 1"), std::string::npos)
      << text;
}

TEST(Checkpoint, AFolderWithoutCheckpointsGivesNone) {
  const TempFolder folder("ckpt");
  EXPECT_FALSE(open_latest(folder.path()).checkpoint);
  EXPECT_FALSE(open_latest(folder.path() / "absent").checkpoint);
  EXPECT_TRUE(list(folder.path()).empty());
  EXPECT_EQ(collect_garbage(folder.path(), 1), 0);
}

TEST(Writer, AnUnchangedStateWritesNoChunk) {
  const TempFolder folder("ckpt");
  CheckpointWriter writer(folder.path(), kSmall);
  const SaveResult first = save(writer, 1, state_of_step(1));
  EXPECT_EQ(first.new_bytes, first.total_bytes);
  EXPECT_EQ(first.reused_bytes, 0);
  const SaveResult second = save(writer, 2, state_of_step(1));
  EXPECT_EQ(second.new_bytes, 0);
  EXPECT_EQ(second.reused_bytes, first.total_bytes);
}

TEST(Writer, AHalfChangedStateWritesOnlyWhatChanged) {
  const TempFolder folder("ckpt");
  for (int round = 0; round < 2; ++round) {  // also when the first save was another process's
    CheckpointWriter writer(folder.path(), kSmall);
    const int64_t begin = 3 * round;
    State state = state_of_step(1);
    save(writer, begin + 1, state);
    state["model/conv"] = random_tensor(9000, 77 + static_cast<uint64_t>(round));
    EXPECT_EQ(save(writer, begin + 2, state).new_bytes, 9000);
    // One byte in the middle of a tensor: one chunk.
    state["frozen/table"].bytes[6000 + 10 * static_cast<size_t>(round)] ^= std::byte{1};
    const int64_t one = save(writer, begin + 3, state).new_bytes;
    EXPECT_GT(one, 0);
    EXPECT_LE(one, 4096);
    EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state);
  }
}

TEST(Writer, EqualTensorsAreStoredOnce) {
  const TempFolder folder("ckpt");
  CheckpointWriter writer(folder.path(), kSmall);
  const State state = {{"a", random_tensor(8192, 1)}, {"b", random_tensor(8192, 1)}};
  EXPECT_EQ(save(writer, 1, state).new_bytes, 8192);
  EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state);
}

TEST(Writer, KeepsAsManyCheckpointsAsAskedAndNoUnusedChunk) {
  const TempFolder folder("ckpt");
  CheckpointWriter writer(folder.path(), {.keep = 3, .chunk_bytes = 4096});
  for (int64_t step = 10; step < 60; step += 10) save(writer, step, state_of_step(step));
  const VerifyResult result = verify(folder.path());
  EXPECT_EQ(result.good, (std::vector<int64_t>{50, 40, 30}));
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.unused_chunks, 0);
  EXPECT_EQ(result.temporaries, 0);
  const std::vector<CheckpointSummary> all = list(folder.path());
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].step, 50);
  EXPECT_EQ(all[0].num_tensors, 6);
  EXPECT_EQ(all[0].total_bytes, 28056);
}

TEST(Writer, TheCopyIsTakenBeforeSaveReturns) {
  const TempFolder folder("ckpt");
  CheckpointWriter writer(folder.path(), kSmall);
  State state = state_of_step(1);
  const State before = state;
  writer.save(1, nullptr, views(state));
  for (auto& [name, t] : state) std::fill(t.bytes.begin(), t.bytes.end(), std::byte{0});
  writer.wait();
  EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), before);
}

TEST(Writer, MemoryGotBeforeChangesNothingOfWhatIsSaved) {
  const TempFolder folder("ckpt");
  CheckpointWriter writer(folder.path(), kSmall);
  writer.prepare(views(state_of_step(1)));
  writer.prepare(views(state_of_step(2)));
  writer.wait();
  EXPECT_FALSE(writer.take_result());
  save(writer, 1, state_of_step(1));
  EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state_of_step(1));
}

// The process's own memory that is resident, in bytes.
int64_t resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return 1024 * std::atoll(line.c_str() + 8);
  }
  return 0;
}

TEST(Writer, TheMemoryOfTheCopyIsKeptOrGivenBack) {
  constexpr int64_t kSize = 32 << 20;
  State state;
  state["model/a"] = {DType::u8, {kSize}, std::vector<std::byte>(kSize)};
  for (const bool keeps : {true, false}) {
    const TempFolder folder("ckpt");
    CheckpointWriter writer(folder.path(), {.keep_memory = keeps});
    const int64_t before = resident();
    save(writer, 1, state);
    state["model/a"].bytes[7] = std::byte{1};
    save(writer, 2, state);
    EXPECT_EQ(resident() - before > kSize / 2, keeps);
    EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state);
  }
}

TEST(Writer, SavesFollowEachOtherWithoutWaitingByTheCaller) {
  const TempFolder folder("ckpt");
  CheckpointWriter writer(folder.path(), kSmall);
  for (int64_t step = 1; step <= 20; ++step) writer.save(step, step, views(state_of_step(step)));
  writer.wait();
  int64_t expected = 1;
  while (const auto result = writer.take_result()) {
    EXPECT_EQ(result->step, expected++);
    EXPECT_EQ(result->error, "");
    EXPECT_EQ(result->warning, "");
  }
  EXPECT_EQ(expected, 21);
  EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state_of_step(20));
}

TEST(Writer, ASecondWriterIsRefusedUntilTheFirstIsGone) {
  const TempFolder folder("ckpt");
  {
    CheckpointWriter writer(folder.path(), kSmall);
    save(writer, 1, state_of_step(1));
    std::string message;
    EXPECT_EQ(code_of([&] { CheckpointWriter other(folder.path()); }, &message),
              ErrorCode::conflict);
    EXPECT_NE(message.find(folder.path().string()), message.npos);
    EXPECT_NE(message.find(std::to_string(::getpid())), message.npos);
    EXPECT_EQ(code_of([&] { collect_garbage(folder.path(), 1); }), ErrorCode::conflict);
    EXPECT_TRUE(open_latest(folder.path()).checkpoint);  // reading needs no lock
  }
  CheckpointWriter other(folder.path(), kSmall);
  save(other, 2, state_of_step(2));
}

TEST(Writer, ImpossibleArgumentsAreRefusedAndItStaysUsable) {
  const TempFolder folder("ckpt");
  EXPECT_EQ(code_of([&] { CheckpointWriter w(folder.path(), {.keep = 0}); }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { CheckpointWriter w(folder.path(), {.chunk_bytes = 5000}); }),
            ErrorCode::invalid_argument);
  CheckpointWriter writer(folder.path(), kSmall);
  const std::vector<std::byte> bytes(8);
  const TensorView good{"a", DType::f32, {2}, bytes};
  const auto refused = [&](int64_t step, std::vector<TensorView> tensors) {
    EXPECT_EQ(code_of([&] { writer.save(step, nullptr, tensors); }), ErrorCode::invalid_argument);
  };
  refused(-1, {good});
  refused(1, {good, good});
  refused(1, {{"", DType::f32, {2}, bytes}});
  refused(1, {{"a", DType::f32, {3}, bytes}});
  refused(1, {{"a", DType::f32, {-2}, bytes}});
  refused(1, {{"a", DType::f32, {int64_t{1} << 40, int64_t{1} << 40}, bytes}});
  writer.save(1, nullptr, std::vector{good});
  writer.wait();
  EXPECT_EQ(open_latest(folder.path()).checkpoint->step(), 1);
}

TEST(Writer, AHistoryThatWasGivenUpGoesOnceItIsOvertakenAndNotBefore) {
  const TempFolder folder("ckpt");
  {
    CheckpointWriter writer(folder.path(), {.keep = 4, .chunk_bytes = 4096});
    for (int64_t step : {10, 20, 30, 40}) save(writer, step, state_of_step(step));
  }
  CheckpointWriter writer(folder.path(), {.keep = 2, .chunk_bytes = 4096, .resumed_step = 20});
  EXPECT_EQ(verify(folder.path()).good, (std::vector<int64_t>{40, 30, 20, 10}));
  save(writer, 35, state_of_step(35));
  EXPECT_EQ(verify(folder.path()).good, (std::vector<int64_t>{40, 35, 20}));
  save(writer, 36, state_of_step(36));
  EXPECT_EQ(verify(folder.path()).good, (std::vector<int64_t>{40, 36, 35}));
  save(writer, 41, state_of_step(41));
  EXPECT_EQ(verify(folder.path()).good, (std::vector<int64_t>{41, 36}));
}

TEST(Writer, SavingAStepAgainReplacesIt) {
  const TempFolder folder("ckpt");
  CheckpointWriter writer(folder.path(), kSmall);
  save(writer, 1, state_of_step(1));
  save(writer, 1, state_of_step(2));
  EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state_of_step(2));
  EXPECT_EQ(verify(folder.path()).unused_chunks, 0);
}

TEST(Garbage, CollectsAllButWhatIsKept) {
  const TempFolder folder("ckpt");
  {
    CheckpointWriter writer(folder.path(), {.keep = 4, .chunk_bytes = 4096});
    for (int64_t step : {1, 2, 3, 4}) save(writer, step, state_of_step(step));
  }
  write_file_atomic(folder.path() / "tmp" / "left", std::string(100, 'x'));
  write_file_atomic(folder.path() / "chunks" / "note.txt", "someone else's");
  const int64_t before = verify(folder.path()).chunk_bytes;
  const int64_t freed = collect_garbage(folder.path(), 2);
  const VerifyResult result = verify(folder.path());
  EXPECT_EQ(result.good, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(result.unused_chunks, 0);
  EXPECT_EQ(result.temporaries, 0);
  EXPECT_GT(freed, before - result.chunk_bytes);
  EXPECT_TRUE(fs::exists(folder.path() / "chunks" / "note.txt"));
  EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state_of_step(4));
}

// verify() asks before each chunk whether it is still wanted; it looks at the newest one first.
TEST(Garbage, ACheckpointThatIsRemovedMeanwhileIsNoDamage) {
  const TempFolder folder("ckpt");
  {
    CheckpointWriter writer(folder.path(), {.keep = 4, .chunk_bytes = 4096});
    for (int64_t step : {1, 2, 3}) save(writer, step, state_of_step(step));
  }
  bool removed = false;
  const Interruption remove([&] {
    if (!std::exchange(removed, true)) collect_garbage(folder.path(), 1);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(60));  // it asks every 50 ms
  const VerifyResult result = verify(folder.path());
  EXPECT_EQ(result.good, (std::vector<int64_t>{3}));
  EXPECT_EQ(result.refused, std::vector<std::string>{});
}

}  // namespace
}  // namespace ductile::ckpt
