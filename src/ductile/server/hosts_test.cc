#include "ductile/server/hosts.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/testing.h"

namespace ductile::server {
namespace {

using Hosts = std::vector<Host>;
using Words = std::vector<std::string>;

std::string complaint(const auto& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "";
}

TEST(Hosts, AreReadAsMpirunAndHorovodWriteThem) {
  EXPECT_EQ(parse_hosts("a"), (Hosts{{"a", "", 0}}));
  EXPECT_EQ(parse_hosts("a,b:2,c=10.0.0.3:4,d=10.0.0.4,e=[fe80::1]:3"),
            (Hosts{{"a", "", 0},
                   {"b", "", 2},
                   {"c", "10.0.0.3", 4},
                   {"d", "10.0.0.4", 0},
                   {"e", "fe80::1", 3}}));
}

TEST(Hosts, ThatCannotBeMeantAreRefusedByName) {
  for (const char* bad : {"", "a,", "a,,b", "a:", "a:x", "a:0", "a:5000", "=1", "a=", "-x", "a b",
                          "a;reboot", "$(x)"}) {
    EXPECT_NE(complaint([&] { parse_hosts(bad); }), "") << bad;
  }
  EXPECT_NE(complaint([] { parse_hosts("a,b,a"); }).find("write a:2"), std::string::npos);
}

TEST(Hosts, ComeFromAFileWithCommentsAndSlots) {
  const TempFolder folder;
  const fs::path file = folder.path() / "hosts";
  write_file_atomic(file, "# my cluster\na slots=4\n\n b=10.0.0.2:2  # the old one\nc\n");
  EXPECT_EQ(read_hosts(file), (Hosts{{"a", "", 4}, {"b", "10.0.0.2", 2}, {"c", "", 0}}));
  write_file_atomic(file, "a\nb max_slots=3\n");
  EXPECT_NE(complaint([&] { read_hosts(file); }).find("line 2"), std::string::npos);
}

TEST(Hosts, AreAViewOfTheClusterFile) {
  const TempFolder folder;
  const fs::path file = folder.path() / "c.toml";
  const std::string groups =
      "[[nodes]]\ntype = \"a\"\ndevices = 4\nhosts = [\"a\", \"b\"]\n"
      "addresses = [\"10.0.0.1\", \"fe80::1\"]\n[[nodes]]\ntype = \"b\"\ndevices = 200\n";
  write_file_atomic(file, groups + "hosts = [\"c\"]\n");
  EXPECT_EQ(read_hosts(file), (Hosts{{"a", "10.0.0.1", 4}, {"b", "fe80::1", 4}, {"c", "", 128}}));
  const spec::Cluster cluster = spec::read_cluster(file);
  EXPECT_EQ(hosts_of(cluster, spec::Allocation{{2, 3}, {0, 1}}),
            (Hosts{{"c", "", 3}, {"a", "10.0.0.1", 1}}));
  EXPECT_NE(complaint([&] { hosts_of(cluster, spec::Allocation{{3, 1}}); }), "");
  write_file_atomic(file, groups);
  const std::string nameless = complaint([&] { read_hosts(file); });
  EXPECT_NE(nameless.find("c.toml"), std::string::npos) << nameless;
  EXPECT_NE(nameless.find("write hosts = "), std::string::npos) << nameless;
  write_file_atomic(file, groups + "hosts = [\"$(x)\"]\n");
  EXPECT_NE(complaint([&] { read_hosts(file); }).find("no name of a host"), std::string::npos);
}

TEST(Hosts, AClusterFileOfAnotherNameIsToldWhatToBeCalled) {
  const TempFolder folder;
  const fs::path file = folder.path() / "cluster";
  write_file_atomic(file, "# ours\n[[nodes]]\ntype = \"a\"\nhosts = [\"a\"]\n");
  EXPECT_NE(complaint([&] { read_hosts(file); }).find("line 2: [[nodes]] is of a cluster file"),
            std::string::npos)
      << complaint([&] { read_hosts(file); });
}

TEST(HostSetup, IsRememberedByItsRun) {
  const TempFolder run;
  EXPECT_EQ(load_host_setup(run.path()), HostSetup{});
  const HostSetup setup{{{"a", "10.0.0.1", 2}, {"b", "", 0}}, "srun -w {host}", "10.0.0.9"};
  EXPECT_EQ(setup.places(), 0);
  save_host_setup(run.path(), setup);
  EXPECT_EQ(load_host_setup(run.path()), setup);
  write_file_atomic(run.path() / "hosts.json", "{\"hosts\": 3}");
  EXPECT_THROW(load_host_setup(run.path()), Error);
  const std::string deep = std::string(1000001, '[') + std::string(1000001, ']');
  write_file_atomic(run.path() / "hosts.json", "{\"hosts\": " + deep + "}");
  std::string text;
  EXPECT_EQ(ductile::testing::code_of([&] { load_host_setup(run.path()); }, &text),
            ErrorCode::data_loss);
  EXPECT_NE(text.find("hosts.json: JSON nested 1000002 deep"), std::string::npos) << text;
}

TEST(Hosts, WhoseNamesAreNotUtf8AreRefused) {
  EXPECT_NE(complaint([] { parse_hosts("a,b\xff:2"); }).find("byte 2 is not UTF-8"),
            std::string::npos);
  EXPECT_NE(complaint([] { parse_hosts("a=\xc3:2"); }).find("not UTF-8"), std::string::npos);
}

TEST(LaunchWords, AreThoseOfAShell) {
  EXPECT_EQ(launch_words("ssh {host}", "a"), (Words{"ssh", "a"}));
  EXPECT_EQ(launch_words("  srun -w{host}  --x='a b' \"{host} c\" ''", "n1"),
            (Words{"srun", "-wn1", "--x=a b", "n1 c", ""}));
  EXPECT_NE(complaint([] { launch_words("ssh 'x", "a"); }), "");
  EXPECT_NE(complaint([] { launch_words("  ", "a"); }), "");
}

}  // namespace
}  // namespace ductile::server
