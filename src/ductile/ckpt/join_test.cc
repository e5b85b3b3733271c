// Checkpoints of parts that several writers left.
#include "ductile/ckpt/join.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/ckpt/checkpoint.h"
#include "ductile/ckpt/publish.h"
#include "ductile/ckpt/testing/training_state.h"
#include "ductile/ckpt/writer.h"

namespace ductile::ckpt {
namespace {

using ductile::testing::code_of;
using testing::load;
using testing::OwnedTensor;
using testing::random_bytes;
using testing::random_tensor;
using testing::State;
using testing::state_of_step;
using testing::views;

const std::vector<std::string> kTags = {"a", "b", "c"};

// Every third tensor of the state each; of a state of one tensor two have nothing.
std::vector<State> parts_of(const State& state) {
  std::vector<State> parts(kTags.size());
  size_t i = 0;
  for (const auto& [name, tensor] : state) parts[i++ % parts.size()][name] = tensor;
  return parts;
}

void write_part(const fs::path& folder, int64_t step, const std::string& tag, const State& part) {
  WriterOptions options;
  options.chunk_bytes = 4096;
  options.pending_tag = tag;
  options.keep_memory = false;
  CheckpointWriter writer(folder, options);
  writer.save(step, nullptr, views(part));
  writer.wait();
}

void write_parts(const fs::path& folder, int64_t step, const State& state) {
  const std::vector<State> parts = parts_of(state);
  for (size_t i = 0; i < parts.size(); ++i) write_part(folder, step, kTags[i], parts[i]);
}

TEST(Join, PartsBecomeOneCheckpointAndNothingOfThemIsLeft) {
  for (const State& state : {state_of_step(7), State{{"model/a", random_tensor(9000, 1)}}}) {
    const TempFolder folder("ckpt");
    EXPECT_FALSE(parts_are_there(folder.path(), 7, kTags));
    write_parts(folder.path(), 7, state);
    EXPECT_TRUE(parts_are_there(folder.path(), 7, kTags));
    EXPECT_FALSE(open_latest(folder.path()).checkpoint);
    int64_t bytes = 0;
    for (const auto& [name, tensor] : state) bytes += static_cast<int64_t>(tensor.bytes.size());
    EXPECT_EQ(join_parts(folder.path(), 7, kTags, std::ssize(state), "w1", {{"figures", 3}}),
              bytes);
    EXPECT_FALSE(open_latest(folder.path()).checkpoint);  // nobody has published it
    publish(folder.path(), 7, "w1");
    const auto newest = open_latest(folder.path()).checkpoint;
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step(), 7);
    EXPECT_EQ(newest->state(), (nlohmann::json{{"figures", 3}}));
    EXPECT_EQ(load(*newest), state);
    const VerifyResult result = verify(folder.path());
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(result.unused_chunks, 0);
    EXPECT_TRUE(fs::is_empty(folder.path() / "pending"));
  }
}

// An earlier checkpoint is published, and cleans up, while the parts of the next one wait.
TEST(Join, PartsOutliveThePublicationOfAnEarlierCheckpoint) {
  const TempFolder folder("ckpt");
  write_parts(folder.path(), 3, state_of_step(3));
  join_parts(folder.path(), 3, kTags, std::ssize(state_of_step(3)), "w1", nullptr);
  write_parts(folder.path(), 5, state_of_step(5));
  publish(folder.path(), 3, "w1", {.keep = 1});
  join_parts(folder.path(), 5, kTags, std::ssize(state_of_step(5)), "w2", nullptr);
  publish(folder.path(), 5, "w2", {.keep = 1});
  EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state_of_step(5));
}

// Pieces of one tensor, as their writers leave them: any sizes, among tensors that are packed.
struct PieceOf {
  const char* tag;
  size_t begin, size;
};

void write_pieces(const fs::path& folder, const OwnedTensor& whole, const State& rest,
                  const std::vector<PieceOf>& pieces) {
  for (const std::string& tag : kTags) {
    std::vector<TensorView> tensors;
    std::vector<TensorPiece> of;
    if (tag == "b") tensors = views(rest);
    for (const PieceOf& p : pieces) {
      if (tag != p.tag) continue;
      of.push_back({"model/cut#" + std::to_string(p.begin), "model/cut", whole.shape,
                    static_cast<int64_t>(p.begin)});
      tensors.push_back({of.back().name,
                         DType::u8,
                         {static_cast<int64_t>(p.size)},
                         std::span(whole.bytes).subspan(p.begin, p.size),
                         /*apart=*/true});
    }
    WriterOptions options;
    options.chunk_bytes = 4096;
    options.pending_tag = tag;
    options.keep_memory = false;
    CheckpointWriter writer(folder, options);
    writer.save(4, state_of_part(of), tensors);
    writer.wait();
  }
}

