#include "ductile/cluster/http_server.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/json.h"
#include "ductile/base/rng.h"
#include "ductile/base/testing.h"
#include "ductile/cluster/testing/failing_vfs.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

class Http : public ::testing::Test {
 protected:
  Http() { start({}); }

  void start(HttpOptions options) {
    server.reset();
    options.socket = folder.path() / "api.sock";
    options.port = 0;
    options.principal_of = [](std::string_view token) -> Recognition {
      if (token == "let-me-in") return {Principal{"tia", Role::submit, "", true}, ""};
      return {{}, "unknown"};
    };
    server = std::make_unique<HttpServer>(api, std::move(options));
  }
  httplib::Client client(const char* token = "let-me-in") const {
    httplib::Client out("127.0.0.1", server->port());
    if (token != nullptr)
      out.set_default_headers({{"Authorization", std::string("Bearer ") + token}});
    out.set_read_timeout(60);
    return out;
  }

  // A connection of this user to the unix socket.
  Descriptor connect_unix() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = (folder.path() / "api.sock").string();
    std::memcpy(address.sun_path, path.c_str(), path.size());
    Descriptor out(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return out;
  }
  Descriptor connect_port() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Descriptor out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return out;
  }
  static void send(const Descriptor& to, const std::string& text) {
    [[maybe_unused]] const ssize_t n = ::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  // Until the other end closes, or `until` came.
  static std::string receive(const Descriptor& from, const std::string& until = "\1none") {
    std::string out;
    char block[4096];
    while (out.find(until) == std::string::npos) {
      const ssize_t n = ::recv(from.get(), block, sizeof block, 0);
      if (n <= 0) break;
      out.append(block, static_cast<size_t>(n));
    }
    return out;
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file, testing::FailingVfs::name()};
  CommitQueue queue{store};
  Api api{file, queue};
  std::unique_ptr<HttpServer> server;
};

const std::string kJob = R"({"name": "resnet", "spec": {}})";

TEST_F(Http, AJobIsSubmittedWithATokenAndListed) {
  auto http = client();
  const auto submitted = http.Post("/v1/jobs", kJob, "application/json");
  ASSERT_TRUE(submitted);
  EXPECT_EQ(submitted->status, 201) << submitted->body;
  const auto list = http.Get("/v1/jobs?name=resnet&limit=1");
  ASSERT_TRUE(list);
  const Json job = parse_json(list->body).at("jobs").at(0);
  EXPECT_EQ(job.at("owner"), "tia");
  EXPECT_EQ(http.Delete("/v1/jobs")->status, 405);
  EXPECT_EQ(http.Get("/v1/jobs/none")->status, 404);
}

