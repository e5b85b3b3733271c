// Workload and scenario files: what they hold, and what is said of those that are wrong.
#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/sim/scenario.h"
#include "ductile/sim/workload.h"

namespace ductile::sim {
namespace {

const Catalog& catalog() {
  static const Catalog made = built_in_catalog();
  return made;
}

std::string error_of(const std::string& text) {
  try {
    parse_workload(text, "w.csv", catalog());
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.message();
  }
  return "no error";
}

TEST(Workload, ReadsThePublishedFormat) {
  const Workload w = parse_workload(
      "name,time,application,num_replicas,batch_size\r\nb,20,bert,4,48\r\na,10,cifar10,2,256\r\n",
      "dir/w.csv", catalog());
  ASSERT_EQ(w.jobs.size(), 2u);
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.jobs[0].name, "a");  // in order of time
  EXPECT_EQ(w.jobs[1].devices, 4);
  EXPECT_EQ(w.jobs[1].batch, 48);
}

TEST(Workload, ReadsItsOwnFormatBack) {
  SyntheticOptions options;
  options.jobs = 40;
  options.tiers = true;
  options.teams = 3;
  const Workload made = synthetic_workload(options, catalog());
  const Workload read = parse_workload(to_csv(made), "x.csv", catalog());
  ASSERT_EQ(read.jobs.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(read.jobs[i].name, made.jobs[i].name);
    EXPECT_EQ(read.jobs[i].time, made.jobs[i].time);
    EXPECT_EQ(read.jobs[i].tier, made.jobs[i].tier);
    EXPECT_EQ(read.jobs[i].team, made.jobs[i].team);
    EXPECT_EQ(read.jobs[i].work, made.jobs[i].work);
  }
}

TEST(Workload, ReadsPhilly) {
  const Workload w = parse_workload(
      "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,600,1,600,aa\n"
      "2017-10-09 06:01:55,72000,8,576000,bb\n2017-10-09 06:01:55,0,8,0,bb\n",
      "philly.csv", catalog());
  ASSERT_EQ(w.jobs.size(), 2u);
  EXPECT_EQ(w.jobs[0].time, 0);
  EXPECT_EQ(w.jobs[1].time, 3600);
  EXPECT_EQ(w.jobs[0].devices, 8);
  EXPECT_NE(w.jobs[0].team, w.jobs[1].team);
  EXPECT_EQ(w.jobs[0].application, "imagenet");  // 160 GPU hours
  EXPECT_EQ(w.jobs[1].application, "cifar10");
}

TEST(Workload, ErrorsNameFileLineAndColumn) {
  const std::string head = "name,time,application,num_replicas,batch_size\n";
  EXPECT_EQ(error_of(head + "a,1,bert,4,48\nb,soon,bert,4,48\n"),
            "w.csv:3: column 'time': 'soon' is not a number");
  EXPECT_NE(error_of(head + "a,-1,bert,4,48\n").find("w.csv:2: column 'time'"), std::string::npos);
  EXPECT_NE(error_of(head + "a,1,bert,0,48\n").find("column 'num_replicas'"), std::string::npos);
  EXPECT_NE(error_of(head + "a,1,bert,1.5,48\n").find("not a whole number"), std::string::npos);
  EXPECT_NE(error_of(head + "a,1,brt,4,48\n")
                .find("w.csv:2: column 'application': application \"brt\" is not known; "
                      "did you mean \"bert\"?"),
            std::string::npos);
  EXPECT_NE(error_of(head + "a,1,bert,4\n").find("w.csv:2: 4 columns, but the header has 5"),
            std::string::npos);
  EXPECT_NE(error_of(head + "a,1,bert,4,48\na,2,bert,4,48\n").find("w.csv:3: column 'name'"),
            std::string::npos);
  EXPECT_NE(error_of("name,tme,application,num_replicas\na,1,bert,4\n").find("is 'tme' meant?"),
            std::string::npos);
  EXPECT_NE(error_of(head).find("no job"), std::string::npos);
  EXPECT_NE(error_of("").find("empty"), std::string::npos);
  EXPECT_NE(error_of("name,time,application,num_replicas,tier\na,1,bert,4,gold\n")
                .find("column 'tier': 'gold' is none of premium, standard, basic"),
            std::string::npos);
}

TEST(Workload, LoadAndLength) {
  SyntheticOptions options;
  options.jobs = 200;
  Workload w = synthetic_workload(options, catalog());
  const double last = w.jobs.back().time;
  compress(w, 2);
  EXPECT_EQ(w.jobs.back().time, last / 2);
  truncate(w, 10);
  EXPECT_EQ(w.jobs.size(), 10u);
  EXPECT_THROW(compress(w, 0), Error);
  const Workload same = synthetic_workload(options, catalog());
  options.seed = 1;
  EXPECT_NE(to_csv(synthetic_workload(options, catalog())), to_csv(same));
}

TEST(Scenario, ErrorsNameTheLine) {
  const auto text_of = [](const char* text) {
    try {
      parse_scenario(text, "s.toml");
    } catch (const Error& e) {
      return e.message();
    }
    return std::string("no error");
  };
  EXPECT_NE(
      text_of("\n[[fault]]\nkind = \"fire\"\n").find("s.toml:2: kind must be one of node_loss"),
      std::string::npos);
  EXPECT_NE(text_of("[[fault]]\nkind = \"reclaim\"\nnotise = 3\n").find("did you mean notice?"),
            std::string::npos);
  EXPECT_NE(text_of("[[fault]]\nat = 3\n").find("needs a kind"), std::string::npos);
  EXPECT_NE(text_of("until = 0\n").find("s.toml:1: until must be a number from 1"),
            std::string::npos);
  EXPECT_NE(text_of("faults = 3\n").find("s.toml:1: unknown key 'faults'"), std::string::npos);
  EXPECT_NE(text_of("[[fault]]\nkind = \"straggler\"\nfactor = 0.5\n").find("factor must be"),
            std::string::npos);
  const Scenario good = parse_scenario(
      "lost_work_seconds = 600\n[[fault]]\nkind = \"node_loss\"\nevery = 100\ncount = 4\n", "s");
  EXPECT_EQ(good.lost_work_seconds, 600);
  EXPECT_EQ(good.until, 0);
  const auto events = plan_faults(good, sched::homogeneous_cluster(4, 4), 3, 1e9);
  EXPECT_EQ(events.size(), 4u);
  for (size_t i = 1; i < events.size(); ++i) EXPECT_GE(events[i].time, events[i - 1].time);
  const Scenario bad = parse_scenario("[[fault]]\nkind = \"straggler\"\nnode = 9\n", "s");
  EXPECT_THROW(plan_faults(bad, sched::homogeneous_cluster(4, 4), 3, 1e9), Error);
}

}  // namespace
}  // namespace ductile::sim
