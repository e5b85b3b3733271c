// What is said of a worker that ends without an answer.
#include "ductile/cli/worker_process.h"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/testing.h"
#include "ductile/cli/held_signals.h"

namespace ductile::cli {
namespace {

struct Worker {
  TempFolder folder;
  fs::path program = folder.path() / "a worker";

  explicit Worker(const std::string& script) {
    write_file_atomic(program, "#!/bin/sh\n" + script);
    fs::permissions(program, fs::perms::owner_all);
  }
  std::string failure() const {
    return testing::text_of(
        [&] {
          (void)ask_worker({.program = program, .arguments = {"--options", R"({"a": "b c"})"}});
        },
        ErrorCode::unavailable);
  }
};

TEST(EndRequests, WhatComesWithinASecondOfTheFirstIsTheSameRequest) {
  const EndRequests::Clock::time_point start = EndRequests::Clock::now();
  EndRequests requests;
  EXPECT_FALSE(requests.any());
  EXPECT_FALSE(requests.repeats(start));
  EXPECT_TRUE(requests.any());
  EXPECT_FALSE(requests.repeats(start + std::chrono::milliseconds(1)));
  EXPECT_FALSE(requests.repeats(start + std::chrono::milliseconds(900)));
  EXPECT_TRUE(requests.repeats(start + std::chrono::milliseconds(1100)));
}

TEST(WorkerProcess, SaysLastWhatTheWorkerPrintedLast) {
  const Worker worker("seq 100 >&2; printf 'No module named \\033[1mtorch\\n' >&2; exit 7\n");
  const std::string text = worker.failure();
  EXPECT_NE(text.find("exit code 7"), std::string::npos) << text;
  EXPECT_NE(text.find("\n100\nNo module named [1mtorch"), std::string::npos)
      << "nothing that changes a terminal: " << text;
  EXPECT_EQ(text.find("\n90\n"), std::string::npos) << text;
}

TEST(WorkerProcess, NamesItsCommandAsAShellTakesIt) {
  const Worker worker("kill -KILL $$\n");
  const std::string text = worker.failure();
  EXPECT_TRUE(text.starts_with("'" + worker.program.string() + "' --options '{\"a\": \"b c\"}'"))
      << text;
  EXPECT_NE(text.find("signal 9"), std::string::npos) << text;
  EXPECT_NE(text.find("nor any word of why"), std::string::npos) << text;
}

}  // namespace
}  // namespace ductile::cli
