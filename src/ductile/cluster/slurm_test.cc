#include <algorithm>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"
#include "ductile/cluster/slurm_impl.h"
#include "ductile/cluster/slurm_pool_impl.h"
#include "ductile/spec/pool.h"

namespace ductile::cluster {
namespace {

using std::chrono::milliseconds;

using ductile::testing::code_of;

TEST(SlurmCommands, OnlyAJobsNumberIsAJobsNumber) {
  EXPECT_EQ(parse_sbatch("123\n"), "123");
  EXPECT_EQ(parse_sbatch("123;main\n"), "123");
  for (const char* wrong : {"", "\n", "123", "Submitted batch job 123\n", "123\n124\n", "12x\n",
                            "-1\n", "9999999999999999999999\n", "warning\n123\n", ";123\n"})
    EXPECT_EQ(code_of([&] { parse_sbatch(wrong); }), ErrorCode::data_loss) << wrong;
}

TEST(SlurmCommands, AListIsReadWholeOrNotAtAll) {
  const std::vector<std::string> names = {"a-1", "a-2"};
  EXPECT_TRUE(parse_squeue("", names).empty());
  const auto list =
      parse_squeue("7|RUNNING|main|1795402318|None|a-1\n8|PENDING|main|N/A|Resources|a-2\n", names);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0], (QueueEntry{"7", "RUNNING", "main", "None", "a-1", 1795402318}));
  EXPECT_EQ(list[1], (QueueEntry{"8", "PENDING", "main", "Resources", "a-2", 0}));
  for (const char* wrong :
       {"7|RUNNING|main|1795402318|None|a-1", "7|RUNNING|main|17954\n", "\n",
        "x|RUNNING|main|N/A|None|a-1\n", "7|running|main|N/A|None|a-1\n",
        "7|RUNNING|main|2026-11-23T02:41:43|None|a-1\n", "7|RUNNING|main|N/A|None|other\n",
        "slurm_load_jobs error: Unable to contact slurm controller\n"})
    EXPECT_EQ(code_of([&] { parse_squeue(wrong, names); }), ErrorCode::data_loss) << wrong;
}

TEST(SlurmCommands, AProgramEndsInTimeOrIsEnded) {
  const ProgramAnswer answer = run_program("/bin/sh", {"-c", "echo $WORD; echo no >&2; exit 3"},
                                           {{"WORD", "yes"}}, milliseconds(20000));
  EXPECT_EQ(answer.status, 3);
  EXPECT_EQ(answer.out, "yes\n");
  EXPECT_EQ(answer.error, "no\n");
  EXPECT_EQ(code_of([] { run_program("/bin/sleep", {"1000"}, {}, milliseconds(50)); }),
            ErrorCode::deadline);
  EXPECT_EQ(code_of([] {
              run_program("/bin/sh", {"-c", "yes"}, {}, milliseconds(60000));
            }),
            ErrorCode::data_loss);
  EXPECT_EQ(code_of([] { run_program("/nowhere/sbatch", {}, {}, milliseconds(1000)); }),
            ErrorCode::not_found);
}

// A pool, and a Slurm that does what the test says.
class Pool {
 public:
  explicit Pool(const std::string& options = "min = 0\nmax = 3\nidle = 10\n")
      : pool(spec::parse_pools("[[pool]]\nname = \"p\"\ndevices = 2\n" + options, "test.toml")) {}

