#include <atomic>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <httplib.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/testing.h"
#include "ductile/cluster/client.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/tls_impl.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;
using ductile::testing::code_of;
using namespace std::chrono_literals;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// A service beyond this machine, with an admin's token.
class Tls : public ::testing::Test {
 protected:
  Tls() {
    admin = add("ada", Role::admin);
    start({});
  }
  void start(HttpOptions options) {
    server.reset();
    options.principal_of = [this](std::string_view token) { return api.recognise(token); };
    set_tls(options).make = true;
    server = std::make_unique<HttpServer>(api, options);
    api.set_address(address(), server->pin());
  }
  HttpTls& set_tls(HttpOptions& options) const {
    HttpTls& tls = options.tls.emplace();
    tls.address.host = "127.0.0.1";
    tls.certificate = certificate;
    tls.key = key;
    return tls;
  }
  std::string add(const std::string& name, Role role, const std::string& team = "",
                  std::optional<double> expires = std::nullopt) {
    const std::string token = make_token();
    queue.commit([&](Change& change) {
      change.add_token({0, name, role, team, digest_of_token(token), 1, expires, std::nullopt},
                       "test");
    });
    api.load_tokens();
    return token;
  }
  std::string address() const { return "https://127.0.0.1:" + std::to_string(server->tls_port()); }
  Client with(const std::string& token) const {
    return Client(Access{address(), server->pin(), token});
  }
  Descriptor connect() const {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(server->tls_port());
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Descriptor out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(out.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    return out;
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  const fs::path certificate = folder.path() / "certificate.pem";
  const fs::path key = folder.path() / "certificate.key";
  double now = 1000;
  Store store{file};
  CommitQueue queue{store};
  Api api{file, queue, [this] { return now; }};
  std::string admin;
  std::unique_ptr<HttpServer> server;
};

const Json kSubmission = {{"name", "resnet"}, {"spec", Json::object()}};

TEST_F(Tls, AClientWithATokenAndThePinnedKeyIsServed) {
  const Client client = with(admin);
  EXPECT_TRUE(client.reachable());
  EXPECT_EQ(client.post("/v1/jobs", kSubmission).at("id"), 1);
  EXPECT_EQ(client.get("/v1/jobs/resnet").at("owner"), "ada");
  EXPECT_EQ(client.get("/v1/overview").at("role"), "admin");
  struct stat info {};
  ASSERT_EQ(::stat(key.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// The certificate is made once, so that what clients have pinned stays good.
TEST_F(Tls, AServerThatStartsAgainShowsTheSameKey) {
  const std::string before = server->pin();
  start({});
  EXPECT_EQ(server->pin(), before);
  EXPECT_TRUE(with(admin).reachable());
  fs::remove(key);
  EXPECT_EQ(code_of([&] { start({}); }), ErrorCode::conflict);
}

TEST_F(Tls, EachReasonToBeRefusedIsSaidWithItsRemedy) {
  const auto told = [&](const std::string& token) {
    return message_of([&] { with(token).get("/v1/jobs"); });
  };
  EXPECT_NE(told("ductile_0").find("none of this service's"), std::string::npos);
  const std::string old = add("old", Role::read, "", 2000);
  EXPECT_EQ(told(old), "");
  now = 2000;
  EXPECT_NE(told(old).find("the token \"old\" expired on 1970-01-01"), std::string::npos);
  const std::string gone = add("gone", Role::read);
  EXPECT_EQ(told(gone), "");
  EXPECT_EQ(with(admin).post("/v1/tokens/gone/revoke", Json::object()).at("revoked"), true);
  EXPECT_NE(told(gone).find("the token \"gone\" was revoked"), std::string::npos);
  const std::string reader = add("reader", Role::read);
  const std::string refused = message_of([&] { with(reader).post("/v1/jobs", kSubmission); });
  EXPECT_NE(refused.find("reader has the role \"read\"; this takes \"submit\""), std::string::npos);
  const Client other(Access{address(), "sha256//AAAA", admin});
  EXPECT_EQ(code_of([&] { (void)other.reachable(); }), ErrorCode::conflict);
  EXPECT_NE(message_of([&] { other.get("/v1/jobs"); }).find("it is another server"),
            std::string::npos);
  const Client trusting(Access{address(), "", admin});
  EXPECT_NE(message_of([&] { trusting.get("/v1/jobs"); }).find("nobody whom this machine trusts"),
            std::string::npos);
  const Client client = with(admin);
  server.reset();
  EXPECT_FALSE(client.reachable());
  EXPECT_EQ(code_of([&] { client.get("/v1/jobs"); }), ErrorCode::unavailable);
}

TEST_F(Tls, ATokenIsShownOnceAndIsNowhereInTheStore) {
  const auto answer =
      with(admin).post("/v1/tokens", {{"name", "ann"}, {"role", "submit"}, {"team", "vision"}});
  const auto token = answer.at("token").get<std::string>();
  EXPECT_EQ(answer.at("fingerprint"), server->pin());
  EXPECT_EQ(answer.at("address"), address());
  const Client ann = with(token);
  EXPECT_EQ(ann.post("/v1/jobs", kSubmission).at("id"), 1);
  EXPECT_EQ(ann.get("/v1/jobs/1").at("team"), "vision");
  ann.post("/v1/jobs", {{"name", "second"}, {"team", ""}, {"spec", Json::object()}});
  EXPECT_EQ(ann.get("/v1/jobs/2").at("team"), "vision");
  for (const char* name : {"store.db", "store.db-wal"})
    EXPECT_EQ(read_file(folder.path() / name).find(token.substr(8)), std::string::npos);
  EXPECT_EQ(dump_json(Json(with(admin).get("/v1/tokens"))).find(token.substr(8)),
            std::string::npos);
  EXPECT_EQ(code_of([&] {
              with(admin).post("/v1/tokens", {{"name", "ann"}, {"role", "read"}});
            }),
            ErrorCode::conflict);
}

// The answer that is kept for a request that comes again has no token either.
TEST_F(Tls, ARequestForATokenThatIsSentAgainIsToldThatItWasShown) {
  Call call{"POST",
            "/v1/tokens",
            {},
            "key",
            R"({"name":"ann","role":"read"})",
            Principal{"root", Role::admin}};
  EXPECT_EQ(api.handle(call).status, 201);
  const Answer again = api.handle(call);
  EXPECT_EQ(again.status, 409);
  EXPECT_NE(again.body.find("ductile token revoke ann"), std::string::npos) << again.body;
}

TEST_F(Tls, ATeamsTokenActsOnItsTeamsJobsAlone) {
  const Client ann = with(add("ann", Role::submit, "vision"));
  const Client bob = with(add("bob", Role::submit, "vision"));
  const Client eve = with(add("eve", Role::submit, "speech"));
  const Client lone = with(add("lone", Role::submit));
  ann.post("/v1/jobs", kSubmission);
  for (const Client* other : {&eve, &lone})
    EXPECT_EQ(code_of([&] { other->post("/v1/jobs/1/cancel", Json::object()); }),
              ErrorCode::conflict);
  EXPECT_EQ(code_of([&] {
              eve.post("/v1/jobs", {{"team", "vision"}, {"spec", Json::object()}});
            }),
            ErrorCode::conflict);
  for (const char* path : {"/v1/nodes/a/drain", "/v1/tokens", "/v1/tokens/ann/revoke"})
    EXPECT_EQ(code_of([&] { bob.post(path, Json::object()); }), ErrorCode::conflict) << path;
  EXPECT_EQ(bob.post("/v1/jobs/1/cancel", Json::object()).at("wish"), "cancel");
}

// A link lets a browser in for a month, whatever becomes of the token.
TEST_F(Tls, ATokenMakesNoLinksForBrowsers) {
  api.make_links([](const Principal&) { return "link"; });
  EXPECT_NE(message_of([&] {
              with(admin).post("/v1/page/links", Json::object());
            }).find("outlive the token"),
            std::string::npos);
}

TEST_F(Tls, OlderVersionsAndPlainTextAreNotSpoken) {
  httplib::SSLClient old("127.0.0.1", server->tls_port());
  old.enable_server_certificate_verification(false);
  SSL_CTX_set_max_proto_version(old.ssl_context(), TLS1_2_VERSION);
  EXPECT_FALSE(old.Get("/v1/jobs"));
  const Descriptor plain = connect();
  const std::string text = "GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_GT(::send(plain.get(), text.data(), text.size(), MSG_NOSIGNAL), 0);
  std::string answer(4096, '\0');
  const ssize_t n = ::recv(plain.get(), answer.data(), answer.size(), 0);
  answer.resize(static_cast<size_t>(std::max<ssize_t>(0, n)));
  EXPECT_EQ(answer.find("HTTP"), std::string::npos);
}

// Neither who says nothing nor who stops in the middle of a handshake keeps a connection for long.
TEST_F(Tls, AHandshakeHasADeadline) {
  HttpOptions options;
  options.strangers_patience = 100ms;
  start(options);
  for (const std::string& beginning : {std::string(), std::string("\x16\x03\x01\x02\x00\x01", 6)}) {
    const Descriptor slow = connect();
    if (!beginning.empty()) {
      ASSERT_GT(::send(slow.get(), beginning.data(), beginning.size(), MSG_NOSIGNAL), 0);
    }
    char byte = 0;
    while (::recv(slow.get(), &byte, 1, 0) > 0) {
    }
  }
  EXPECT_TRUE(with(admin).reachable());
}

TEST_F(Tls, NothingListensBeyondThisMachineWithoutTokens) {
  HttpOptions options;
  set_tls(options);
  EXPECT_EQ(code_of([&] { HttpServer open(api, options); }), ErrorCode::invalid_argument);
}

TEST_F(Tls, BadFilesAreNamed) {
  const fs::path wrong = folder.path() / "wrong.pem";
  std::ofstream(wrong) << "no certificate\n";
  fs::permissions(wrong, fs::perms(0600));
  EXPECT_NE(message_of([&] { TlsContext(wrong, key); }).find("wrong.pem: a certificate as PEM"),
            std::string::npos);
  EXPECT_NE(message_of([&] { TlsContext(certificate, wrong); }).find("wrong.pem: not the key of"),
            std::string::npos);
  EXPECT_EQ(code_of([&] { TlsContext(folder.path() / "none", key); }), ErrorCode::not_found);
  fs::permissions(key, fs::perms(0644));
  EXPECT_NE(message_of([&] { TlsContext(certificate, key); }).find("chmod 600"), std::string::npos);
}

TEST(AccessFile, IsReadAsItWasWrittenAndByItsOwnerAlone) {
  const TempFolder folder;
  const fs::path file = folder.path() / "access.json";
  const Access access{"https://node1:8471", "sha256//x", "ductile_00"};
  write_access(file, access);
  EXPECT_EQ(read_access(file), access);
  fs::permissions(file, fs::perms(0640));
  EXPECT_EQ(code_of([&] { read_access(file); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { read_access(folder.path() / "none"); }), ErrorCode::not_found);
  for (const char* text :
       {"", "[]", R"({"address": "https://a:1"})", R"({"address": "http://a:1", "token": "x"})",
        R"({"address": "ftp://a:1", "token": "x"})", R"({"address": "https://a", "token": "x"})",
        R"({"address": "https://a:1", "token": "a\r\nHost: b"})",
        R"({"address": "https://a:1", "token": "x", "fingerprint": "00:11"})"}) {
    write_private_file(file, text);
    EXPECT_EQ(code_of([&] { read_access(file); }), ErrorCode::invalid_argument) << text;
  }
  write_private_file(file, R"({"address": "http://127.0.0.1:80", "token": "x"})");
  EXPECT_EQ(read_access(file).fingerprint, "");
}

}  // namespace
}  // namespace ductile::cluster
