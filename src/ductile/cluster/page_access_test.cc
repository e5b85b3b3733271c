#include "ductile/cluster/page_access.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include "ductile/base/files.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cluster/http_server.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;

std::string code_of(const std::string& link) { return link.substr(link.find("#login=") + 7); }

TEST(PageAccess, ALinkLetsOneBrowserInAndNoSecondOne) {
  double now = 1000;
  PageAccess access([&] { return now; });
  access.set_port(8470);
  const std::string link = access.link_for({"tia", Role::submit});
  EXPECT_EQ(link.substr(0, 31), "http://127.0.0.1:8470/#login=" + code_of(link).substr(0, 2));
  const auto pass = access.enter(code_of(link));
  ASSERT_TRUE(pass);
  EXPECT_FALSE(access.enter(code_of(link)));
  const auto who = access.principal_of(pass->cookie, pass->key);
  ASSERT_TRUE(who);
  EXPECT_EQ(who->name, "tia");
  EXPECT_EQ(who->role, Role::submit);
  // Neither half is enough, nor is the code.
  EXPECT_FALSE(access.principal_of(pass->cookie, ""));
  EXPECT_FALSE(access.principal_of(pass->cookie, pass->cookie));
  EXPECT_FALSE(access.principal_of("", pass->key));
  EXPECT_FALSE(access.principal_of(pass->key, pass->key));
  EXPECT_FALSE(access.principal_of(code_of(link), pass->key));
  access.leave(pass->cookie);
  EXPECT_FALSE(access.principal_of(pass->cookie, pass->key));
}

TEST(PageAccess, LinksAndPassesEndWithTime) {
  double now = 1000;
  PageAccess access([&] { return now; });
  const std::string late = code_of(access.link_for({"tia", Role::admin}));
  const auto pass = access.enter(code_of(access.link_for({"tia", Role::admin})));
  now += PageAccess::kLinkSeconds + 1;
  EXPECT_FALSE(access.enter(late));
  EXPECT_TRUE(access.principal_of(pass->cookie, pass->key));
  now += PageAccess::kPassSeconds;
  EXPECT_FALSE(access.principal_of(pass->cookie, pass->key));
}

TEST(PageAccess, OneUserCannotPushOutAnothersLinksAndBrowsers) {
  PageAccess access([] { return 1000.0; });
  const std::string mine = code_of(access.link_for({"me", Role::admin}));
  std::string first, last;
  for (int i = 0; i < 1000; ++i) {
    last = code_of(access.link_for({"other", Role::submit}));
    if (first.empty()) first = last;
  }
  EXPECT_TRUE(access.enter(mine));
  EXPECT_FALSE(access.enter(first));
  EXPECT_TRUE(access.enter(last));
}

class Page : public ::testing::Test {
 protected:
  Page() {
    api.make_links([this](const Principal& who) { return access.link_for(who); });
    HttpOptions options;
    options.port = 0;
    options.page = &access;
    server = std::make_unique<HttpServer>(api, std::move(options));
    http = std::make_unique<httplib::Client>("127.0.0.1", server->port());
  }

  // The headers of a browser that logged in.
  httplib::Headers login(const Principal& who) {
    const std::string body = dump_json(Json{{"code", code_of(access.link_for(who))}});
    const auto answer = http->Post("/login", body, "application/json");
    EXPECT_EQ(answer->status, 200);
    std::string cookie = answer->get_header_value("Set-Cookie");
    EXPECT_NE(cookie.find("; HttpOnly; SameSite=Strict"), std::string::npos);
    cookie.resize(cookie.find(';'));
    return {{"Cookie", "other=1; " + cookie},
            {"X-Ductile-Key", parse_json(answer->body).at("key").get<std::string>()}};
  }

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file};
  CommitQueue queue{store};
  Api api{file, queue};
  PageAccess access;
  std::unique_ptr<HttpServer> server;
  std::unique_ptr<httplib::Client> http;
};

