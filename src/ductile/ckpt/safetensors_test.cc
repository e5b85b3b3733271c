#include "ductile/ckpt/safetensors.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/export.h"
#include "ductile/ckpt/testing/training_state.h"
#include "ductile/ckpt/writer.h"

namespace ductile::ckpt {
namespace {

using testing::FastFolder;
using testing::OwnedTensor;
using testing::random_bytes;
using testing::State;
using testing::state_of_step;
using testing::views;

State read_back(const SafetensorsFile& file) {
  State state;
  for (const TensorInfo& t : file.tensors()) {
    const auto bytes = file.bytes(t);
    state[t.name] = OwnedTensor{t.dtype, t.shape, {bytes.begin(), bytes.end()}};
  }
  return state;
}

RC_GTEST_PROP(Safetensors, ComeBackAsWritten, ()) {
  const FastFolder folder;
  State state;
  const int count = *rc::gen::inRange(0, 8);
  for (int i = 0; i < count; ++i) {
    OwnedTensor t;
    t.dtype = static_cast<DType>(*rc::gen::inRange(0, 11));
    const int dims = *rc::gen::inRange(0, 4);
    for (int d = 0; d < dims; ++d) t.shape.push_back(*rc::gen::inRange(0, 9));
    t.bytes = random_bytes(static_cast<size_t>(num_elements(t.shape)) * size_of(t.dtype), 1);
    state["tensor \"" + std::to_string(i) + "\""] = std::move(t);
  }
  write_safetensors(folder.path() / "x.safetensors", views(state), {{"key", "value"}});
  const SafetensorsFile file(folder.path() / "x.safetensors");
  RC_ASSERT(read_back(file) == state);
  RC_ASSERT(file.metadata() == (Metadata{{"key", "value"}}));
  for (const TensorInfo& t : file.tensors()) {
    const auto address = reinterpret_cast<uintptr_t>(file.bytes(t).data());
    RC_ASSERT(t.num_bytes == 0 || address % size_of(t.dtype) == 0);
  }
}

TEST(Safetensors, TensorsThatAreFetchedInPiecesGiveTheSameFileAndDigests) {
  const FastFolder folder;
  State state = state_of_step(1);
  state["model/large"] = OwnedTensor{DType::u8, {3'000'000}, random_bytes(3'000'000, 2)};
  const std::vector<TensorView> whole = views(state);
  std::vector<TensorInfo> infos;
  for (const TensorView& t : whole)
    infos.push_back({t.name, t.dtype, t.shape, static_cast<int64_t>(t.bytes.size()), 0});
  const TensorReader read = [&](size_t index, int64_t offset, std::span<std::byte> into) {
    EXPECT_LE(into.size(), size_t{1} << 20);
    std::memcpy(into.data(), whole[index].bytes.data() + offset, into.size());
  };
  const nlohmann::json values = {{"figures", 3}};
  EXPECT_EQ(tensors_digest(infos, read), tensors_digest(whole));
  EXPECT_EQ(state_digest(3, values, infos, read), state_digest(3, values, whole));
  const Metadata about = {{"key", "value"}};
  write_safetensors(folder.path() / "whole", whole, about);
  write_safetensors(folder.path() / "pieces", infos, about, read);
  EXPECT_EQ(read_file(folder.path() / "pieces"), read_file(folder.path() / "whole"));
}

TEST(Safetensors, ACheckpointIsExportedUnderOtherNames) {
  const FastFolder folder;
  const State state = state_of_step(1);
  CheckpointWriter writer(folder.path(), {.chunk_bytes = 4096});
  writer.save(12, nullptr, views(state));
  writer.wait();
  const Checkpoint checkpoint = Checkpoint::open(folder.path(), 12);
  const fs::path path = folder.path() / "model.safetensors";
  export_safetensors(
      checkpoint,
      [](std::string_view name) {
        return std::string(name.starts_with("model/") ? name.substr(6) : "");
      },
      path);
  const SafetensorsFile file(path);
  EXPECT_EQ(read_back(file), (State{{"conv", state.at("model/conv")},
                                    {"bias", state.at("model/bias")},
                                    {"empty", state.at("model/empty")}}));
  EXPECT_EQ(file.metadata().at("step"), "12");
  EXPECT_THROW(export_safetensors(
                   checkpoint, [](std::string_view) { return "one"; }, path),
               Error);
  EXPECT_EQ(read_back(SafetensorsFile(path)).size(), 3U);  // the old file is untouched
}

TEST(Safetensors, ATensorIsExportedAsTheSumOfOthers) {
  const FastFolder folder;
  const auto tensor = [](std::vector<float> values) {
    OwnedTensor t{DType::f32, {static_cast<int64_t>(values.size())}, {}};
    const auto bytes = std::as_bytes(std::span(values));
    t.bytes.assign(bytes.begin(), bytes.end());
    return t;
  };
  std::vector<float> w, m, want;
  for (int i = 0; i < 5000; ++i) {
    w.push_back(static_cast<float>(i) / 7);
    m.push_back(1 / (1 + static_cast<float>(i)));
    const float displaced = -0.9F * m.back();
    want.push_back(w.back() + displaced);
  }
  State state;
  state["model/w"] = tensor(w);
  state["model/b"] = tensor({1, 2});
  state["optimizer/m/w"] = tensor(m);
  CheckpointWriter writer(folder.path(), {.chunk_bytes = 4096});
  writer.save(1, nullptr, views(state));
  writer.wait();
  const fs::path path = folder.path() / "model.safetensors";
  export_safetensors(
      Checkpoint::open(folder.path(), 1),
      [](std::string_view name) {
        return std::string(name.starts_with("model/") ? name.substr(6) : "");
      },
      path,
      [](std::string_view name) {
        if (name != "model/w") return std::vector<ExportTerm>();
        return std::vector<ExportTerm>{{"model/w", 1}, {"optimizer/m/w", -0.9}};
      });
  EXPECT_EQ(read_back(SafetensorsFile(path)), (State{{"w", tensor(want)}, {"b", tensor({1, 2})}}));
}

// Reads the file knowing nothing of this code, and checks values that follow a rule.
constexpr const char* kPython = R"(
import json, struct, sys
import numpy as np
raw = open(sys.argv[1], 'rb').read()
n = struct.unpack('<Q', raw[:8])[0]
header = json.loads(raw[8:8 + n])
assert header.pop('__metadata__') == {'made': 'by a test'}
kinds = {'F32': '<f4', 'I64': '<i8', 'U8': 'u1', 'BF16': '<u2'}
got = {}
for name, t in header.items():
    a, b = t['data_offsets']
    got[name] = np.frombuffer(raw[8 + n + a:8 + n + b], kinds[t['dtype']]).reshape(t['shape'])
assert set(got) == {'w', 'count', 'mask', 'half', 'none'}
assert np.array_equal(got['w'], np.arange(12, dtype='f4').reshape(3, 4) / 2)
assert got['count'].shape == () and got['count'] == -5
assert np.array_equal(got['mask'], np.array([1, 0, 1], 'u1'))
assert np.array_equal(got['half'], np.array([0x3f80, 0xc000], '<u2'))
assert got['none'].shape == (0, 7)
)";

TEST(Safetensors, AnIndependentReaderAgrees) {
  if (std::system("/usr/bin/python3 -c 'import numpy' > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "needs /usr/bin/python3 with numpy (apt-get install python3-numpy)";
  }
  const FastFolder folder;
  std::vector<float> w(12);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i) / 2;
  const std::vector<int64_t> count = {-5};
  const std::vector<uint8_t> mask = {1, 0, 1};
  const std::vector<uint16_t> half = {0x3f80, 0xc000};
  const std::vector<TensorView> tensors = {
      {"mask", DType::u8, {3}, std::as_bytes(std::span(mask))},
      {"w", DType::f32, {3, 4}, std::as_bytes(std::span(w))},
      {"none", DType::f32, {0, 7}, {}},
      {"half", DType::bf16, {2}, std::as_bytes(std::span(half))},
      {"count", DType::i64, {}, std::as_bytes(std::span(count))}};
  const fs::path file = folder.path() / "x.safetensors";
  write_safetensors(file, tensors, {{"made", "by a test"}});
  write_file_atomic(folder.path() / "read.py", kPython);
  const std::string command =
      "/usr/bin/python3 " + (folder.path() / "read.py").string() + " " + file.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

std::string with_header(const std::string& header, size_t data) {
  std::string text;
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(header.size() >> (8 * i)));
  return text + header + std::string(data, 'd');
}

TEST(Safetensors, TruthValuesOfOtherProgramsAreBytes) {
  const FastFolder folder;
  const fs::path path = folder.path() / "x.safetensors";
  write_file_atomic(path,
                    with_header(R"({"a":{"dtype":"BOOL","shape":[2,2],"data_offsets":[0,4]}})", 4));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensors().at(0).dtype, DType::u8);
  EXPECT_EQ(file.bytes(file.tensors().at(0)).size(), 4U);
}