  // Jobs could use so many devices, and hold all of these nodes; one that holds none waits.
  void follow(int64_t devices, const std::vector<bool>& held) {
    Demand demand{devices, {}, {}};
    for (const bool all : held) demand.nodes.push_back({all ? 2 : 0, {}, {}});
    demand.waits = devices > 0 && std::ranges::count(held, true) == 0;
    pool.follow(demand);
  }
  SlurmErrand turn(double wait = 3) {
    now += wait;
    SlurmErrand errand = pool.plan(now, now + ahead);
    for (const PilotKey& key : errand.submit) jobs[key] = "PENDING";
    for (const PilotKey& key : errand.cancel) jobs.erase(key);
    SlurmNews news;
    if (takes_changes) news.written_down = errand.write_down;
    news.listed = answers;
    if (!answers) news.trouble = "squeue: no answer";
    for (const PilotKey& key : errand.list) {
      news.queue[key];
      if (jobs.contains(key))
        news.queue[key].push_back({std::to_string(100 * key.node + key.generation), jobs[key],
                                   "main", "Resources", "", ends});
      if (jobs.contains(key) && jobs[key] == "RUNNING")
        news.claims[key] = {std::to_string(100 * key.node + key.generation), "n", "10.0.0.1", 1};
    }
    pool.learn(news, now);
    return errand;
  }
  void start_all() {
    for (auto& [key, state] : jobs) state = "RUNNING";
    turn();
  }

  SlurmPool pool;
  std::map<PilotKey, std::string> jobs;
  double now = 1000, ends = 0;
  double ahead = 1e9;  // the time of day, which may be set
  bool answers = true, takes_changes = true;
};

TEST(SlurmPool, GrowsWithDemandAndShrinksWhenNothingNeedsIt) {
  Pool slurm;
  EXPECT_TRUE(slurm.turn().submit.empty());
  slurm.follow(3, {false, false, false});  // two pilots of two devices
  EXPECT_EQ(slurm.turn().submit.size(), 2u);
  EXPECT_EQ(slurm.pool.trouble(0), "pilot 1 is pending in partition main: Resources");
  slurm.start_all();
  EXPECT_TRUE(slurm.pool.claim(0));
  EXPECT_TRUE(slurm.turn().submit.empty());
  slurm.follow(100, {true, true, false});
  EXPECT_EQ(slurm.turn().submit.size(), 1u);  // max = 3
  slurm.start_all();
  slurm.follow(2, {true, false, false});
  EXPECT_TRUE(slurm.turn().cancel.empty());  // idle = 10
  const SlurmErrand errand = slurm.turn(10);
  ASSERT_EQ(errand.cancel.size(), 2u);
  EXPECT_EQ(slurm.pool.leaving(0), "");
  EXPECT_NE(slurm.pool.leaving(2), "");
  slurm.turn();
  slurm.turn();
  EXPECT_EQ(slurm.pool.all().size(), 1u);
}

// Of a job that holds one pilot and could use three, but would be no faster.
TEST(SlurmPool, GivesBackWhatNobodyUsesAndTriesAgainLater) {
  Pool slurm("min = 0\nmax = 3\nidle = 100\n");
  slurm.follow(6, {false, false, false});
  EXPECT_EQ(slurm.turn().submit.size(), 3u);
  slurm.jobs.begin()->second = "RUNNING";
  slurm.turn();
  slurm.follow(6, {true, false, false});
  EXPECT_TRUE(slurm.turn(1000).cancel.empty()) << "the others have not come yet";
  slurm.start_all();
  EXPECT_TRUE(slurm.turn(90).cancel.empty());
  EXPECT_EQ(slurm.turn(20).cancel.size(), 2u);
  slurm.turn();
  slurm.turn();
  EXPECT_EQ(slurm.pool.all().size(), 1u);
  EXPECT_TRUE(slurm.turn(1500).submit.empty());
  Pool other = slurm;
  other.follow(8, {true, false, false});
  EXPECT_EQ(other.turn().submit.size(), 2u) << "another job";
  EXPECT_EQ(slurm.turn(500).submit.size(), 2u) << "later";
}

