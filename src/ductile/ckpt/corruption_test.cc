// Damage to what is stored: it must be refused by name, and the checkpoint before it used.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/ckpt/manifest_impl.h"
#include "ductile/ckpt/testing/training_state.h"
#include "ductile/ckpt/writer.h"

namespace ductile::ckpt {
namespace {

using nlohmann::json;
using testing::FastFolder;
using testing::load;
using testing::state_of_step;
using testing::views;

fs::path manifest_of(const fs::path& folder, int64_t step) {
  return folder / "manifests" / manifest_name(step);
}

// The files a checkpoint needs, found without the code under test.
std::set<fs::path> files_of(const fs::path& folder, int64_t step) {
  std::set<fs::path> files = {manifest_of(folder, step)};
  const json root = json::parse(read_file(manifest_of(folder, step)));
  for (const json& chunk : root["manifest"]["chunks"]) {
    const auto hex = chunk[0].get<std::string>();
    files.insert(folder / "chunks" / hex.substr(0, 2) / hex);
  }
  return files;
}

void overwrite(const fs::path& path, const std::string& text) { write_file_atomic(path, text); }

class Corruption : public ::testing::Test {
 protected:
  void SetUp() override {
    CheckpointWriter writer(folder(), {.chunk_bytes = 4096});
    for (int64_t step : {1, 2}) {
      writer.save(step, step, views(state_of_step(step)));
      writer.wait();
    }
    old_files = files_of(folder(), 1);
    new_files = files_of(folder(), 2);
    for (const auto& files : {old_files, new_files}) all_files.insert(files.begin(), files.end());
  }

  const fs::path& folder() const { return folder_.path(); }

  // `damaged` are all the files that are no longer what they were.
  void check(const std::vector<fs::path>& damaged) {
    bool old_good = true;
    bool new_good = true;
    for (const fs::path& file : damaged) {
      old_good = old_good && !old_files.contains(file);
      new_good = new_good && !new_files.contains(file);
    }
    const LatestResult latest = open_latest(folder());
    ASSERT_EQ(latest.checkpoint.has_value(), old_good || new_good);
    if (latest.checkpoint) {
      ASSERT_EQ(latest.checkpoint->step(), new_good ? 2 : 1);
      ASSERT_EQ(load(*latest.checkpoint), state_of_step(new_good ? 2 : 1));
    }
    const bool new_there = fs::exists(manifest_of(folder(), 2));
    if (!new_good && new_there) {
      ASSERT_FALSE(latest.refused.empty());
      bool named = false;
      for (const fs::path& file : damaged) {
        named = named || latest.refused[0].find(file.filename().string()) != std::string::npos;
      }
      EXPECT_TRUE(named) << latest.refused[0];
    }
    EXPECT_EQ(verify(folder()).good.size(), static_cast<size_t>(old_good) + new_good);
  }

  FastFolder folder_;
  std::set<fs::path> old_files, new_files, all_files;
};

TEST_F(Corruption, OfAnyOneFileIsRefusedByNameAndTheOneBeforeIsUsed) {
  for (const fs::path& file : all_files) {
    SCOPED_TRACE(file.string());
    const std::string good = read_file(file);
    for (size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 4);
      overwrite(file, bad);
      check({file});
    }
    for (size_t size : {size_t{0}, good.size() / 2, good.size() - 1}) {
      overwrite(file, good.substr(0, size));
      check({file});
    }
    overwrite(file, good + "x");
    check({file});
    fs::remove(file);
    check({file});
    overwrite(file, good);
    check({});
  }
}

TEST_F(Corruption, SwappedFilesAreRefused) {
  const std::vector<fs::path> files(all_files.begin(), all_files.end());
  for (size_t i = 0; i < files.size(); ++i) {
    const fs::path& a = files[i];
    const fs::path& b = files[(i + 1) % files.size()];
    SCOPED_TRACE(a.string() + " and " + b.string());
    const std::string first = read_file(a);
    const std::string second = read_file(b);
    overwrite(a, second);
    overwrite(b, first);
    check({a, b});
    overwrite(a, first);
    overwrite(b, second);
  }
}

// A link to itself cannot be opened (ELOOP), as a file when no descriptor is free or a disk
// refuses.
TEST_F(Corruption, WhatCannotBeReadNowIsNoDamageAndNoReasonToGoBack) {
  for (const fs::path& file : new_files) {
    if (old_files.contains(file)) continue;
    SCOPED_TRACE(file.string());
    const std::string good = read_file(file);
    fs::remove(file);
    fs::create_symlink(file, file);
    try {
      open_latest(folder());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unavailable) << e.what();
      EXPECT_NE(std::string(e.what()).find(file.filename().string()), std::string::npos)
          << e.what();
    }
    fs::remove(file);
    overwrite(file, good);
    check({});
  }
}

