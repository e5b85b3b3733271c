#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
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
#include "ductile/link/disk.h"
#include "ductile/net/loop.h"
#include "ductile/run/lock.h"
#include "ductile/server/client.h"
#include "ductile/server/request_server_impl.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kPatience{20};

void echo(const json& request, const RequestServer::Reply& reply) {
  if (request.contains("fail")) fail(ErrorCode::conflict, "not now");
  reply({{"echo", request}});
}

// A server that answers with what it was asked, on a thread.
class Echo {
 public:
  explicit Echo(const fs::path& run) {
    thread_.call([&] { server_.emplace(thread_.loop(), disk_, run, listen_unix(run), echo); });
  }
  ~Echo() {
    thread_.call([&] { server_.reset(); });
  }

 private:
  net::LoopThread thread_;
  link::DiskHere disk_;
  std::optional<RequestServer> server_;  // the thread's
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
  const auto said = [&](const nlohmann::json& request) {
    return ductile::testing::text_of(
        [&] { ask(run.path(), request, std::chrono::milliseconds(50)); }, ErrorCode::deadline);
  };
  const std::string status = said({{"request", "status"}});
  EXPECT_NE(status.find("gave no answer in 50 ms"), std::string::npos) << status;
  EXPECT_EQ(status.find("carry out"), std::string::npos) << status;
  // Formerly that looked like one that had failed for good.
  const std::string resize = said({{"request", "resize"}, {"workers", 2}});
  EXPECT_NE(resize.find("may still carry out"), std::string::npos) << resize;
  EXPECT_NE(resize.find("`ductile status " + run.path().string() + "`"), std::string::npos)
      << resize;
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
  EXPECT_EQ(text.find("carry out"), std::string::npos) << text;
  const auto resize_it = [&] {
    ask(run.path(), {{"request", "resize"}, {"workers", 2}}, std::chrono::hours(1));
  };
  EXPECT_EQ(ductile::testing::code_of(resize_it, &text), ErrorCode::deadline);
  EXPECT_NE(text.find(remedy), std::string::npos) << text;
  EXPECT_NE(text.find("may still carry out"), std::string::npos) << text;
  const auto await_it = [&] { await_end(run.path(), std::chrono::hours(1)); };
  EXPECT_EQ(ductile::testing::code_of(await_it, &text), ErrorCode::deadline);
  EXPECT_NE(text.find(remedy), std::string::npos) << text;
  ::kill(controller, SIGCONT);
  ::waitpid(controller, nullptr, 0);
  await_end(run.path(), kPatience);
}

// One that is killed with the request unread resets the connection, which was all that was said.
TEST(Requests, AControllerThatEndsBeforeItAnswersMayHaveDoneWhatItWasAsked) {
  for (const bool reads : {true, false}) {
    const TempFolder run;
    Descriptor listener = listen_unix(run.path());
    std::thread controller([&] {
      const Descriptor one(::accept(listener.get(), nullptr, nullptr));
      char request[512];
      EXPECT_GT(::recv(one.get(), request, sizeof request, reads ? 0 : MSG_PEEK), 0);
      listener.close();
    });
    std::string text;
    const auto resize = [&] {
      ask(run.path(), {{"request", "resize"}, {"workers", 2}}, kPatience);
    };
    EXPECT_EQ(ductile::testing::code_of(resize, &text), ErrorCode::deadline);
    EXPECT_NE(text.find("may have been carried out"), std::string::npos) << text;
    controller.join();
  }
}

