#include "ductile/cluster/client.h"

#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/testing.h"
#include "ductile/cluster/store.h"

namespace ductile::cluster {
namespace {

using ::ductile::testing::code_of;
using namespace std::chrono_literals;

class ClientOfNobody : public ::testing::Test {
 protected:
  // A socket where a service has its own, which nobody serves.
  Descriptor bound_socket() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = (folder_.path() / "api.sock").string();
    std::memcpy(address.sun_path, path.c_str(), path.size());
    Descriptor out(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return out;
  }

  const TempFolder folder_;
  const Client client_{folder_.path(), 50ms};
};

TEST_F(ClientOfNobody, WhereNobodyListensThereIsNoService) {
  EXPECT_FALSE(client_.reachable());
  const Descriptor left_over = bound_socket();
  EXPECT_FALSE(client_.reachable());
  EXPECT_EQ(code_of([&] { client_.get("/v1/jobs"); }), ErrorCode::unavailable);
}

TEST_F(ClientOfNobody, WhatWouldStartItIsWhatHasServedTheFolder) {
  const std::string here = "no service answers in " + folder_.path().string() + "; ";
  EXPECT_EQ(client_.where(), here + "`ductile up` starts one");
  write_file_atomic(folder_.path() / "store.db", "");
  EXPECT_EQ(client_.where(),
            here +
                "`ductile up` starts one, or `ductile server CLUSTER_FILE` where it is that of "
                "a cluster");
  fs::create_directory(folder_.path() / "server");
  EXPECT_EQ(Client(folder_.path(), 50ms, " --folder it").where(),
            here + "`ductile server CLUSTER_FILE --folder it` starts that of its cluster again");
}

TEST_F(ClientOfNobody, CommandsInATextNameTheServiceAsTheUserDid) {
  const std::string text =
      "`ductile why 3` says more, `ductile submit -- true` begins, `ductile train --resume 3` goes "
      "on, and this ` is no end";
  EXPECT_EQ(client_.with_option(text), text) << "it is found without";
  const Client named(folder_.path(), 50ms, " --folder it");
  EXPECT_EQ(named.with_option(text),
            "`ductile why 3 --folder it` says more, `ductile submit --folder it -- true` begins, "
            "`ductile train --resume 3` goes on, and this ` is no end");
  EXPECT_EQ(named.with_option("open `ductile why"), "open `ductile why");
}

// Another user's service may be there, and another one started would be of no use.
TEST_F(ClientOfNobody, AFolderThatMayNotBeLookedIntoIsNotTakenForOneWithoutAService) {
  fs::permissions(folder_.path(), fs::perms::none);
  const uid_t me = ::geteuid();
  if (me == 0) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  std::string text;
  const auto code = code_of([&] { (void)client_.reachable(); }, &text);
  if (me == 0) {
    ASSERT_EQ(::seteuid(me), 0);
  }
  fs::permissions(folder_.path(), fs::perms::owner_all);
  EXPECT_EQ(code, ErrorCode::conflict);
  EXPECT_NE(text.find("ductile token add"), std::string::npos) << text;
}

// Its service may have thousands of jobs that wait for it.
TEST_F(ClientOfNobody, WhoListensAndDoesNotAnswerIsNotTakenForAbsent) {
  const Descriptor silent = bound_socket();
  ASSERT_EQ(::listen(silent.get(), 16), 0);
  std::string text;
  EXPECT_EQ(code_of([&] { (void)client_.reachable(); }, &text), ErrorCode::deadline);
  EXPECT_NE(text.find("try again"), std::string::npos) << text;
  EXPECT_EQ(code_of([&] { client_.get("/v1/jobs"); }), ErrorCode::deadline);
  EXPECT_EQ(code_of([&] { client_.post("/v1/jobs", nlohmann::json::object()); }),
            ErrorCode::deadline);
}

// As a server with all connections that it may have.
TEST_F(ClientOfNobody, WhoIsToldToComeAgainDoes) {
  const Descriptor busy = bound_socket();
  ASSERT_EQ(::listen(busy.get(), 16), 0);
  std::thread server([&] {
    for (const std::string answer :
         {"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
          "Content-Length: 0\r\n\r\n",
          "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\n{\"a\": 1}"}) {
      const Descriptor one(::accept(busy.get(), nullptr, nullptr));
      char request[4096];
      EXPECT_GT(::recv(one.get(), request, sizeof request, 0), 0);
      EXPECT_EQ(::send(one.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
    }
  });
  const Client patient(folder_.path(), 2min);
  EXPECT_EQ(patient.get("/v1/jobs").at("a"), 1);
  server.join();
}

// Its service ended with the request: a repeat with another key may be a second job.
TEST_F(ClientOfNobody, WhoEndedWithARequestIsNotTakenForAbsent) {
  Descriptor ending = bound_socket();
  ASSERT_EQ(::listen(ending.get(), 16), 0);
  std::thread server([&] {
    const Descriptor one(::accept(ending.get(), nullptr, nullptr));
    char request[4096];
    EXPECT_GT(::recv(one.get(), request, sizeof request, 0), 0);
    ending.close();
  });
  std::string text;
  EXPECT_EQ(
      code_of([&] { Client(folder_.path(), 2min).post("/v1/jobs", nlohmann::json::object()); },
              &text),
      ErrorCode::deadline);
  EXPECT_NE(text.find("may still be carried out"), std::string::npos) << text;
  server.join();
}

// Formerly the user was told to try again, and the job was there twice.
TEST_F(ClientOfNobody, WhatWasPostedAndNotAnsweredMayStillBeCarriedOut) {
  const Descriptor slow = bound_socket();
  ASSERT_EQ(::listen(slow.get(), 16), 0);
  std::set<std::string> keys;
  std::string text;
  const auto post = [&] { client_.post("/v1/jobs", nlohmann::json::object()); };
  EXPECT_EQ(code_of(post, &text), ErrorCode::deadline);
  for (int i = 0; i < 3; ++i) {  // all are there still, since nobody has taken them
    const Descriptor one(::accept4(slow.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char request[4096];
    const ssize_t size = ::recv(one.get(), request, sizeof request, 0);
    ASSERT_GT(size, 0);
    const std::string asked(request, static_cast<size_t>(size));
    const size_t key = asked.find("Idempotency-Key: ");
    ASSERT_NE(key, asked.npos) << asked;
    keys.insert(asked.substr(key, asked.find('\r', key) - key));
  }
  EXPECT_EQ(keys.size(), 1u);
  EXPECT_NE(text.find("may still be carried out"), std::string::npos) << text;
  EXPECT_NE(text.find("`ductile jobs --all`"), std::string::npos) << text;
  EXPECT_EQ(text.find("try again"), std::string::npos) << text;
}

// Formerly all were told to look at the jobs.
TEST_F(ClientOfNobody, WhatMayHaveBeenDoneIsLookedForWhereItShows) {
  const Descriptor slow = bound_socket();
  ASSERT_EQ(::listen(slow.get(), 64), 0);
  const std::pair<const char*, const char*> kCases[] = {
      {"/v1/jobs/3/cancel", "(`ductile jobs --all --folder it`)"},
      {"/v1/tokens", "(`ductile token list --folder it`; a token whose access file"},
      {"/v1/tokens/sam/revoke", "(`ductile token list --folder it`)"},
      {"/v1/nodes/n1/drain", "(`ductile nodes --folder it`)"},
      {"/v1/nodes/n1/undrain", "(`ductile nodes --folder it`)"},
      {"/v1/page/links", "ask again: `ductile page --folder it`"}};
  const Client client(folder_.path(), 50ms, " --folder it");
  for (const auto& [path, advice] : kCases) {
    std::string text;
    EXPECT_EQ(code_of([&] { client.post(path, nlohmann::json::object()); }, &text),
              ErrorCode::deadline);
    EXPECT_NE(text.find(advice), std::string::npos) << path << ": " << text;
  }
}

// What it followed was removed: it learns where to go on.
TEST_F(ClientOfNobody, WhatIsGoneSaysWhatIsStillThere) {
  const Descriptor forgetful = bound_socket();
  ASSERT_EQ(::listen(forgetful.get(), 16), 0);
  std::thread server([&] {
    const std::string body = R"({"error": "not all are kept", "code": "gone", "begin": 17})";
    const std::string answer =
        "HTTP/1.1 410 Gone\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    const Descriptor one(::accept(forgetful.get(), nullptr, nullptr));
    char request[4096];
    EXPECT_GT(::recv(one.get(), request, sizeof request, 0), 0);
    EXPECT_EQ(::send(one.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer.size()));
  });
  try {
    Client(folder_.path(), 2min).get("/v1/events?after=3");
    ADD_FAILURE() << "it was there";
  } catch (const Gone& gone) {
    EXPECT_EQ(gone.begin, 17);
    EXPECT_EQ(gone.code(), ErrorCode::not_found);
  }
  server.join();
}

TEST_F(ClientOfNobody, NobodyIsToldApartFromAnErrorOfTheService) {
  EXPECT_THROW(client_.get("/v1/jobs"), Unreachable);
  const Descriptor silent = bound_socket();
  ASSERT_EQ(::listen(silent.get(), 16), 0);
  EXPECT_THROW(client_.get("/v1/jobs"), Unreachable);
}

}  // namespace
}  // namespace ductile::cluster