TEST_F(Corruption, ABadChunkIsNotReusedButWrittenAgain) {
  const json root = json::parse(read_file(manifest_of(folder(), 2)));
  for (const fs::path& file : new_files) {
    if (file.extension() == ".json") continue;
    std::string text = read_file(file);
    text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 1);
    overwrite(file, text);
  }
  // All of step 2 is bad now, and what step 1 shares with it. Training goes on to the same content.
  CheckpointWriter writer(folder(), {.chunk_bytes = 4096});
  writer.save(2, 2, views(state_of_step(2)));
  writer.wait();
  const VerifyResult result = verify(folder());
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.good.size(), 2U);
  EXPECT_EQ(load(*open_latest(folder()).checkpoint), state_of_step(2));
}

// A manifest's text around a body, with a right hash.
std::string framed(const std::string& body) {
  const ChunkId id = hash_bytes(std::as_bytes(std::span(body)));
  return "{\"hash\":\"" + id.hex() + "\",\"manifest\":" + body + "}\n";
}

TEST_F(Corruption, CheckpointsOfANewerFormatAreNeitherPassedOverNorRemoved) {
  json body = json::parse(read_file(manifest_of(folder(), 2)))["manifest"];
  body["version"] = 2;
  overwrite(manifest_of(folder(), 2), framed(body.dump()));
  const auto conflicts = [](const std::function<void()>& f) {
    try {
      f();
      return false;
    } catch (const Error& e) {
      return e.code() == ErrorCode::conflict;
    }
  };
  EXPECT_TRUE(conflicts([&] { open_latest(folder()); }));
  EXPECT_TRUE(conflicts([&] { CheckpointWriter writer(folder()); }));
  EXPECT_TRUE(conflicts([&] { collect_garbage(folder(), 1); }));
  for (const fs::path& file : all_files) EXPECT_TRUE(fs::exists(file));
}

TEST_F(Corruption, RandomManifestsAreRefusedWithoutHarm) {
  const std::string good = read_file(manifest_of(folder(), 2));
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    const uint32_t edits = 1 + rng.below(4);
    for (uint32_t e = 0; e < edits; ++e) {
      bad[rng.below(static_cast<uint32_t>(bad.size()))] = static_cast<char>(rng.next());
    }
    if (rng.below(4) == 0) bad.resize(rng.below(static_cast<uint32_t>(bad.size())));
    if (bad == good) continue;
    EXPECT_THROW(parse_manifest(bad), Error);
  }
}

// Replaces one random value of the tree by something it should not be.
void spoil(json& node, Rng& rng) {
  if (node.is_structured() && !node.empty() && rng.below(8) > 0) {
    auto it = node.begin();
    std::advance(it, rng.below(static_cast<uint32_t>(node.size())));
    spoil(*it, rng);
    return;
  }
  const std::vector<json> odd = {nullptr,
                                 -1,
                                 0,
                                 1,
                                 INT64_MAX,
                                 UINT64_MAX,
                                 1e308,
                                 "",
                                 "f32",
                                 json::array(),
                                 json::object(),
                                 json::array({1, 2}),
                                 true,
                                 int64_t{1} << 40,
                                 "ffffffffffffffffffffffffffffffff"};
  node = odd[rng.below(static_cast<uint32_t>(odd.size()))];
}

TEST_F(Corruption, HostileManifestsWithARightHashAreRefusedOrConsistent) {
  const json good = json::parse(read_file(manifest_of(folder(), 2)))["manifest"];
  Rng rng(4);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    json body = good;
    for (uint32_t e = 0; e <= rng.below(3); ++e) spoil(body, rng);
    try {
      const Manifest m = parse_manifest(framed(body.dump()));
      int64_t end = 0;
      for (const TensorInfo& t : m.tensors) {
        ASSERT_EQ(t.offset, end);
        end += t.num_bytes;
      }
      ASSERT_EQ(end, m.total_bytes);
    } catch (const Error& e) {
      ++refused;
      ASSERT_TRUE(e.code() == ErrorCode::data_loss || e.code() == ErrorCode::conflict) << e.what();
    }
  }
  EXPECT_GT(refused, 1500);
  EXPECT_THROW(parse_manifest(framed(std::string(1 << 20, '['))), Error);
}

}  // namespace
}  // namespace ductile::ckpt