// Pilots that are always there were idle for long when the job began.
TEST(SlurmPool, AJobHasTimeToGrowOnPilotsThatWereIdleBefore) {
  Pool slurm("min = 3\nmax = 5\nidle = 60\n");
  slurm.turn();
  slurm.start_all();
  slurm.turn(5000);
  slurm.follow(10, {true, false, false});
  EXPECT_EQ(slurm.turn().submit.size(), 2u);
  slurm.start_all();
  EXPECT_TRUE(slurm.turn(50).cancel.empty());
  EXPECT_EQ(slurm.turn(50).cancel.size(), 2u) << "it stays on one";
  slurm.turn();
  slurm.turn();
  EXPECT_TRUE(slurm.turn(50).submit.empty());
  slurm.follow(10, {true, true, true});
  EXPECT_EQ(slurm.turn().submit.size(), 2u) << "it grows after all";
}

// A job waits for three pilots, and two are idle meanwhile.
TEST(SlurmPool, KeepsWhatAWaitingJobNeedsUntilAllHasCome) {
  Pool slurm("min = 0\nmax = 3\nidle = 10\n");
  Demand demand{6, {}, {{0, {}, {}}, {0, {}, {}}, {0, {}, {}}}};
  demand.waits = true;
  slurm.pool.follow(demand);
  slurm.turn();
  slurm.start_all();
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(slurm.turn(10).cancel.empty());
}

using Names = std::vector<std::string>;

// Of the pilots that it asks for now.
Names asked_for(SlurmPool pool, Demand demand) {
  pool.follow(std::move(demand));
  Names out;
  for (const PilotKey& key : pool.plan(0, 0).submit) out.push_back(pool.name(key.node));
  return out;
}

// First those with GPUs, where they fit; what they leave, and then the pools in turn, for the rest.
TEST(SlurmPool, JobsThatAskForGpusGetPilotsThatHaveThem) {
  const SlurmPool pool(
      spec::parse_pools("[[pool]]\nname = \"c\"\ndevices = 8\nmax = 2\n"
                        "[[pool]]\nname = \"g\"\ndevices = 4\ngpus = 4\nmax = 3\n",
                        "test.toml"));
  EXPECT_EQ(asked_for(pool, {2, {}, {}}), Names{"c-1"});
  EXPECT_EQ(asked_for(pool, {0, {{1, 1}}, {}}), Names{"g-1"}) << "a pool without GPUs comes first";
  EXPECT_EQ(asked_for(pool, {0, {{1, 1}, {1, 3}}, {}}), Names{"g-1"}) << "both are on one";
  EXPECT_EQ(asked_for(pool, {0, {{1, 2}, {1, 3}}, {}}), (Names{"g-1", "g-2"}));
  EXPECT_EQ(asked_for(pool, {0, {{3, 1}, {3, 1}}, {}}), (Names{"g-1", "g-2"})) << "their devices";
  EXPECT_EQ(asked_for(pool, {3, {{1, 4}}, {}}), Names{"g-1"}) << "the rest is on it, too";
  EXPECT_EQ(asked_for(pool, {5, {{1, 4}}, {}}), (Names{"c-1", "g-1"}));
  EXPECT_EQ(asked_for(pool, {0, {{1, 4}, {1, 4}, {1, 4}, {1, 4}}, {}}),
            (Names{"g-1", "g-2", "g-3"}));
  EXPECT_TRUE(pool.may_have({8, 0}));
  EXPECT_TRUE(pool.may_have({4, 4}));
  EXPECT_FALSE(pool.may_have({1, 5}));
  EXPECT_FALSE(pool.may_have({5, 1})) << "it is the other pool that has so many devices";
}

// Nodes of the service's own beside a pool: what is asked of Slurm is what they cannot serve.
TEST(OwnNodes, ServeWhatTheyHaveRoomForAndThePoolsTheRest) {
  const std::vector<int64_t> own = {4, 4};
  const auto left = [&](int64_t devices, std::vector<Demand::Node> nodes) {
    nodes.resize(own.size() + 1);
    const Demand out = beyond_own_nodes({devices, {}, std::move(nodes)}, own);
    EXPECT_EQ(out.nodes.size(), 1u) << "those of the pools";
    return out.devices;
  };
  EXPECT_EQ(left(0, {}), 0);
  EXPECT_EQ(left(8, {}), 0);
  EXPECT_EQ(left(11, {}), 3);
  EXPECT_EQ(left(11, {{4, {}, {}}, {2, {}, {}}}), 3) << "who holds them is in the demand, too";
  EXPECT_EQ(left(8, {{0, {}, {}, false}}), 4) << "one is drained";
  EXPECT_EQ(beyond_own_nodes({8, {}, {{2, {2, 1}, 2}, {}}}, {0, 4}).devices, 4)
      << "one is in another region";
  EXPECT_EQ(left(6, {{3, {3, 1}, 2}}), 1) << "a job with a GPU has three of them";
}

