#include "ductile/spec/changed_options.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/json_value.h"
#include "ductile/spec/job.h"

namespace ductile::spec {
namespace {

using Strings = std::vector<std::string>;

// What differs once these are set in a job with a hidden layer of 64 and 2 threads.
Strings changed_by(const Strings& assignments, bool thread_invariant = true) {
  JobOptions job;
  job.model.hidden = {64};
  job.train.threads = 2;
  JobOptions other = job;
  OptionSet options(other);
  for (const std::string& assignment : assignments) options.set(assignment);
  return changed_options(OptionSet(job).to_json(), options.to_json(), thread_invariant);
}

TEST(ChangedOptions, AreThoseThatShapeTheResult) {
  EXPECT_EQ(changed_by({}), Strings());
  EXPECT_EQ(changed_by({"optimizer.lr=0.3", "train.epochs=7", "data.train_limit=64"}),
            (Strings{"data.train_limit", "optimizer.lr", "train.epochs"}));
  EXPECT_EQ(changed_by({"name=other", "runs=elsewhere", "loader.threads=3", "checkpoint.keep=7",
                        "train.log_every=3", "train.shard_optimizer=true"}),
            Strings());
  // A JPEG that is cached is decoded whole, and another one only as far as it is needed.
  EXPECT_EQ(changed_by({"loader.prefetch=2", "loader.cache_mb=0"}), Strings{"loader.cache_mb"});
}

TEST(ChangedOptions, AListIsNamedOnceWhateverOfItDiffers) {
  for (const char* hidden : {"[32]", "[64, 64, 64]", "[32, 16]"})
    EXPECT_EQ(changed_by({std::string("model.hidden=") + hidden}), Strings{"model.hidden"})
        << hidden;
}

TEST(ChangedOptions, TheNumberOfThreadsIsFreeWhereItChangesNoBit) {
  EXPECT_EQ(changed_by({"train.threads=3"}, true), Strings());
  EXPECT_EQ(changed_by({"train.threads=3"}, false), Strings{"train.threads"});
}

}  // namespace
}  // namespace ductile::spec
