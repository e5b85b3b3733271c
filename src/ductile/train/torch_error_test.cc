#include "ductile/train/torch_error.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

namespace ductile::train {
namespace {

Error caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& e) {
    return error_of(e);
  }
  ADD_FAILURE() << "libtorch threw nothing";
  return {ErrorCode::internal, ""};
}

// No memory is a fault of the host, and anything else one of the job; neither comes with a page of
// C++ frames.
TEST(TorchError, NoMemoryIsToldApartFromAllElse) {
  const Error memory = caught([] { at::empty({int64_t{1} << 55}); });
  EXPECT_EQ(memory.code(), ErrorCode::unavailable) << memory.what();
  const Error shapes = caught([] { at::mm(at::zeros({2, 3}), at::zeros({2, 3})); });
  EXPECT_EQ(shapes.code(), ErrorCode::internal) << shapes.what();
  for (const Error& e : {memory, shapes}) {
    EXPECT_FALSE(e.message().empty());
    EXPECT_EQ(e.message().find("frame #"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ductile::train