TEST(OwnNodes, AJobThatNeedsOneNodeIsServedThereOnlyWhereItFits) {
  const std::vector<int64_t> own = {4, 4};
  const auto left = [&](std::vector<int64_t> jobs, int64_t devices, int64_t held) {
    Demand demand{devices, {}, {{held, {}, {}}, {held, {}, {}}}};
    demand.on_one_node = std::move(jobs);
    return beyond_own_nodes(std::move(demand), own).devices;
  };
  EXPECT_EQ(left({4, 4}, 8, 0), 0);
  EXPECT_EQ(left({8}, 8, 0), 8) << "no node has as many";
  EXPECT_EQ(left({2}, 8, 3), 2) << "one is free of each";
  EXPECT_EQ(left({4, 4, 4}, 12, 0), 4);
}

TEST(OwnNodes, JobsWithGpusGoWhereTheseAre) {
  const std::vector<int64_t> own = {4};
  const auto left = [&](std::vector<Demand::Whole> jobs, int64_t devices) {
    return beyond_own_nodes({devices, std::move(jobs), {{1, {1, 1}, 4}}}, own);
  };
  EXPECT_TRUE(left({{1, 3}}, 0).on_gpus.empty());
  EXPECT_EQ(left({{1, 4}}, 0).on_gpus.size(), 1u) << "one of four is another job's";
  EXPECT_EQ(left({{1, 2}, {1, 2}}, 0).on_gpus.size(), 1u);
  EXPECT_EQ(left({{2, 3}}, 3).devices, 2) << "one of four devices is left for the others";
  EXPECT_EQ(beyond_own_nodes({0, {{1, 1}}, {{0, {}, {}}}}, own).on_gpus.size(), 1u)
      << "a node that has not said what it has";
}

// Pilots that have too few devices for it are of no use to it, however many there are.
TEST(SlurmPool, AJobThatNeedsOneNodeGetsAPilotThatIsLargeEnough) {
  const SlurmPool pool(
      spec::parse_pools("[[pool]]\nname = \"s\"\ndevices = 2\nmax = 9\n"
                        "[[pool]]\nname = \"l\"\ndevices = 8\n",
                        "test.toml"));
  const auto asked = [&](int64_t devices, std::vector<int64_t> jobs) {
    return asked_for(pool, {devices, {}, {}, std::move(jobs)});
  };
  EXPECT_EQ(asked(4, {4}), Names{"l-1"});
  EXPECT_EQ(asked(8, {4, 2}), Names{"l-1"}) << "what it leaves serves others";
  EXPECT_EQ(asked(9, {2, 4, 2}), (Names{"s-1", "l-1"}));
  EXPECT_EQ(asked(2, {1, 1}), Names{"s-1"});
  EXPECT_EQ(asked(16, {16}), Names{}) << "no pilot will ever have as many; an own node may";
  EXPECT_EQ(asked(19, {16}), (Names{"s-1", "s-2"})) << "the rest is of jobs that may be anywhere";
}