TEST_F(Http, TheUserBehindAUnixSocketIsKnownFromTheKernel) {
  const Descriptor socket = connect_unix();
  send(socket, "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                   std::to_string(kJob.size()) + "\r\nConnection: close\r\n\r\n" + kJob);
  EXPECT_NE(receive(socket).find("201"), std::string::npos);
  const std::string owner = Reader(file).job(1).submission.owner;
  char* const user = ::getenv("USER");
  if (user != nullptr && geteuid() != 0) {
    EXPECT_EQ(owner, user);
  }
  EXPECT_NE(owner, "");
}

// It may come from a network that does not answer now.
TEST_F(Http, WhoseNameCannotBeFoundOutIsToldToComeAgain) {
  std::atomic<int> asked = 0;
  std::atomic<bool> known = false;
  HttpOptions options;
  options.name_of = [&](uid_t) -> std::string {
    ++asked;
    if (!known) fail(ErrorCode::unavailable, "nobody answers");
    return "ann";
  };
  start(std::move(options));
  const std::string request =
      "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(kJob.size()) +
      "\r\nConnection: close\r\n\r\n" + kJob;
  const auto answer = [&] {
    const Descriptor socket = connect_unix();
    send(socket, request);
    return receive(socket);
  };
  EXPECT_TRUE(answer().starts_with("HTTP/1.1 503 "));
  known = true;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(answer().starts_with("HTTP/1.1 201 "));
  EXPECT_EQ(asked, 2) << "a name that is known is not asked for again";
  EXPECT_EQ(Reader(file).job(1).submission.owner, "ann");
  server.reset();
}

// It waits for its own name alone, and so does the end of the server for nobody's.
TEST_F(Http, ANameServiceThatHangsHoldsUpNobodyElse) {
  struct Service {
    std::atomic<bool> hangs = true, has_answered = false;
  };
  const auto service = std::make_shared<Service>();
  HttpOptions options;
  options.name_of = [service](uid_t) -> std::string {
    while (service->hangs) std::this_thread::sleep_for(1ms);
    service->has_answered = true;
    return "ann";
  };
  start(options);
  const std::string request = "GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  const Descriptor first = connect_unix();
  send(first, request);
  EXPECT_EQ(client().Get("/v1/jobs")->status, 200) << "over the port";
  service->hangs = false;
  EXPECT_TRUE(receive(first).starts_with("HTTP/1.1 200 "));
  while (!service->has_answered) std::this_thread::sleep_for(1ms);

  service->hangs = true;
  options.patience = 50ms;
  start(options);
  const Descriptor late = connect_unix();
  send(late, request);
  EXPECT_TRUE(receive(late).starts_with("HTTP/1.1 503 "));

  options.patience = 10min;
  start(options);
  const Descriptor last = connect_unix();
  send(last, request);
  server.reset();
  EXPECT_FALSE(receive(last).starts_with("HTTP/1.1 200 "));
  service->hangs = false;
}

TEST(UserName, IsANumberWhereThereIsNone) {
  EXPECT_EQ(user_name(0), "root");
  EXPECT_EQ(user_name(3999999999u), "3999999999");
}

TEST_F(Http, NobodyGetsInWithoutATokenOrWithAnothersConnection) {
  const Descriptor admin = connect_unix();  // the first connection, and one of an admin
  send(admin, "GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(receive(admin, "jobs").find("200"), std::string::npos);
  for (const char* token : {static_cast<const char*>(nullptr), "", "let-me", "let-me-in-please"}) {
    auto http = client(token);
    for (const char* path : {"/v1/jobs", "/metrics", "/v1/openapi.json", "/v1/events", "/"})
      EXPECT_EQ(http.Get(path)->status, 401) << path;
    EXPECT_EQ(http.Post("/v1/jobs", kJob, "application/json")->status, 401);
  }
  EXPECT_TRUE(Reader(file).live_jobs().empty());
}

TEST_F(Http, AClientThatSendsAByteNowAndThenIsNotWaitedFor) {
  HttpOptions options;
  options.patience = 200ms;
  start(options);
  const Descriptor slow = connect_port();
  std::atomic<bool> over = false;
  std::thread dripping([&] {
    for (const char c : "GET /v1/jobs HTTP/1.1\r\nX: " + std::string(10000, 'x')) {
      if (over) return;
      send(slow, std::string(1, c));
      std::this_thread::sleep_for(10ms);
    }
  });
  EXPECT_EQ(client().Get("/v1/jobs")->status, 200);
  receive(slow);  // its end
  over = true;
  dripping.join();
}

TEST_F(Http, ABodyThatIsTooLargeIsRefusedPackedOrNot) {
  auto http = client();
  EXPECT_EQ(http.Post("/v1/jobs", std::string(kMostBody + 1, ' '), "application/json")->status,
            413);
  http.set_compress(true);
  const auto packed = http.Post("/v1/jobs", std::string(50 * kMostBody, ' '), "application/json");
  ASSERT_TRUE(packed);
  EXPECT_EQ(packed->status, 413);
  EXPECT_EQ(client().Get("/v1/jobs")->status, 200);
}

TEST_F(Http, EventsAreStreamedAsTheyHappenAndGoOnWhereAClientWas) {
  client().Post("/v1/jobs", kJob, "application/json");
  const Descriptor socket = connect_unix();
  send(socket, "GET /v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n");
  EXPECT_NE(receive(socket, "\n\n\r\n").find("id: 1\nevent: submitted\ndata: {"),
            std::string::npos);
  client().Post("/v1/jobs/1/cancel", "", "application/json");
  EXPECT_NE(receive(socket, "\n\n\r\n").find("id: 2\nevent: wish\n"), std::string::npos);
  const Descriptor again = connect_unix();
  send(again,
       "GET /v1/events?job=resnet HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
       "Last-Event-ID: 1\r\n\r\n");
  const std::string rest = receive(again, "\n\n\r\n");
  EXPECT_EQ(rest.find("id: 1\n"), std::string::npos) << rest;
  EXPECT_NE(rest.find("id: 2\n"), std::string::npos) << rest;
  const Descriptor wrong = connect_unix();
  send(wrong, "GET /v1/events HTTP/1.1\r\nAccept: text/event-stream\r\nLast-Event-ID: x\r\n\r\n");
  EXPECT_NE(receive(wrong, "}").find("400"), std::string::npos);
  server.reset();  // ends with streams open
  EXPECT_EQ(receive(socket).find("id: 3"), std::string::npos);
}

TEST_F(Http, AStreamThatGoesOnBehindWhatWasRemovedIsToldWhereToBegin) {
  client().Post("/v1/jobs", kJob, "application/json");
  queue.commit([](Change& change) {
    change.set_phase(1, Phase::cancelled, "It was cancelled.", 1);
    change.prune({1, 0}, 1000, 500);
  });
  const auto answer = [&](const std::string& last) {
    const Descriptor socket = connect_unix();
    send(socket,
         "GET /v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
         "Last-Event-ID: " +
             last + "\r\n\r\n");
    return receive(socket, last == "1" ? "}" : "\r\n\r\n");
  };
  const std::string gone = answer("1");
  EXPECT_NE(gone.find("HTTP/1.1 410"), std::string::npos) << gone;
  EXPECT_NE(gone.find("\"begin\":2"), std::string::npos) << gone;
  EXPECT_NE(answer("2").find("HTTP/1.1 200"), std::string::npos);
}

TEST_F(Http, OneClientCannotTakeAllConnections) {
  HttpOptions options;
  options.limits.connections_of_one = 3;
  start(options);
  std::vector<Descriptor> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(connect_port());
    send(held.back(), "GET /v1/jobs HTTP/1.1\r\n\r\n");
    EXPECT_NE(receive(held.back(), "code").find("401"), std::string::npos);
  }
  const std::string refusal = receive(connect_port());
  EXPECT_TRUE(refusal.starts_with("HTTP/1.1 429 ")) << refusal;
  EXPECT_NE(refusal.find("3 connections, as many as one client may have"), std::string::npos)
      << refusal;
  const Descriptor other = connect_unix();
  send(other, "GET /v1/jobs HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_NE(receive(other).find("200"), std::string::npos);
}

// A process that may open few files has few of both, and one client still leaves some to others.
TEST_F(Http, WhereThereAreFewConnectionsOneClientHasHalfOfThem) {
  HttpOptions options;
  options.limits.connections = 6;
  options.limits.streams = 4;
  start(options);
  const auto ask = [](const char* what, const char* token) {
    return std::string("GET ") + what + " HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n" +
           (token == nullptr ? "" : std::string("Authorization: Bearer ") + token + "\r\n") +
           "\r\n";
  };
  std::vector<Descriptor> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(connect_port());
    send(held.back(), ask("/v1/events", "let-me-in"));
    EXPECT_NE(receive(held.back(), "\r\n\r\n").find("200"), std::string::npos);
  }
  held.push_back(connect_port());
  send(held.back(), ask("/v1/events", "let-me-in"));
  EXPECT_NE(receive(held.back(), "}").find("tia has 2 event streams"), std::string::npos);
  // It has ended none of these three, and gets no fourth.
  const Descriptor fourth = connect_port();
  send(fourth, ask("/v1/jobs", "let-me-in"));
  const std::string refusal = receive(fourth, "}");
  EXPECT_TRUE(refusal.starts_with("HTTP/1.1 429 ")) << refusal;
  EXPECT_NE(refusal.find("tia has 3 connections"), std::string::npos) << refusal;
  for (int i = 0; i < 2; ++i) {  // of the user behind the unix socket
    held.push_back(connect_unix());
    send(held.back(), ask("/v1/events", nullptr));
    EXPECT_NE(receive(held.back(), "\r\n\r\n").find("200"), std::string::npos);
  }
}

// What a connection counts as follows who uses it, so that those who share an address or a tunnel
// have limits of their own.
TEST_F(Http, AConnectionCountsAsWhoeverItSaysItIs) {
  HttpOptions options;
  options.limits.connections_of_one = 2;
  start(options);
  std::vector<Descriptor> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(connect_port());
    send(held.back(), "GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer let-me-in\r\n\r\n");
    EXPECT_NE(receive(held.back(), "jobs").find("200"), std::string::npos);
  }
  const Descriptor third = connect_port();
  send(third, "GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer let-me-in\r\n\r\n");
  const std::string answer = receive(third);
  EXPECT_NE(answer.find("HTTP/1.1 429"), std::string::npos) << answer;
  EXPECT_NE(answer.find("tia has 2 connections"), std::string::npos) << answer;
  const Descriptor stranger = connect_port();
  send(stranger, "GET /v1/jobs HTTP/1.1\r\n\r\n");
  EXPECT_NE(receive(stranger, "code").find("401"), std::string::npos);
}

