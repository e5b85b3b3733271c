#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/testing.h"
#include "ductile/run/lock.h"
#include "ductile/server/client.h"
#include "ductile/server/request_server_impl.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kPatience{20};

json echo_of(const json& request) { return {{"echo", request}}; }

// A server that answers with what it was asked, on a thread.
class Echo {
 public:
  explicit Echo(const fs::path& run) : server_(run) {
    thread_ = std::jthread([this](const std::stop_token& end) {
      while (!end.stop_requested()) {
        pollfd item{server_.fd(), POLLIN, 0};
        ::poll(&item, 1, 20);
        server_.serve([](const json& request) -> json {
          if (request.contains("fail")) fail(ErrorCode::conflict, "not now");
          return {{"echo", request}};
        });
      }
    });
  }

 private:
  RequestServer server_;
  std::jthread thread_;
};

TEST(Requests, ReachAControllerWhoseSocketWasRemoved) {
  const TempFolder run;
  const Echo echo(run.path());
  EXPECT_TRUE(has_controller(run.path()));
  fs::remove(run.path() / kRequestSocket);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!has_controller(run.path()) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(ask(run.path(), {{"request", "status"}}).at("echo").at("request"), "status");
}

TEST(Requests, AreAnsweredAlsoBelowAVeryLongPath) {
  const TempFolder folder;
  const fs::path run = folder.path() / std::string(120, 'x') / std::string(120, 'y');
  fs::create_directories(run);
  EXPECT_FALSE(has_controller(run));
  {
    const Echo echo(run);
    EXPECT_TRUE(has_controller(run));
    EXPECT_EQ(ask(run, {{"request", "status"}}).at("echo").at("request"), "status");
    struct stat info {};
    ASSERT_EQ(::stat((run / kRequestSocket).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_FALSE(fs::exists(run / kRequestSocket));
}

TEST(Requests, ARefusalComesBackAsTheErrorItWas) {
  const TempFolder run;
  const Echo echo(run.path());
  try {
    ask(run.path(), {{"fail", 1}});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
    EXPECT_EQ(e.message(), "not now");
  }
}

TEST(Requests, WithoutAControllerTheErrorNamesRunAndRemedy) {
  const TempFolder run;
  for (int round = 0; round < 2; ++round) {  // without a socket, and with one that nobody serves
    try {
      ask(run.path(), {{"request", "status"}});
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::not_found);
      EXPECT_NE(e.message().find(run.path().string()), std::string::npos);
      EXPECT_NE(e.message().find("ductile train --resume"), std::string::npos);
    }
    listen_unix(run.path());
    EXPECT_TRUE(fs::exists(run.path() / kRequestSocket));
  }
}

TEST(Requests, GarbageIsAnsweredOrHungUpOnAndOthersAreServed) {
  const TempFolder run;
  const Echo echo(run.path());
  const Descriptor silent = connect_unix(run.path(), kPatience);
  const Descriptor noisy = connect_unix(run.path(), kPatience);
  const std::string garbage = "\x01\xff not json\n";
  ASSERT_GT(send(noisy.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  char answer[512];
  const ssize_t n = recv(noisy.get(), answer, sizeof answer, 0);
  ASSERT_GT(n, 0);
  EXPECT_NE(std::string(answer, static_cast<size_t>(n)).find("invalid_argument"),
            std::string::npos);
  const Descriptor endless = connect_unix(run.path(), kPatience);
  const std::string part(8192, 'a');
  bool open = true;
  for (int i = 0; i < 10000 && open; ++i)
    open = send(endless.get(), part.data(), part.size(), MSG_NOSIGNAL) > 0;
  EXPECT_FALSE(open);
  EXPECT_TRUE(ask(run.path(), {{"request", "status"}}).at("ok"));
}

TEST(Requests, AControllerThatDoesNotAnswerIsTold) {
  const TempFolder run;
  const Descriptor listener = listen_unix(run.path());
  try {
    ask(run.path(), {{"request", "status"}}, std::chrono::milliseconds(50));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::deadline);
  }
}

TEST(Requests, AControllerThatIsStoppedIsNamedAndNotWaitedFor) {
  const TempFolder run;
  const pid_t controller = ::fork();
  if (controller == 0) {
    const Descriptor listener = listen_unix(run.path());
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(controller, &status, WUNTRACED), controller);
  ASSERT_TRUE(WIFSTOPPED(status));
  const std::string remedy = fmt::format("`kill -CONT {}`", controller);
  std::string text;
  const auto ask_it = [&] { ask(run.path(), {{"request", "status"}}, std::chrono::hours(1)); };
  EXPECT_EQ(ductile::testing::code_of(ask_it, &text), ErrorCode::deadline);
  EXPECT_NE(text.find(remedy), std::string::npos) << text;
  const auto await_it = [&] { await_end(run.path(), std::chrono::hours(1)); };
  EXPECT_EQ(ductile::testing::code_of(await_it, &text), ErrorCode::deadline);
  EXPECT_NE(text.find(remedy), std::string::npos) << text;
  ::kill(controller, SIGCONT);
  ::waitpid(controller, nullptr, 0);
  await_end(run.path(), kPatience);
}

// What the advice is where a process trains that takes no requests: resuming would be refused.
TEST(Requests, AProcessThatTrainsWithoutAControllerIsNamed) {
  const TempFolder run;
  for (const std::string_view driver : {run::RunLock::kLocal, run::RunLock::kController}) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t holder = ::fork();
    if (holder == 0) {
      const run::RunLock lock(run.path(), driver);
      [[maybe_unused]] const ssize_t n = ::write(ready[1], "x", 1);
      while (true) ::pause();
    }
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    std::string text;
    const auto ask_it = [&] { ask(run.path(), {{"request", "status"}}); };
    const bool local = driver == run::RunLock::kLocal;
    EXPECT_EQ(ductile::testing::code_of(ask_it, &text),
              local ? ErrorCode::conflict : ErrorCode::unavailable);
    EXPECT_NE(text.find(local ? fmt::format("`kill -INT {}`", holder) : "in a moment"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("--resume"), std::string::npos) << text;
    ::kill(holder, SIGKILL);
    ::waitpid(holder, nullptr, 0);
    EXPECT_EQ(ductile::testing::code_of(ask_it, &text), ErrorCode::not_found);
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

// One that is stopped, and has as many waiting as the kernel keeps.
TEST(Requests, NobodyWaitsForEverForAControllerThatTakesNobody) {
  const TempFolder run;
  const Descriptor listener = listen_unix(run.path());
  std::vector<Descriptor> waiting;
  try {
    while (waiting.size() < 1000) waiting.push_back(connect_unix(run.path(), {}));
    ADD_FAILURE() << "the kernel keeps more than 1000";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::deadline);
  }
  EXPECT_TRUE(has_controller(run.path()));
  try {
    ask(run.path(), {{"request", "status"}}, std::chrono::milliseconds(50));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::deadline);
    EXPECT_NE(e.message().find("kill -CONT"), std::string::npos);
  }
}

TEST(Requests, ClientsThatSayNothingShutNobodyOut) {
  const TempFolder run;
  const Echo echo(run.path());
  std::vector<Descriptor> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(connect_unix(run.path(), kPatience));
  EXPECT_TRUE(ask(run.path(), {{"request", "status"}}).at("ok"));
}

// Takes all descriptors that this process may have.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 128;
    setrlimit(RLIMIT_NOFILE, &few);
    for (int fd; (fd = ::dup(STDERR_FILENO)) >= 0;) taken_.emplace_back(fd);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<Descriptor> taken_;
};

TEST(Requests, WithoutADescriptorTheServerRestsAndServesLater) {
  const TempFolder run;
  RequestServer server(run.path());
  const Descriptor client = connect_unix(run.path(), kPatience);
  const std::string line = "{}\n";
  ASSERT_EQ(send(client.get(), line.data(), line.size(), MSG_NOSIGNAL), 3);
  pollfd item{server.fd(), POLLIN, 0};
  {
    const NoDescriptors none;
    server.serve(echo_of);
    EXPECT_EQ(::poll(&item, 1, 0), 0) << "it would be looked at again at once";
    EXPECT_NE(server.next_deadline(), net::Deadline::max());
  }
  pollfd answer{client.get(), POLLIN, 0};
  while (::poll(&answer, 1, 5) == 0) server.serve(echo_of);
  EXPECT_EQ(server.next_deadline(), net::Deadline::max());
}

TEST(Requests, WithoutADescriptorAnIdleClientMakesRoom) {
  const TempFolder run;
  RequestServer server(run.path());
  const Descriptor idle = connect_unix(run.path(), kPatience);
  server.serve(echo_of);
  const Descriptor client = connect_unix(run.path(), kPatience);
  const std::string line = "{}\n";
  ASSERT_EQ(send(client.get(), line.data(), line.size(), MSG_NOSIGNAL), 3);
  const NoDescriptors none;
  server.serve(echo_of);
  pollfd answer{client.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&answer, 1, 0), 1);
}

}  // namespace
}  // namespace ductile::server