TEST(Safetensors, HostileHeadersAreRefused) {
  const FastFolder folder;
  const fs::path path = folder.path() / "x.safetensors";
  const auto entry = [](const char* name, const char* shape, const char* offsets) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":{},"data_offsets":{}}})", name, shape,
                       offsets);
  };
  const auto file = [](const std::string& entries, size_t data) {
    return with_header("{" + entries + "}", data);
  };
  write_file_atomic(path, file(entry("a", "[4]", "[0,4]"), 4));
  EXPECT_EQ(SafetensorsFile(path).tensors().size(), 1U);  // the recipe itself is right

  const std::string huge_length = std::string(7, '\xff') + "\x7f{}";
  const std::vector<std::string> bad = {
      "",
      "1234567",
      huge_length,
      with_header("", 0),
      with_header("[]", 0),
      with_header("{", 0),
      with_header("{\"a\":1}", 0),
      with_header("{\"a\":[]}", 0),
      with_header("{\"__metadata__\":1}", 0),
      with_header("{\"__metadata__\":{\"a\":1}}", 0),
      with_header(std::string(1 << 20, '['), 0),
      with_header("{\"a\":" + std::string(1 << 20, '['), 0),
      file(entry("a", "[4]", "[0,4]"), 3),  // beyond the end
      file(entry("a", "[4]", "[0,4]"), 5),  // bytes of nobody
      file(entry("a", "[4]", "[1,5]"), 5),  // a gap
      file(entry("a", "[4]", "[4,0]"), 4),  // backwards
      file(entry("a", "[5]", "[0,4]"), 4),  // shape and offsets differ
      file(entry("a", "[-4]", "[0,4]"), 4),
      file(entry("a", "[4.0]", "[0,4]"), 4),
      file(entry("a", "[4]", "[0]"), 4),
      file(entry("a", "[4]", "[0,18446744073709551615]"), 4),
      file(entry("a", "[4294967296,4294967296,4294967296]", "[0,0]"), 0),
      file(entry("a", "[4611686018427387904]", "[0,4611686018427387904]"), 4),
      file(entry("a", "[4]", "[0,4]") + "," + entry("b", "[4]", "[2,6]"), 6),  // overlap
      file(entry("a", "[4]", "[0,4]") + "," + entry("a", "[4]", "[0,4]"), 4),  // a name twice
      file(R"("a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})", 4),
      file(R"("a":{"shape":[4],"data_offsets":[0,4]})", 4),
  };
  for (const std::string& text : bad) {
    write_file_atomic(path, text);
    try {
      const SafetensorsFile opened(path);
      ADD_FAILURE() << "accepted: " << text.substr(0, 200);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos);
      EXPECT_NE(e.code(), ErrorCode::internal);
    }
  }
}

TEST(Safetensors, RandomDamageNeverCrashes) {
  const FastFolder folder;
  const fs::path path = folder.path() / "x.safetensors";
  write_safetensors(path, views(state_of_step(1)), {{"a", "b"}});
  const std::string good = read_file(path);
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    for (uint32_t e = 0; e <= rng.below(4); ++e)
      bad[rng.below(600)] = static_cast<char>(rng.next());
    if (rng.below(4) == 0) bad.resize(rng.below(static_cast<uint32_t>(bad.size())));
    write_file_atomic(path, bad);
    try {
      size_t sum = 0;
      const SafetensorsFile file(path);
      for (const TensorInfo& t : file.tensors()) sum += file.bytes(t).size();
      EXPECT_LE(sum, bad.size());
    } catch (const Error& e) {
      EXPECT_NE(e.code(), ErrorCode::internal) << e.what();
    }
  }
}

}  // namespace
}  // namespace ductile::ckpt