TEST(SlurmPool, WhoHoldsAPilotIsNotInTheWayOfTheNextJobWithGpus) {
  Pool slurm("gpus = 2\nmax = 3\n");
  slurm.pool.follow({0, {{1, 1}}, {}});
  EXPECT_EQ(slurm.turn().submit.size(), 1u);
  slurm.start_all();
  Demand demand{1, {{2, 2}}, {}};  // a job without GPUs has a device of it
  demand.nodes = {{1, {}, 2}};
  slurm.pool.follow(demand);
  EXPECT_EQ(slurm.turn().submit.size(), 1u);
  EXPECT_TRUE(slurm.turn().submit.empty()) << "one is enough";
  demand.on_gpus = {{1, 2}};
  slurm.pool.follow(demand);
  EXPECT_EQ(slurm.turn().cancel.size(), 1u) << "the first has room for it";
}

TEST(SlurmPool, AnOptionOfSbatchMayAskForGpusInstead) {
  const std::string one =
      "[[pool]]\nname = \"g\"\nmax = 4\noptions = [\"--gres=gpu:a100:2\"]\ndevices = 4\n";
  SlurmPool pool(spec::parse_pools(one, "test.toml"));
  EXPECT_TRUE(pool.may_have({1, 8})) << "nobody here knows how many";
  EXPECT_EQ(asked_for(pool, {0, {{1, 8}, {1, 8}}, {}}), Names{"g-1"});
  const Demand::Node told{0, {}, 2};
  EXPECT_EQ(asked_for(pool, {0, {{1, 8}}, {told}}), Names{}) << "one has said that it has two";
  EXPECT_EQ(asked_for(pool, {0, {{1, 2}, {1, 2}}, {told}}), (Names{"g-1", "g-2"}));
  EXPECT_EQ(code_of([&] { spec::parse_pools(one + "gpus = 2\n", "test.toml"); }),
            ErrorCode::invalid_argument);
  for (const char* option : {"--gres=lustre:1", "--gres-flags=enforce-binding", "--exclusive"})
    spec::parse_pools(
        std::string("[[pool]]\nname = \"g\"\ngpus = 2\noptions = [\"") + option + "\"]\n",
        "test.toml");
}

// Where a partition gives GPUs without being asked, devices alone count.
TEST(SlurmPool, PoolsThatSayNothingOfGpusMayHaveThem) {
  const SlurmPool pool(
      spec::parse_pools("[[pool]]\nname = \"p\"\ndevices = 2\nmax = 3\n", "test.toml"));
  EXPECT_TRUE(pool.may_have({1, 8}));
  EXPECT_EQ(asked_for(pool, {0, {{2, 8}, {2, 8}}, {}}), (Names{"p-1", "p-2"}));
}

TEST(SlurmPool, WhatSlurmDoesNotAnswerIsUnknown) {
  Pool slurm;
  slurm.follow(2, {false, false, false});
  slurm.turn();
  slurm.start_all();
  slurm.follow(2, {true, false, false});
  slurm.answers = false;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(slurm.turn().submit.empty());
  EXPECT_TRUE(slurm.pool.claim(0));
  slurm.answers = true;
  slurm.jobs.clear();  // one list may miss it
  slurm.turn();
  EXPECT_TRUE(slurm.pool.claim(0));
  slurm.turn();
  EXPECT_FALSE(slurm.pool.claim(0));
  const SlurmErrand errand = slurm.turn();
  ASSERT_EQ(errand.submit.size(), 1u);
  EXPECT_EQ(errand.submit[0].generation, 2u);  // never the same ticket again
}

// A slurmctld that is killed forgets a start that it had not saved, and the pilot with it.
TEST(SlurmPool, SlurmWritesDownEachPilotThatHasBegunAndIsAskedUntilItDoes) {
  Pool slurm;
  slurm.follow(4, {false, false, false});
  EXPECT_TRUE(slurm.turn().write_down.empty());
  EXPECT_TRUE(slurm.turn().write_down.empty());  // pending: sbatch saved it
  slurm.takes_changes = false;
  slurm.start_all();
  const std::vector<PilotKey> both = {{0, 1}, {1, 1}};
  EXPECT_EQ(slurm.turn().write_down, both);
  EXPECT_TRUE(slurm.turn(1).write_down.empty());  // not at every turn
  slurm.takes_changes = true;
  EXPECT_EQ(slurm.turn(5).write_down, both);
  EXPECT_TRUE(slurm.turn(100).write_down.empty());
  slurm.jobs.erase({0, 1});
  slurm.turn();
  slurm.turn();
  slurm.turn();  // the next pilot of this node
  slurm.start_all();
  EXPECT_EQ(slurm.turn().write_down, (std::vector<PilotKey>{{0, 2}}));
}

