#include <chrono>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/server/agent_link_impl.h"

namespace ductile::server {
namespace {

// More than a pipe holds, to an agent that reads and says nothing.
TEST(AgentLink, SaysAllOfSomethingLongToOneThatIsSilent) {
  constexpr size_t kBytes = 3'000'000;
  const TempFolder folder;
  const fs::path agent = folder.path() / "agent", done = folder.path() / "done";
  write_file_atomic(agent, "#!/bin/sh\nhead -c " + std::to_string(kBytes) + " >/dev/null; : >'" +
                               done.string() + "'; exec sleep 1000\n");
  ASSERT_EQ(::chmod(agent.c_str(), 0700), 0);
  AgentsOptions options;
  options.folder = folder.path();
  options.program = agent;
  net::Loop loop;
  AgentLink link(loop, options, {"localhost", "", 1}, [] {});
  link.dial(net::Secret::random());
  ASSERT_EQ(link.state(), AgentLink::State::greeting) << link.error();
  link.say(nlohmann::json(std::string(kBytes, 'x')));
  const auto deadline = loop.now() + std::chrono::minutes(2);
  const net::Loop::Timer look = loop.every(std::chrono::milliseconds(5), [&] {
    if (fs::exists(done) || loop.now() > deadline) loop.stop();
  });
  loop.run();
  EXPECT_TRUE(fs::exists(done));
}

}  // namespace
}  // namespace ductile::server
