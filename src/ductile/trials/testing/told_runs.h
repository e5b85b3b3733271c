#pragma once

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/files.h"
#include "ductile/spec/job.h"
#include "ductile/trials/setup.h"

// Sessions whose trials do not train: what their runs would say is told.
namespace ductile::trials::testing {

// How the run of a learning rate of 1 ends in told_runs().
enum class Ends : unsigned char { diverged, done };

// A program in the place of `ductile` that leaves the events of a run behind, by the learning rate:
// `good`, and `other` of a rate of 1.
inline fs::path told_runs(const fs::path& folder, const std::string& good, const std::string& other,
                          Ends other_end = Ends::diverged) {
  const auto file = [&](const char* name, const std::string& text) {
    write_file_atomic(folder / name, text);
    return (folder / name).string();
  };
  const std::string ends = R"({"kind":"end","status":"done"})";
  const std::string lost = R"({"kind":"end","status":"failed","message":"the run diverged"})";
  const fs::path program = folder / "program";
  write_file_atomic(
      program,
      fmt::format("#!/bin/sh\nevents={}\n"
                  "for word; do case $word in *=1|*=1.0) events={};; esac; done\n"
                  "while [ \"$1\" != --out ] && [ \"$1\" != --resume ]; do shift; done\n"
                  "mkdir -p \"$2\"; touch \"$2/job.toml\"; cp $events \"$2/events.jsonl\"\n",
                  file("good", good + ends + "\n"),
                  file("bad", other + (other_end == Ends::done ? ends : lost) + "\n")));
  EXPECT_EQ(::chmod(program.c_str(), 0700), 0);
  return program;
}

inline std::string evaluation(double epoch, const std::string& figures) {
  return fmt::format("{{\"kind\":\"evaluation\",\"epoch\":{},{}}}\n", epoch, figures);
}

inline Tuning two_rates(const spec::JobOptions& job) {
  Tuning tuning = default_tuning(job);
  tuning.space = tune::Space({{.name = "optimizer.lr",
                               .kind = tune::Kind::choice,
                               .low = 0,
                               .high = 1,
                               .choices = {"0.1", "1"}}});
  tuning.setup.policy = "full";
  tuning.setup.searcher = "grid";
  tuning.setup.at_once = 1;
  return tuning;
}

inline std::string job_of_two_epochs() {
  spec::JobOptions job;
  job.train.epochs = 2;
  return OptionSet(job).to_toml();
}

}  // namespace ductile::trials::testing
