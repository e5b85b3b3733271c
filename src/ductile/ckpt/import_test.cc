#include "ductile/ckpt/import.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/safetensors.h"

namespace ductile::ckpt {
namespace {

template <class T>
TensorView view(const std::string& name, DType dtype, const std::vector<T>& values) {
  return {name, dtype, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values))};
}

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* info = file.find(name);
  EXPECT_NE(info, nullptr) << name;
  EXPECT_EQ(info->dtype, DType::f32);
  std::vector<float> out(static_cast<size_t>(num_elements(info->shape)));
  std::memcpy(out.data(), file.bytes(*info).data(), out.size() * sizeof(float));
  return out;
}

class Import : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::vector<TensorView>& tensors) {
    write_safetensors(folder_.path() / name, tensors);
    return folder_.path() / name;
  }
  Imported import(const std::vector<fs::path>& files, const std::string& prefix = "") {
    return import_weights(files, prefix, out_);
  }

  TempFolder folder_;
  fs::path out_ = folder_.path() / "out.safetensors";
};

TEST_F(Import, FloatingPointTypesBecomeFp32) {
  const std::vector<uint16_t> halves = {0x3c00, 0xc100, 0x0001, 0x8000, 0x7c00, 0x7bff, 0x7e00};
  const std::vector<uint16_t> brains = {0x3f80, 0xc040};
  const std::vector<double> doubles = {0.1, -2};
  const std::vector<int64_t> counts = {7};
  const Imported result = import(
      {write("a", {view("half", DType::f16, halves), view("brain", DType::bf16, brains)}),
       write("b", {view("double", DType::f64, doubles), view("count", DType::i64, counts)})});
  EXPECT_EQ(result.tensors, 4);
  EXPECT_EQ(result.converted, 3);
  const SafetensorsFile file(out_);
  const std::vector<float> half = floats(file, "half");
  EXPECT_EQ(half[0], 1);
  EXPECT_EQ(half[1], -2.5);
  EXPECT_EQ(half[2], std::ldexp(1.0F, -24));
  EXPECT_TRUE(half[3] == 0 && std::signbit(half[3]));
  EXPECT_EQ(half[4], std::numeric_limits<float>::infinity());
  EXPECT_EQ(half[5], 65504);
  EXPECT_TRUE(std::isnan(half[6]));
  EXPECT_EQ(floats(file, "brain"), (std::vector<float>{1, -3}));
  EXPECT_EQ(floats(file, "double"), (std::vector<float>{0.1F, -2}));
  EXPECT_EQ(file.find("count")->dtype, DType::i64);
  std::vector<TensorView> views;
  for (const TensorInfo& t : file.tensors())
    views.push_back({t.name, t.dtype, t.shape, file.bytes(t)});
  EXPECT_EQ(file.metadata().at("ductile.digest"), tensors_digest(views));
}

TEST_F(Import, PrefixIsTakenOffAndOthersAreLeftOut) {
  const std::vector<float> values = {1, 2};
  const fs::path file =
      write("a", {view("model.fc.weight", DType::f32, values), view("step", DType::f32, values)});
  const Imported result = import({file}, "model.");
  EXPECT_EQ(result.tensors, 1);
  EXPECT_EQ(result.left_out, 1);
  EXPECT_EQ(floats(SafetensorsFile(out_), "fc.weight"), values);
}

TEST_F(Import, BadFilesAreRefusedByNameAndNothingIsWritten) {
  const std::vector<float> values = {1};
  const std::vector<double> huge = {1e300};
  const fs::path one = write("one", {view("w", DType::f32, values)});
  const fs::path two = write("two", {view("w", DType::f32, values)});
  const fs::path large = write("large", {view("w", DType::f64, huge)});
  const fs::path torn = folder_.path() / "torn";
  write_file_atomic(torn, read_file(one).substr(0, 20));
  const auto refusal = [&](const std::vector<fs::path>& files, const std::string& prefix,
                           ErrorCode code) -> std::string {
    try {
      import(files, prefix);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal({one, two}, "", ErrorCode::invalid_argument).find("'w'"), std::string::npos);
  EXPECT_NE(refusal({large}, "", ErrorCode::invalid_argument).find("1e+300"), std::string::npos);
  EXPECT_NE(refusal({one}, "model.", ErrorCode::invalid_argument).find("'model.'"),
            std::string::npos);
  EXPECT_NE(refusal({torn}, "", ErrorCode::data_loss).find("torn"), std::string::npos);
  EXPECT_FALSE(fs::exists(out_));
}

}  // namespace
}  // namespace ductile::ckpt
