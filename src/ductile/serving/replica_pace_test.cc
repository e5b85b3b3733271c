#include "ductile/serving/replica_pace.h"

#include <gtest/gtest.h>

namespace ductile::serving {
namespace {

TEST(ReplicaPace, OneThatIsLostHoldsUpNobodyElse) {
  net::Loop loop;
  int again = 0;
  ReplicaPace pace(loop, [&] {
    ++again;
    loop.stop();
  });
  EXPECT_EQ(pace.to_start(2, 0), 2);
  pace.lost();
  EXPECT_EQ(pace.to_start(2, 1), 0) << "its place waits";
  EXPECT_EQ(pace.to_start(5, 1), 3) << "others need not";
  EXPECT_EQ(pace.to_start(1, 1), 0);
  EXPECT_EQ(pace.to_start(0, 1), 0);
  pace.lost();
  EXPECT_EQ(pace.to_start(5, 0), 3);
  loop.run();
  EXPECT_EQ(again, 1) << "for both";
  EXPECT_EQ(pace.to_start(5, 0), 5);
}

TEST(ReplicaPace, AfterTheEndNothingIsReplaced) {
  net::Loop loop;
  ReplicaPace pace(loop, [] { ADD_FAILURE(); });
  pace.lost();
  pace.end();
  EXPECT_EQ(pace.to_start(1, 0), 0);
}

}  // namespace
}  // namespace ductile::serving