TEST(SlurmPool, JobsLeaveBeforeTheLimitAndThePilotIsReplaced) {
  Pool slurm("max = 1\nnotice = 60\n");
  slurm.follow(2, {false});
  slurm.turn();
  slurm.ends = slurm.now + slurm.ahead + 100;
  slurm.start_all();
  slurm.follow(2, {true});
  slurm.turn();
  EXPECT_EQ(slurm.pool.leaving(0), "");
  slurm.turn(60);
  EXPECT_NE(slurm.pool.leaving(0), "");
  EXPECT_TRUE(slurm.turn().cancel.empty());  // the job is being moved
  slurm.follow(2, {false});
  EXPECT_EQ(slurm.turn().cancel.size(), 1u);
  slurm.turn();
  slurm.ends = 0;
  EXPECT_EQ(slurm.turn().submit.size() + slurm.turn().submit.size(), 1u);
  EXPECT_EQ(slurm.pool.leaving(0), "");
}

TEST(SlurmPool, AClockThatIsSetBackStopsNothing) {
  Pool slurm("max = 1\nnotice = 60\n");
  slurm.follow(2, {false});
  slurm.turn();
  slurm.start_all();
  slurm.follow(2, {true});
  EXPECT_FALSE(slurm.turn().list.empty());
  slurm.ahead -= 86400;
  EXPECT_FALSE(slurm.turn().list.empty());
  slurm.ends = slurm.now + slurm.ahead + 30;  // Slurm's own clock was set, too
  slurm.turn();
  slurm.turn();
  EXPECT_NE(slurm.pool.leaving(0), "");
  slurm.follow(2, {false});
  EXPECT_EQ(slurm.turn().cancel.size(), 1u);
  slurm.jobs[{0, 1}] = "RUNNING";  // Slurm did not hear of that
  slurm.ahead -= 86400;
  EXPECT_EQ(slurm.turn(5).cancel.size(), 1u);
  slurm.turn();
  slurm.turn();
  EXPECT_EQ(slurm.pool.generation(0), 2u);
  for (auto& [key, state] : slurm.jobs) state = "FAILED";
  slurm.turn();
  slurm.ahead -= 86400;
  EXPECT_EQ(slurm.turn(10).submit.size() + slurm.turn(10).submit.size(), 1u);
}

TEST(SlurmPool, PilotsThatNeverComeAreNotAskedForAgainAndAgain) {
  Pool slurm("max = 1\n");
  slurm.follow(2, {false});
  int submitted = 0;
  for (int i = 0; i < 200; ++i) {
    submitted += static_cast<int>(slurm.turn().submit.size());
    for (auto& [key, state] : slurm.jobs) state = "FAILED";
  }
  EXPECT_LE(submitted, 9);  // 5, 10, 20 ... 300 s
  EXPECT_GE(submitted, 5);
  EXPECT_NE(slurm.pool.trouble(0).find("ended before it came (FAILED)"), std::string::npos)
      << slurm.pool.trouble(0);
}

TEST(SlurmPool, WhatAnEarlierServiceLeftIsTakenOver) {
  Pool slurm("max = 2\n");
  slurm.pool.take_over(1, 7, slurm.now);
  slurm.jobs[{1, 7}] = "RUNNING";
  slurm.follow(2, {false, false});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(slurm.turn().submit.empty());
  EXPECT_TRUE(slurm.pool.claim(1));
  EXPECT_EQ(slurm.pool.generation(1), 7u);
}

}  // namespace
}  // namespace ductile::cluster