// Formerly a controller that was killed had preempted its run.
TEST(Requests, WhatIsPreemptedIsWhatTheRunSays) {
  const TempFolder folder;
  const fs::path run = folder.path();
  write_file_atomic(run / "job.toml", "");
  const auto with = [&](const std::string& lines) {
    write_file_atomic(run / "events.jsonl", lines);
  };
  const auto error_with = [&](const std::string& lines, ErrorCode code) {
    with(lines);
    return ductile::testing::text_of([&] { what_became_of(run); }, code);
  };
  const std::string start = R"({"kind": "start"})"
                            "\n",
                    saved = R"({"kind": "checkpoint", "step": 7})"
                            "\n",
                    end = R"({"kind": "end", "step": 9, "status": )";
  std::string text = error_with(start, ErrorCode::unavailable);
  EXPECT_NE(text.find("begins anew, since it has no checkpoint"), std::string::npos) << text;
  // Formerly it was said not to have saved, and its workers had all that it had done.
  EXPECT_NE(text.find("keep all steps for 2 minutes: until then `ductile train --resume " +
                      run.string() + "` goes on with them; later"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("did not save"), std::string::npos) << text;
  text = error_with(start + saved, ErrorCode::unavailable);
  EXPECT_NE(text.find("from its last checkpoint, which is of step 7"), std::string::npos) << text;
  const std::string unsaved =
      R"({"kind": "control", "event": "unsaved", "text": "all workers were ended: disk full"})"
      "\n";
  text = error_with(start + saved + unsaved, ErrorCode::unavailable);
  EXPECT_NE(text.find(": all workers were ended: disk full. Its end could not be written down"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("from its last checkpoint, which is of step 7"), std::string::npos) << text;
  EXPECT_EQ(text.find("without a word"), std::string::npos) << text;
  const std::string again = R"({"kind": "control", "event": "phase", "text": "starting"})"
                            "\n";
  text = error_with(start + unsaved + again, ErrorCode::unavailable);
  EXPECT_NE(text.find("without a word"), std::string::npos) << text;
  text = error_with(start + end + "\"interrupted\"}\n", ErrorCode::unavailable);
  EXPECT_NE(text.find("could not save"), std::string::npos) << text;
  text = error_with(start + end + "\"failed\", \"message\": \"no data\"}\n", ErrorCode::peer_lost);
  EXPECT_NE(text.find("no data"), std::string::npos) << text;
  with(start + end + "\"interrupted\", \"checkpoint\": 9}\n");
  EXPECT_EQ(what_became_of(run), "preempted; to go on: ductile resume " + run.string());
  // Formerly all that had a checkpoint, however old, was preempted.
  text = error_with(
      start + saved + end + "\"interrupted\", \"checkpoint\": 7, \"unsaved_steps\": 2}\n",
      ErrorCode::unavailable);
  EXPECT_NE(text.find("ended at step 9 without saving: its last checkpoint is of step 7"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("done again; to go on: ductile resume " + run.string()), std::string::npos)
      << text;
  with(start + end + "\"done\", \"checkpoint\": 9}\n");
  EXPECT_EQ(what_became_of(run), "not preempted, since it was done after 9 steps");
}

// The time of others that were waited for counts.
TEST(Requests, WhoWasAskedLongAgoIsNotWaitedFor) {
  const TempFolder run;
  const Descriptor listener = listen_unix(run.path());
  constexpr std::chrono::hours kHour{1};
  const std::string text = ductile::testing::text_of(
      [&] { await_end(run.path(), kHour, std::chrono::steady_clock::now() - kHour); },
      ErrorCode::deadline);
  EXPECT_NE(text.find("still ending after 3600 s"), std::string::npos) << text;
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

// How often a loop turns in a time in which there is little to do.
int turns_in(net::Loop& loop, std::chrono::milliseconds time) {
  const net::Deadline end = loop.now() + time;
  int turns = 0;
  for (; loop.now() < end && turns < 1000; ++turns) loop.turn(end);
  return turns;
}

TEST(Requests, WithoutADescriptorTheServerRestsAndServesLater) {
  const TempFolder run;
  net::Loop loop;
  link::DiskHere disk;
  RequestServer server(loop, disk, run.path(), listen_unix(run.path()), echo);
  const Descriptor client = connect_unix(run.path(), kPatience);
  const std::string line = "{}\n";
  ASSERT_EQ(send(client.get(), line.data(), line.size(), MSG_NOSIGNAL), 3);
  {
    const NoDescriptors none;
    EXPECT_LT(turns_in(loop, std::chrono::milliseconds(300)), 50) << "it looks again at once";
  }
  pollfd answer{client.get(), POLLIN, 0};
  while (::poll(&answer, 1, 0) == 0) loop.turn(loop.now() + std::chrono::milliseconds(5));
}

TEST(Requests, WithoutADescriptorAnIdleClientMakesRoom) {
  const TempFolder run;
  net::Loop loop;
  link::DiskHere disk;
  RequestServer server(loop, disk, run.path(), listen_unix(run.path()), echo);
  const Descriptor idle = connect_unix(run.path(), kPatience);
  loop.turn(loop.now());
  const Descriptor client = connect_unix(run.path(), kPatience);
  const std::string line = "{}\n";
  ASSERT_EQ(send(client.get(), line.data(), line.size(), MSG_NOSIGNAL), 3);
  const NoDescriptors none;
  loop.turn(loop.now());
  pollfd answer{client.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&answer, 1, 0), 1);
}

// An answer may need time: of a disk. What the client says meanwhile is answered after it, in
// order.
TEST(Requests, AnAnswerThatComesLaterHoldsUpThatClientAlone) {
  const TempFolder run;
  net::Loop loop;
  link::DiskHere disk;
  std::vector<RequestServer::Reply> slow;
  RequestServer server(loop, disk, run.path(), listen_unix(run.path()),
                       [&](const json& request, RequestServer::Reply reply) {
                         if (request.contains("slow")) return slow.push_back(std::move(reply));
                         reply({{"echo", request}});
                       });
  const Descriptor first = connect_unix(run.path(), kPatience);
  const Descriptor other = connect_unix(run.path(), kPatience);
  const auto say = [](const Descriptor& to, const std::string& text) {
    ASSERT_EQ(send(to.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  };
  const auto heard = [&](const Descriptor& from) {
    for (int i = 0; i < 5; ++i) loop.turn(loop.now());
    char block[4096];
    const ssize_t n = recv(from.get(), block, sizeof block, MSG_DONTWAIT);
    return n > 0 ? std::string(block, static_cast<size_t>(n)) : "";
  };
  say(first, "{\"slow\": 1}\n{\"a\": 2}\n");
  EXPECT_EQ(heard(first), "");
  say(first, "{\"a\": 3}\n");
  say(other, "{\"b\": 4}\n");
  EXPECT_NE(heard(other).find("\"b\":4"), std::string::npos);
  EXPECT_EQ(heard(first), "");
  EXPECT_LT(turns_in(loop, std::chrono::milliseconds(100)), 50) << "what waits wakes it for ever";
  ASSERT_EQ(slow.size(), 1u);
  slow.front()({{"done", 1}});
  slow.front()({{"done", "twice"}});  // no harm
  const std::string answers = heard(first);
  EXPECT_LT(answers.find("done"), answers.find("\"a\":2")) << answers;
  EXPECT_LT(answers.find("\"a\":2"), answers.find("\"a\":3")) << answers;
  EXPECT_EQ(answers.find("twice"), std::string::npos);
  // One that hung up, or whose server has gone, hurts nobody.
  say(other, "{\"slow\": 5}\n");
  heard(other);
  ASSERT_EQ(slow.size(), 2u);
  slow.back()({{"done", 2}});
}

// As the status of a job with thousands of workers is.
TEST(Requests, AnAnswerThatIsLargerThanASocketArrivesWholeAndHoldsUpNobody) {
  const TempFolder run;
  net::Loop loop;
  link::DiskHere disk;
  const std::string much(4 << 20, 'x');
  RequestServer server(loop, disk, run.path(), listen_unix(run.path()),
                       [&](const json& request, const RequestServer::Reply& reply) {
                         reply({{"text", request.contains("much") ? much : "little"}});
                       });
  const Descriptor slow = connect_unix(run.path(), kPatience);
  const Descriptor other = connect_unix(run.path(), kPatience);
  const auto say = [](const Descriptor& to, const std::string& text) {
    ASSERT_EQ(send(to.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  };
  std::string heard;
  const auto hear = [&](const Descriptor& from) {
    for (int i = 0; i < 3; ++i) loop.turn(loop.now());
    std::vector<char> block(1 << 16);
    const ssize_t n = recv(from.get(), block.data(), block.size(), MSG_DONTWAIT);
    if (n > 0) heard.append(block.data(), static_cast<size_t>(n));
  };
  say(slow, "{\"much\": 1}\n{}\n");
  for (int i = 0; i < 5; ++i) loop.turn(loop.now());
  EXPECT_LT(turns_in(loop, std::chrono::milliseconds(100)), 50) << "what waits wakes it for ever";
  say(other, "{}\n");
  hear(other);
  EXPECT_NE(heard.find("little"), std::string::npos);
  heard.clear();
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::ranges::count(heard, '\n') < 2 && std::chrono::steady_clock::now() < end) hear(slow);
  const size_t first = heard.find('\n');
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(json::parse(heard.substr(0, first)).at("text"), much);
  EXPECT_EQ(json::parse(heard.substr(first + 1)).at("text"), "little");
}

}  // namespace
}  // namespace ductile::server
