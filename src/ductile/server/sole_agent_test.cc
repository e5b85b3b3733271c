#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/server/sole_agent_impl.h"

namespace ductile::server {
namespace {

// A process of this user that is no agent, and listens at an agent's place without accepting
// anybody.
class Squatter {
 public:
  explicit Squatter(const std::string& name) : name_(name) {
    int ready[2];
    if (::pipe(ready) != 0) fail_errno("pipe", errno);
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        const Descriptor place = sole_agent(name);
        [[maybe_unused]] const ssize_t n = ::write(ready[1], "x", 1);
        while (true) ::pause();
      } catch (const std::exception&) {
      }
      ::_exit(1);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Squatter() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  bool lives() const {
    siginfo_t end{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           end.si_pid == 0;
  }
  // One more in its queue; nothing where that is full.
  Descriptor call() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string text = "ductile-agent-" + name_;
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    Descriptor caller(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    if (::connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
      caller.close();
    return caller;
  }

 private:
  const std::string name_;
  pid_t pid_ = -1;
};

std::string refusal_of(const std::string& name) {
  try {
    const Descriptor place = sole_agent(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
    return error.what();
  }
  return "";
}

std::string own_name(const char* test) { return std::string(test) + std::to_string(::getpid()); }

// Formerly every process of this user that had the socket was killed, whoever had passed it on.
TEST(SoleAgent, NobodyButAnAgentIsKilled) {
  const std::string name = own_name("bystander");
  const Squatter squatter(name);
  std::string text = refusal_of(name);
  EXPECT_NE(text.find("process " + std::to_string(squatter.pid()) + " of user " +
                      std::to_string(::geteuid()) + " holds the place"),
            std::string::npos)
      << text;
  EXPECT_TRUE(squatter.lives());
  std::vector<Descriptor> callers;
  do {
    callers.push_back(squatter.call());
    ASSERT_LT(callers.size(), 10'000u);
  } while (callers.back());
  text = refusal_of(name);
  EXPECT_NE(text.find("process " + std::to_string(squatter.pid())), std::string::npos) << text;
  EXPECT_TRUE(squatter.lives());
}

// One process more or less in its queue: that of another one who calls it has room.
TEST(SoleAgent, ItsOwnCallsDoNotFillTheQueue) {
  const std::string name = own_name("queue");
  const Squatter squatter(name);
  refusal_of(name);
  refusal_of(name);
  size_t room = 0;
  for (std::vector<Descriptor> callers; room < 10; ++room) {
    callers.push_back(squatter.call());
    if (!callers.back()) break;
  }
  EXPECT_EQ(room, 10u);
}

}  // namespace
}  // namespace ductile::server
