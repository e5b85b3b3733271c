// The records of a run whose workers change.
#include "ductile/train/recorder.h"

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/run/folder.h"
#include "ductile/train/testing/watched_run.h"

namespace ductile::train {
namespace {

TEST(Recorder, TheSpeedIsOfTheSamplesSinceTheWorkersLastChanged) {
  const TempFolder folder;
  const run::RunFolder made = run::RunFolder::create(folder.path(), "speed", "");
  testing::WatchedRun run(testing::selection_job("infobatch"));
  Recorder recorder(made, run.replica, false, -1, 1, [] { return std::nullopt; });
  recorder.started(2);
  run.step();
  EXPECT_TRUE(recorder.summary("running").contains("samples_per_second"));
  recorder.started(1);
  EXPECT_FALSE(recorder.summary("running").contains("samples_per_second"))
      << "no sample since: samples of before, over the time since, are no speed";
  run.step();
  EXPECT_TRUE(recorder.summary("running").contains("samples_per_second"));
}

}  // namespace
}  // namespace ductile::train