TEST_F(Page, ItsFilesNeedNoLoginAndTheDataDo) {
  const auto page = http->Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_NE(page->body.find("<!doctype html>"), std::string::npos);
  const std::string policy = page->get_header_value("Content-Security-Policy");
  for (const char* part : {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"})
    EXPECT_NE(policy.find(part), std::string::npos) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(page->get_header_value("X-Frame-Options"), "DENY");
  EXPECT_EQ(http->Get("/assets/main.js")->get_header_value("Content-Type"),
            "text/javascript; charset=utf-8");
  for (const char* path : {"/v1/jobs", "/v1/overview", "/v1/events", "/metrics",
                           "/assets/../v1/jobs", "/assets/none.js"})
    EXPECT_EQ(http->Get(path)->status, 401) << path;
  EXPECT_EQ(http->Post("/v1/page/links", "{}", "application/json")->status, 401);
  for (const char* body :
       {"", "{}", "[]", "{\"code\": 3}", "{\"code\": \"\"}", "{\"code\": \"00\"}"})
    EXPECT_EQ(http->Post("/login", body, "application/json")->status, 401) << body;
}

TEST_F(Page, ABrowserThatLoggedInActsAsItsUser) {
  const httplib::Headers admin = login({"me", Role::admin});
  const httplib::Headers reader = login({"you", Role::read});
  const auto seen = parse_json(http->Get("/v1/overview", admin)->body);
  EXPECT_EQ(seen.at("principal"), "me");
  EXPECT_EQ(seen.at("role"), "admin");
  queue.commit([](Change& change) { change.set_nodes({NodeRecord{"a", "cpu"}}, 1); });
  EXPECT_EQ(http->Post("/v1/nodes/a/drain", admin, "{}", "application/json")->status, 200);
  EXPECT_EQ(http->Post("/v1/nodes/a/undrain", reader, "{}", "application/json")->status, 403);
  const auto link = http->Post("/v1/page/links", reader, "{}", "application/json");
  EXPECT_EQ(access.enter(code_of(parse_json(link->body).at("link"))).has_value(), true);
  EXPECT_EQ(http->Post("/logout", reader, "", "application/json")->status, 200);
  EXPECT_EQ(http->Get("/v1/overview", reader)->status, 401);
}

TEST_F(Page, ACookieAloneOpensNothing) {
  httplib::Headers headers = login({"me", Role::admin});
  headers.erase("X-Ductile-Key");
  EXPECT_EQ(http->Get("/v1/jobs", headers)->status, 401);
}

TEST_F(Page, PagesOfOtherOriginsAreRefused) {
  const httplib::Headers good = login({"me", Role::admin});
  const auto with = [&](const char* name, const std::string& value) {
    httplib::Headers out = good;
    out.emplace(name, value);
    return out;
  };
  const std::string self = "127.0.0.1:" + std::to_string(server->port());
  EXPECT_EQ(http->Get("/v1/jobs", with("Origin", "http://" + self))->status, 200);
  EXPECT_EQ(http->Get("/v1/jobs", with("Host", "localhost:9000"))->status, 200);  // a tunnel
  for (const char* host : {"evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]",
                           "127.0.0.1@evil.example", "2130706433"}) {
    EXPECT_EQ(http->Get("/v1/jobs", with("Host", host))->status, 403) << host;
    EXPECT_EQ(http->Get("/", with("Host", host))->status, 403) << host;
  }
  for (const char* origin :
       {"http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"})
    EXPECT_EQ(http->Post("/v1/nodes/a/drain", with("Origin", origin), "{}", "text/plain")->status,
              403)
        << origin;
  for (const char* site : {"cross-site", "same-site"})
    EXPECT_EQ(http->Get("/assets/main.js", with("Sec-Fetch-Site", site))->status, 403) << site;
  // A link to the page may stand anywhere; a frame around it may not.
  httplib::Headers opens = {{"Sec-Fetch-Site", "cross-site"},
                            {"Sec-Fetch-Mode", "navigate"},
                            {"Sec-Fetch-Dest", "document"}};
  EXPECT_EQ(http->Get("/", opens)->status, 200);
  opens.erase("Sec-Fetch-Dest");
  opens.emplace("Sec-Fetch-Dest", "iframe");
  EXPECT_EQ(http->Get("/", opens)->status, 403);
}

TEST_F(Page, AnotherPortIsTakenOnlyIfThatIsAllowed) {
  HttpOptions options;
  options.port = server->port();
  EXPECT_ANY_THROW(HttpServer(api, options));
  options.or_any_port = true;
  const HttpServer other(api, options);
  EXPECT_NE(other.port(), server->port());
  EXPECT_NE(other.port(), 0);
}

}  // namespace
}  // namespace ductile::cluster
