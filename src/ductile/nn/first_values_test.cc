#include "ductile/nn/first_values.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <string_view>

#include <gtest/gtest.h>
#include <unistd.h>

#include "ductile/nn/model.h"

namespace ductile::nn {
namespace {

// The process's own memory that is resident, in bytes.
int64_t resident_bytes() {
  int64_t total = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> total >> resident >> shared;
  return (resident - shared) * ::sysconf(_SC_PAGESIZE);
}

// Of 80 MB, 64 of them in fc2.
ModelArgs large_mlp() {
  ModelArgs args;
  args.options.name = "mlp";
  args.options.hidden = {4096, 4096};
  args.info = {1, 28, 28, 10, 0};
  return args;
}

TEST(FirstValues, AModelThatKeepsNoneTakesNoMemoryForThem) {
  constexpr int64_t kMuch = 32 << 20;
  make_model(large_mlp());  // what libtorch makes once
  const int64_t before = resident_bytes();
  std::unique_ptr<Model> model;
  {
    const FirstValues none;
    model = make_model(large_mlp());
  }
  EXPECT_LT(resident_bytes(), before + kMuch);
  const std::unique_ptr<Model> whole = make_model(large_mlp());
  EXPECT_GT(resident_bytes(), before + kMuch);
  EXPECT_FALSE(whole->parameters().front().blank);
}

TEST(FirstValues, TheInnermostOfThisThreadCounts) {
  const auto wants = [](const char* name) {
    const FirstValues* const present = FirstValues::present();
    return present == nullptr || present->wants(name);
  };
  EXPECT_TRUE(wants("a"));
  {
    const FirstValues outer([](std::string_view name) { return name == "a"; });
    {
      const FirstValues none;
      EXPECT_FALSE(wants("a"));
    }
    EXPECT_TRUE(wants("a"));
    EXPECT_FALSE(wants("b"));
  }
  EXPECT_TRUE(wants("b"));
}

}  // namespace
}  // namespace ductile::nn
