#include "ductile/cluster/http_server.h"

#include <cstring>
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
    options.principal_of = [](std::string_view token) -> std::optional<Principal> {
      if (token == "let-me-in") return Principal{"tia", Role::submit};
      return std::nullopt;
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

TEST_F(Http, NobodyGetsInWithoutATokenOrWithAnothersConnection) {
  const Descriptor admin = connect_unix();  // the first connection, and one of an admin
  send(admin, "GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(receive(admin, "jobs").find("200"), std::string::npos);
  for (const char* token : {static_cast<const char*>(nullptr), "", "let-me", "let-me-in-please"}) {
    auto http = client(token);
    for (const char* path : {"/v1/jobs", "/metrics", "/v1/openapi.json", "/v1/events", "/"})
      EXPECT_EQ(http.Get(path)->status, 401) << path;
    EXPECT_EQ(http.Post("/v1/jobs", kJob, "application/json")->status, 401);
    for (int n = 0; n < 4; ++n)
      EXPECT_EQ(http.Get("/v1/jobs", {{"X-Ductile-Connection", std::to_string(n)}})->status, 401);
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

TEST_F(Http, OneUserCannotTakeAllConnections) {
  HttpOptions options;
  options.most_connections_of_one = 3;
  start(options);
  std::vector<Descriptor> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(connect_port());
    send(held.back(), "GET /v1/jobs HTTP/1.1\r\n\r\n");
    EXPECT_NE(receive(held.back(), "code").find("401"), std::string::npos);
  }
  EXPECT_NE(receive(connect_port()).find("503"), std::string::npos);
  const Descriptor other = connect_unix();
  send(other, "GET /v1/jobs HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_NE(receive(other).find("200"), std::string::npos);
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
