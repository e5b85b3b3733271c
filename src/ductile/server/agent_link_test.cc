#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/server/agent_link_impl.h"
#include "ductile/server/agent_protocol_impl.h"
#include "ductile/server/host_agent.h"

namespace ductile::server {
namespace {

// Why the link to an agent that is this script ends.
std::string end_of_link(const std::string& script) {
  const TempFolder folder;
  const fs::path agent = folder.path() / "agent";
  write_file_atomic(agent, "#!/bin/sh\nread hello\n" + script + "\nexec sleep 1000\n");
  EXPECT_EQ(::chmod(agent.c_str(), 0700), 0);
  AgentsOptions options;
  options.folder = folder.path();
  options.program = agent;
  options.patience = std::chrono::minutes(2);
  net::Loop loop;
  AgentLink* known = nullptr;
  AgentLink link(loop, options, {"localhost", "", 1}, "", [&] {
    loop.post([&] {
      known->take();
      if (known->state() == AgentLink::State::down) loop.stop();
    });
  });
  known = &link;
  link.dial(net::Secret::random());
  if (link.state() == AgentLink::State::greeting) loop.run();
  return link.error();
}

// Formerly each waited for bytes that the other one did not send.
TEST(AgentLink, AnAgentOfAnotherProtocolIsRefusedByName) {
  const std::string nonce(64, '0');
  for (const auto& [says, number] : {std::pair{"", "1"}, {R"("protocol":3,)", "3"}}) {
    const std::string error = end_of_link(
        fmt::format(R"(echo '{{"greet":{{{}"nonce":"{}","proof":"x"}}}}')", says, nonce));
    EXPECT_NE(error.find(fmt::format("speaks protocol {} of agents, and this controller speaks {}: "
                                     "install the same version",
                                     number, kAgentProtocol)),
              std::string::npos)
        << error;
  }
}

TEST(AgentLink, AnAgentSaysThatItsControllerIsOfAnotherProtocol) {
  const TempFolder folder;
  for (const char* protocol : {"", R"("protocol":1,)", R"("protocol":"new",)"}) {
    int to[2], from[2];
    ASSERT_EQ(::pipe2(to, O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(from, O_CLOEXEC), 0);
    Descriptor agent_in(to[0]), ours(to[1]), answers(from[0]), agent_out(from[1]);
    const std::string hello =
        fmt::format(R"({{"hello":{{{}"folder":"{}","host":"h","nonce":"{}"}}}})", protocol,
                    folder.path().string(), std::string(64, '0')) +
        '\n';
    ASSERT_EQ(::write(ours.get(), hello.data(), hello.size()), static_cast<ssize_t>(hello.size()));
    ours.close();  // the agent then ends
    EXPECT_EQ(run_host_agent(agent_in.get(), agent_out.get()), 0);
    agent_out.close();
    std::string said(4096, '\0');
    said.resize(
        static_cast<size_t>(std::max<ssize_t>(0, ::read(answers.get(), said.data(), said.size()))));
    EXPECT_NE(said.find("{\"error\":"), std::string::npos) << said;
    EXPECT_NE(said.find(fmt::format("and the agent ({}) speaks {}: use the same version of Ductile",
                                    fs::read_symlink("/proc/self/exe").string(), kAgentProtocol)),
              std::string::npos)
        << said;
  }
}

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
  AgentLink link(loop, options, {"localhost", "", 1}, "", [] {});
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
