#include <atomic>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "ductile/base/error.h"
#include "ductile/server/client.h"
#include "ductile/server/request_server_impl.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

using nlohmann::json;

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

TEST(Requests, are_answered_also_below_a_very_long_path) {
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

TEST(Requests, a_refusal_comes_back_as_the_error_it_was) {
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

TEST(Requests, without_a_controller_the_error_names_run_and_remedy) {
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

TEST(Requests, garbage_is_answered_or_hung_up_on_and_others_are_served) {
  const TempFolder run;
  const Echo echo(run.path());
  const process::Descriptor silent = connect_unix(run.path());
  const process::Descriptor noisy = connect_unix(run.path());
  const std::string garbage = "\x01\xff not json\n";
  ASSERT_GT(send(noisy.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  char answer[512];
  const ssize_t n = recv(noisy.get(), answer, sizeof answer, 0);
  ASSERT_GT(n, 0);
  EXPECT_NE(std::string(answer, static_cast<size_t>(n)).find("invalid_argument"),
            std::string::npos);
  const process::Descriptor endless = connect_unix(run.path());
  const std::string part(8192, 'a');
  bool open = true;
  for (int i = 0; i < 10000 && open; ++i)
    open = send(endless.get(), part.data(), part.size(), MSG_NOSIGNAL) > 0;
  EXPECT_FALSE(open);
  EXPECT_TRUE(ask(run.path(), {{"request", "status"}}).at("ok"));
}

TEST(Requests, a_controller_that_does_not_answer_is_told) {
  const TempFolder run;
  const process::Descriptor listener = listen_unix(run.path());
  try {
    ask(run.path(), {{"request", "status"}}, std::chrono::milliseconds(50));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::deadline);
  }
}

}  // namespace
}  // namespace ductile::server
