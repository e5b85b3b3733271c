#include "ductile/ckpt/checkpoint.h"

#include <vector>

#include <gtest/gtest.h>

#include "ductile/ckpt/writer.h"

namespace ductile::ckpt {
namespace {

TEST(Checkpoint, comes_back_as_saved) {
  const TempFolder folder("ckpt");
  std::vector<float> w(1000, 2.5F);
  {
    CheckpointWriter writer(folder.path());
    writer.save(7, {{"epoch", 3}},
                std::vector<TensorView>{{"w", DType::f32, {10, 100}, std::as_bytes(std::span(w))}});
    writer.wait();
  }
  const LatestResult latest = open_latest(folder.path());
  ASSERT_TRUE(latest.checkpoint);
  EXPECT_EQ(latest.checkpoint->step(), 7);
  EXPECT_EQ(latest.checkpoint->state()["epoch"], 3);
  std::vector<float> back(1000);
  latest.checkpoint->read("w", std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, w);
}

}  // namespace
}  // namespace ductile::ckpt
