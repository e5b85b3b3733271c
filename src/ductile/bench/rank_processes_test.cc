#include "ductile/bench/rank_processes.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "ductile/base/json_value.h"

namespace ductile::bench {
namespace {

using Json = nlohmann::ordered_json;

// A rank played by a shell: the script is the launcher's last word, the program its $0.
void start_shell(RankProcesses& ranks, const std::string& script, std::string where = "") {
  ranks.start("/bin/true", {"sh", "-c", script}, std::move(where));
}

// The error of a run of such ranks.
Error error_of(const std::vector<std::string>& scripts) {
  RankProcesses ranks;
  for (size_t r = 0; r < scripts.size(); ++r)
    start_shell(ranks, scripts[r], " on host" + std::to_string(r));
  try {
    ranks.listen([](size_t, const Json&) { return true; });
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "no error");
}

TEST(RankProcesses, SayWhatTheyWereTold) {
  RankProcesses ranks;
  for (int r = 0; r < 3; ++r) start_shell(ranks, "read -r line; echo \"$line\"");
  for (size_t r = 0; r < ranks.size(); ++r) ranks.tell(r, {{"rank", r}, {"text", "a b"}});
  std::vector<int> heard(3);
  ranks.listen([&](size_t r, const Json& line) {
    EXPECT_EQ(line.at("rank"), r);
    EXPECT_EQ(line.at("text"), "a b");
    ++heard[r];
    return true;
  });
  EXPECT_EQ(heard, std::vector<int>({1, 1, 1}));
}

TEST(RankProcesses, AreHeardUntilTheListenerHasEnough) {
  RankProcesses ranks;
  start_shell(ranks, "echo '{\"n\": 1}'; exec sleep 1000");
  int heard = 0;
  ranks.listen([&](size_t, const Json&) { return ++heard < 1; });
  EXPECT_EQ(heard, 1);
}

TEST(RankProcesses, ReportAnErrorWithItsCodeAndPlace) {
  const Error error =
      error_of({R"(echo '{"error": "port 7 is taken", "code": "conflict"}'; exit 1)"});
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_STREQ(error.what(), "rank 0 on host0: port 7 is taken");
}

TEST(RankProcesses, ThatDieAreNamedWithTheSignal) {
  const Error error = error_of({"read -r line", "kill -9 $$"});
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_STREQ(error.what(), "rank 1 on host1: killed by signal 9");
}

TEST(RankProcesses, ThatEndWithoutAWordAreNamedWithTheExitCode) {
  EXPECT_STREQ(error_of({"exit 7"}).what(), "rank 0 on host0: ended with exit code 7");
}

// Rank 0 hears first that it lost rank 1, and only then rank 1 says why.
TEST(RankProcesses, ACauseComesBeforeItsEffects) {
  const Error error = error_of(
      {R"(echo '{"error": "rank 1 is lost", "code": "peer_lost"}'; exit 1)",
       R"(sleep 0.2; echo '{"error": "the disk is full", "code": "unavailable"}'; exit 1)"});
  EXPECT_STREQ(error.what(), "rank 1 on host1: the disk is full");
}

TEST(RankProcesses, NoneIsLeftEvenIfItIgnoresItsEnd) {
  std::vector<pid_t> pids;
  {
    RankProcesses ranks;
    start_shell(ranks, "trap '' TERM; echo \"{\\\"pid\\\": $$}\"; while :; do sleep 0.05; done");
    start_shell(ranks, "echo \"{\\\"pid\\\": $$}\"; kill -STOP $$");
    ranks.listen([&](size_t, const Json& line) {
      pids.push_back(line.at("pid").get<pid_t>());
      return pids.size() < 2;
    });
  }
  ASSERT_EQ(pids.size(), 2u);
  for (const pid_t pid : pids) EXPECT_NE(kill(pid, 0), 0) << pid;
}

}  // namespace
}  // namespace ductile::bench