TEST_F(Http, AClientThatAsksTooFastIsToldWhenToComeAgain) {
  HttpOptions options;
  options.limits.rate = 0.001;
  options.limits.burst = 3;
  options.limits.strangers_rate = 0.001;
  options.limits.strangers_burst = 2;
  start(options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client().Get("/v1/jobs")->status, 200);
  const auto fourth = client().Get("/v1/jobs");
  EXPECT_EQ(fourth->status, 429);
  EXPECT_EQ(fourth->get_header_value("Retry-After"), "1000");
  EXPECT_NE(fourth->body.find("try again"), std::string::npos);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client("wrong").Get("/v1/jobs")->status, 401);
  EXPECT_EQ(client("wrong").Get("/v1/jobs")->status, 429);
  const Descriptor other = connect_unix();
  send(other, "GET /v1/jobs HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_NE(receive(other).find("200"), std::string::npos) << "another client is not delayed";
}

TEST_F(Http, EventStreamsOfOneClientAreCounted) {
  HttpOptions options;
  options.limits.streams_of_one = 1;
  start(options);
  client().Post("/v1/jobs", kJob, "application/json");
  const std::string ask = "GET /v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n";
  Descriptor first = connect_unix();
  send(first, ask);
  EXPECT_NE(receive(first, "\n\n\r\n").find("200"), std::string::npos);
  const Descriptor second = connect_unix();
  send(second, ask);
  const std::string refusal = receive(second, "}");
  EXPECT_NE(refusal.find("HTTP/1.1 429"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("1 event streams, as many as one client may have"), std::string::npos);
  // A stream whose client is gone is noticed when there is something to say.
  first.close();
  for (std::string answer; answer.find("HTTP/1.1 200") == std::string::npos;) {
    client().Post("/v1/jobs", kJob, "application/json");
    const Descriptor again = connect_unix();
    send(again, ask);
    answer = receive(again, "\r\n\r\n");
  }
}

TEST_F(Http, AStreamEndsWhenItsTokenIsRevoked) {
  std::atomic<bool> revoked = false;
  HttpOptions options;
  options.socket = folder.path() / "other.sock";
  options.port = 0;
  options.principal_of = [&](std::string_view) -> Recognition {
    if (revoked) return {{}, "revoked"};
    return {Principal{"tia", Role::read, "", true}, ""};
  };
  const HttpServer other(api, options);
  httplib::Client http("127.0.0.1", other.port());
  http.set_read_timeout(60);
  http.set_default_headers({{"Authorization", "Bearer x"}, {"Accept", "text/event-stream"}});
  client().Post("/v1/jobs", kJob, "application/json");
  std::string seen;
  http.Get("/v1/events", [&](const char* data, size_t size) {
    seen.append(data, size);
    if (!revoked.exchange(true)) client().Post("/v1/jobs/1/cancel", "", "application/json");
    return true;
  });
  EXPECT_NE(seen.find("event: submitted"), std::string::npos);
  EXPECT_EQ(seen.find("event: wish"), std::string::npos);
}

TEST_F(Http, AHeadOfManyLinesIsNotRead) {
  std::string head = "GET /v1/jobs HTTP/1.1\r\n";
  for (int i = 0; i < 200; ++i) head += "a:\r\n";
  const Descriptor socket = connect_unix();
  send(socket, head + "\r\n");
  EXPECT_NE(receive(socket).find("HTTP/1.1 400"), std::string::npos);
}

TEST_F(Http, ASocketIsServedOnceAndAStaleOneIsReplaced) {
  HttpOptions options;
  options.socket = folder.path() / "api.sock";
  EXPECT_EQ(ductile::testing::code_of([&] { HttpServer second(api, options); }),
            ErrorCode::conflict);
  server.reset();
  {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, options.socket.c_str(), options.socket.native().size());
    const Descriptor dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  HttpServer third(api, options);
  options.socket = folder.path() / std::string(200, 'x');
  EXPECT_EQ(ductile::testing::code_of([&] { HttpServer fourth(api, options); }),
            ErrorCode::invalid_argument);
}

// Over the unix socket, as an admin: a request, and inside it another one.
TEST_F(Http, ARequestInsideAnotherOnesBodyIsNotCarriedOut) {
  const std::string inner = "POST /v1/nodes/n/drain HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
  const std::string post = "POST /v1/jobs HTTP/1.1\r\nHost: x\r\n";
  const std::string length = "Content-Length: " + std::to_string(kJob.size()) + "\r\n";
  const std::string chunk = fmt::format("{:x}\r\n", kJob.size()) + kJob;
  const std::vector<std::string> outers = {
      "GET /v1/jobs HTTP/1.1\r\nContent-Length: " + std::to_string(inner.size()) + "\r\n\r\n",
      "HEAD /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
      "OPTIONS /v1/jobs HTTP/1.1\r\nContent-Length: 99\r\n\r\n",
      "BREW /v1/jobs HTTP/1.1\r\nContent-Length: 99\r\n\r\n",
      "GET /v1/jobs HTTP/1.1\r\nno header at all\r\n",
      post + length + "Transfer-Encoding: chunked\r\n\r\n" + chunk + "\r\n0\r\n\r\n",
      post + length + "Content-Length: 99\r\n\r\n" + kJob,
      post + "Content-Length: +" + std::to_string(kJob.size()) + "\r\n\r\n" + kJob,
      post + "Content-Length: " + std::to_string(kJob.size()) + "x\r\n\r\n" + kJob,
      post + "Content-Length: -1\r\n\r\n",
      post + "Content-Length: 2000000\r\n\r\n",
      post + "Transfer-Encoding: xchunked\r\n\r\n" + kJob,
      post + "Transfer-Encoding: chunked\r\n\r\n" + chunk + "XX\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n0x" + chunk + "\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n-1\r\n",
      "POST /v1/jobs%0a HTTP/1.1\r\nContent-Length: 99\r\n\r\n",
      "POST http://x/v1/jobs HTTP/1.1\r\nContent-Length: 99\r\n\r\n",
  };
  queue.commit([](Change& change) { change.set_nodes({NodeRecord{"n", "cpu"}}, 1); });
  for (const std::string& outer : outers) {
    const Descriptor socket = connect_unix();
    send(socket, outer + inner);
    ::shutdown(socket.get(), SHUT_WR);
    const std::string answers = receive(socket);
    EXPECT_EQ(answers.find("HTTP/1.1 "), answers.rfind("HTTP/1.1 ")) << outer << answers;
    EXPECT_TRUE(Reader(file).drains().empty()) << outer;
  }
  EXPECT_EQ(client("let-me-in").Get("/v1/jobs")->status, 200);
}

TEST_F(Http, WhatIsAmbiguousIsRefused) {
  for (const char* twice :
       {"Authorization: Bearer let-me-in\r\nAuthorization: Bearer other\r\n",
        "Idempotency-Key: a\r\nidempotency-key: b\r\n", "Host: a\r\nHost: b\r\n"}) {
    const Descriptor socket = connect_unix();
    send(socket, std::string("GET /v1/jobs HTTP/1.1\r\n") + twice + "\r\n");
    const std::string answer = receive(socket, "}");
    EXPECT_NE(answer.find("HTTP/1.1 400"), std::string::npos) << answer;
    EXPECT_NE(answer.find("more than once"), std::string::npos) << answer;
  }
}

TEST_F(Http, OnlyAPostBringsABody) {
  for (const char* method : {"DELETE", "PUT", "PATCH", "PRI", "GET"}) {
    const Descriptor socket = connect_port();  // packed, and nobody to be seen who sent it
    send(socket, std::string(method) +
                     " /v1/jobs HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\n");
    const std::string answer = receive(socket);
    EXPECT_NE(answer.find("HTTP/1.1 400"), std::string::npos) << answer;
  }
}

TEST_F(Http, APostWithoutABodyNeedsNoLength) {
  client().Post("/v1/jobs", kJob, "application/json");
  const Descriptor socket = connect_unix();
  send(socket, "POST /v1/jobs/1/cancel HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(receive(socket, "}").find("HTTP/1.1 200"), std::string::npos);
}

// Each part would be a copy of the answer: some bytes for gigabytes.
TEST_F(Http, AnAnswerIsServedWhole) {
  const auto answer = client().Get("/v1/openapi.json", {{"Range", "bytes=0-,0-,0-"}});
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, client().Get("/v1/openapi.json")->body);
}