TEST(Join, PiecesOfATensorBecomeTheTensor) {
  State state = state_of_step(4);
  const State rest = state;
  const OwnedTensor whole{DType::u8, {100, 200}, random_bytes(20000, 9)};
  state["model/cut"] = whole;
  const std::vector<std::vector<PieceOf>> cuts = {
      {{"a", 0, 7000}, {"b", 7000, 1}, {"c", 7001, 12999}},
      {{"c", 0, 100}, {"a", 100, 100}, {"c", 200, 19800}},
      {{"b", 0, 10000}, {"a", 10000, 10000}}};
  for (const std::vector<PieceOf>& pieces : cuts) {
    const TempFolder folder("ckpt");
    write_pieces(folder.path(), whole, rest, pieces);
    join_parts(folder.path(), 4, kTags, std::ssize(state), "w1", nullptr);
    publish(folder.path(), 4, "w1");
    EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state);
    const VerifyResult result = verify(folder.path());
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(result.unused_chunks, 0);
  }
}

TEST(Join, PiecesThatMakeNoWholeAreRefusedByName) {
  const State rest = state_of_step(4);
  const OwnedTensor whole{DType::u8, {100, 200}, random_bytes(20000, 9)};
  const std::vector<std::vector<PieceOf>> cuts = {{{"a", 0, 7000}, {"c", 7001, 12999}},
                                                  {{"a", 0, 7000}, {"c", 0, 20000}},
                                                  {{"a", 100, 19900}},
                                                  {{"a", 0, 7000}, {"c", 6000, 14000}}};
  for (const std::vector<PieceOf>& pieces : cuts) {
    const TempFolder folder("ckpt");
    write_pieces(folder.path(), whole, rest, pieces);
    try {
      join_parts(folder.path(), 4, kTags, std::ssize(rest) + 1, "w1", nullptr);
      FAIL() << "pieces with a gap became a tensor";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::conflict);
      EXPECT_NE(std::string(e.what()).find("model/cut"), std::string::npos) << e.what();
    }
  }
}

// What a publication would refuse is found by whom can have the parts written again.
TEST(Join, APartWhoseChunkIsGoneIsRefusedUntilItIsWrittenAgain) {
  const TempFolder folder("ckpt");
  const State state = state_of_step(7);
  const auto join = [&] { join_parts(folder.path(), 7, kTags, std::ssize(state), "w1", nullptr); };
  write_parts(folder.path(), 7, state);
  join();
  fs::path chunk;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path() / "chunks"))
    if (entry.is_regular_file()) chunk = entry.path();
  fs::remove(chunk);
  EXPECT_EQ(code_of(join), ErrorCode::data_loss);
  write_parts(folder.path(), 7, state);
  join();
  publish(folder.path(), 7, "w1");
  EXPECT_EQ(load(*open_latest(folder.path()).checkpoint), state);
}

TEST(Join, WhatIsNoWholeIsRefusedByName) {
  const TempFolder folder("ckpt");
  const State state = state_of_step(2);
  int64_t expected = std::ssize(state);
  const auto join = [&] { join_parts(folder.path(), 2, kTags, expected, "w1", nullptr); };
  write_part(folder.path(), 2, "a", state);
  write_part(folder.path(), 2, "b", {});
  EXPECT_EQ(code_of(join), ErrorCode::not_found);
  EXPECT_FALSE(parts_are_there(folder.path(), 2, kTags));
  const auto& [name, tensor] = *state.begin();
  write_part(folder.path(), 2, "c", {{name, tensor}});
  EXPECT_EQ(code_of(join), ErrorCode::conflict);
  try {
    join();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
  }
  write_part(folder.path(), 2, "c", {});
  ++expected;  // a tensor that nobody has written
  EXPECT_EQ(code_of(join), ErrorCode::conflict);
  write_file_atomic(folder.path() / "pending" / "step-000000000002.c.json", "torn");
  EXPECT_EQ(code_of(join), ErrorCode::data_loss);
  EXPECT_FALSE(fs::exists(folder.path() / "pending" / "step-000000000002.w1.json"));
}

}  // namespace
}  // namespace ductile::ckpt