TEST_F(Http, ABodyIsJsonWhateverItIsCalled) {
  for (const char* type :
       {"multipart/form-data; boundary=x", "application/x-www-form-urlencoded"}) {
    EXPECT_EQ(client().Post("/v1/jobs", kJob, type)->status, 201) << type;
    EXPECT_EQ(client().Post("/v1/jobs", "a=b", type)->status, 400) << type;
  }
}

TEST_F(Http, AnOldClientGetsAListAndNoStream) {
  const Descriptor socket = connect_unix();
  send(socket, "GET /v1/events HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n");
  EXPECT_NE(receive(socket).find("\"events\":[]"), std::string::npos);
}

TEST_F(Http, AFileThatIsNoSocketIsLeftAlone) {
  HttpOptions options;
  options.socket = folder.path() / "thesis.tex";
  std::ofstream(options.socket) << "years of work";
  EXPECT_EQ(ductile::testing::code_of([&] { HttpServer second(api, options); }),
            ErrorCode::conflict);
  EXPECT_EQ(read_file(options.socket), "years of work");
}

TEST_F(Http, OfServersThatStartAtOnceOneServes) {
  HttpOptions options;
  options.socket = folder.path() / "raced.sock";
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<HttpServer>> servers(4);
    std::vector<std::thread> threads;
    std::atomic<int> waiting = 4;
    for (auto& mine : servers) {
      threads.emplace_back([&] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        try {
          mine = std::make_unique<HttpServer>(api, options);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::ranges::count_if(servers, [](const auto& s) { return s != nullptr; }), 1);
  }
}

TEST_F(Http, NoBytesStopTheServer) {
  HttpOptions options;
  options.patience = options.idle = 50ms;
  start(options);
  Rng rng(5);
  const std::vector<std::string> pieces = {"GET ",
                                           "POST ",
                                           "/v1/jobs",
                                           " HTTP/1.1\r\n",
                                           "\r\n",
                                           "\r\n\r\n",
                                           "Content-Length: -1\r\n",
                                           "Content-Length: 99999999999999999999\r\n",
                                           "Transfer-Encoding: chunked\r\n\r\n",
                                           "ffffffff\r\n",
                                           "Content-Type: multipart/form-data; boundary=x\r\n",
                                           "Range: bytes=0-,0-,0-\r\n",
                                           "Expect: 100-continue\r\n",
                                           "Content-Encoding: gzip\r\n",
                                           std::string(9000, 'a'),
                                           std::string("\0\xff\n", 3),
                                           "%00%ff%zz",
                                           "?a=b&&=&",
                                           "Authorization: Bearer let-me-in\r\n",
                                           "Connection: upgrade\r\n"};
  for (int i = 0; i < 300; ++i) {
    const Descriptor socket = rng.below(2) == 0 ? connect_port() : connect_unix();
    std::string text;
    for (uint32_t n = 1 + rng.below(8); n > 0; --n)
      text += pieces[rng.below(static_cast<uint32_t>(pieces.size()))];
    send(socket, text);
    if (rng.below(2) == 0) ::shutdown(socket.get(), SHUT_WR);
    if (rng.below(4) == 0) receive(socket);
  }
  EXPECT_EQ(client().Get("/v1/jobs")->status, 200);
}

}  // namespace
}  // namespace ductile::cluster
