#include "ductile/serving/http_message.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/rng.h"

namespace ductile::serving {
namespace {

using Kind = HttpReader::Kind;

int fault_of(const std::string& bytes, HttpLimits limits = {}) {
  HttpReader reader(Kind::request, limits);
  reader.take(bytes);
  return reader.fault() ? reader.fault()->status : 0;
}

std::string get(const std::string& more, const std::string& path = "/") {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + more + "\r\n";
}

std::string post(const std::string& more, const std::string& body = "") {
  return "POST / HTTP/1.1\r\nHost: a\r\n" + more + "\r\n" + body;
}

TEST(HttpReader, ReadsARequestInPiecesOfAnySize) {
  const std::string bytes =
      "POST /v2/a%20b?x=1 HTTP/1.1\r\nHost: a\r\nX-Some:  two words \r\nContent-Length: "
      "5\r\n\r\n12345";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    HttpReader reader(Kind::request);
    for (size_t at = 0; at < bytes.size(); at += piece)
      ASSERT_EQ(reader.take(std::string_view(bytes).substr(at, piece)),
                std::min(piece, bytes.size() - at));
    ASSERT_TRUE(reader.whole());
    const HttpRequest request = reader.request();
    EXPECT_EQ(request.path, "/v2/a b");
    EXPECT_EQ(*request.header("x-some"), "two words");
    EXPECT_EQ(request.body, "12345");
    EXPECT_TRUE(request.keep_alive);
  }
}

TEST(HttpReader, HasStartedBetweenTwoLinesToo) {
  HttpReader reader(HttpReader::Kind::request);
  EXPECT_FALSE(reader.started());
  reader.take("GET / HTTP/1.1\r\n");
  EXPECT_TRUE(reader.started());
  reader.take("Host: a\r\n");
  EXPECT_TRUE(reader.started());
}

TEST(HttpReader, ReadsChunks) {
  const std::string bytes = post("Transfer-Encoding: chunked\r\n",
                                 "3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: u\r\n\r\nGET");
  HttpReader reader(Kind::request);
  EXPECT_EQ(reader.take(bytes), bytes.size() - 3);
  ASSERT_TRUE(reader.whole());
  EXPECT_EQ(reader.request().body, "abc0123456789");
}

TEST(HttpReader, TakesARequestWithoutLengthForOneWithoutBody) {
  HttpReader reader(Kind::request);
  const std::string bytes = post("");
  EXPECT_EQ(reader.take(bytes + "{}"), bytes.size());
  EXPECT_TRUE(reader.whole());
}

TEST(HttpReader, LeavesTheNextMessageAlone) {
  HttpReader reader(Kind::request);
  const std::string one = get("");
  EXPECT_EQ(reader.take(one + one), one.size());
  EXPECT_TRUE(reader.whole());
}

TEST(HttpReader, RefusesWhatCouldBeReadInTwoWays) {
  EXPECT_EQ(fault_of(post("Content-Length: 1\r\nContent-Length: 1\r\n", "a")), 400);
  EXPECT_EQ(fault_of(post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "a")), 400);
  EXPECT_EQ(fault_of(post("Transfer-Encoding: gzip, chunked\r\n")), 400);
  EXPECT_EQ(fault_of(post("Content-Length: +1\r\n", "a")), 400);
  EXPECT_EQ(fault_of(post("Content-Length: 0x1\r\n", "a")), 400);
  EXPECT_EQ(fault_of(post("Content-Length: 99999999999999999999999\r\n", "a")), 400);
  EXPECT_EQ(fault_of(post("Content-Length : 1\r\n", "a")), 400);
  EXPECT_EQ(fault_of(post("Content-Length: 1\n", "a")), 400);
  EXPECT_EQ(fault_of(post(" folded: 1\r\n")), 400);
  EXPECT_EQ(fault_of(post("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n")), 400);
  EXPECT_EQ(fault_of(post("Transfer-Encoding: chunked\r\n", "-3\r\nabc\r\n")), 400);
  EXPECT_EQ(fault_of(get("Content-Length: 1\r\n")), 400);
  EXPECT_EQ(fault_of(get("Host: b\r\n")), 400);
  EXPECT_EQ(fault_of("GET / HTTP/1.1\r\n\r\n"), 400);
}

TEST(HttpReader, RefusesWithTheRightStatus) {
  EXPECT_EQ(fault_of(post("Content-Length: 11\r\n"), {.body = 10}), 413);
  EXPECT_EQ(fault_of(post("Transfer-Encoding: chunked\r\n", "6\r\nabcdef\r\n6\r\n"), {.body = 10}),
            413);
  EXPECT_EQ(fault_of(post("Content-Encoding: gzip\r\nContent-Length: 1\r\n", "a")), 415);
  EXPECT_EQ(fault_of(get(std::string(20000, 'a') + ": b\r\n")), 431);
  EXPECT_EQ(fault_of("GET / HTTP/2\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(fault_of("GET a HTTP/1.1\r\n"), 400);
  EXPECT_EQ(fault_of("nonsense\r\n"), 400);
  EXPECT_EQ(fault_of(get("", "/%zz")), 400);
  EXPECT_EQ(fault_of(get("", "/%00")), 400);
  EXPECT_EQ(fault_of(get("", "/a%2fb")), 400);
  EXPECT_EQ(fault_of(get("", "/a%2")), 400);
  std::string many;
  for (int i = 0; i < 101; ++i) many += "a" + std::to_string(i) + ": b\r\n";
  EXPECT_EQ(fault_of(get(many)), 431);
}

TEST(HttpReader, KnowsWhetherTheConnectionGoesOn) {
  const auto goes_on = [](const std::string& bytes) {
    HttpReader reader(Kind::request);
    reader.take(bytes);
    return reader.request().keep_alive;
  };
  EXPECT_TRUE(goes_on(get("")));
  EXPECT_FALSE(goes_on(get("Connection: x, Close\r\n")));
  EXPECT_FALSE(goes_on("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(goes_on("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

TEST(HttpReader, WritesWhatItReads) {
  HttpResponse response{200, "text/plain", {{"x-a", "b"}}, "body", false};
  HttpReader reader(Kind::response);
  reader.take(to_bytes(response));
  ASSERT_TRUE(reader.whole());
  const HttpResponse got = reader.response();
  EXPECT_EQ(got.body, "body");
  EXPECT_EQ(got.type, "text/plain");
  EXPECT_EQ(got.headers, response.headers);
  EXPECT_FALSE(got.keep_alive);
}

// Whatever arrives, the reader takes no more than there is, comes to an end and stays bounded.
TEST(HttpReader, SurvivesRandomAndAlteredBytes) {
  const std::vector<std::string> seeds = {
      get("A: b\r\n"), post("Content-Length: 3\r\n", "abc"),
      post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n")};
  for (uint64_t i = 0; i < 20000; ++i) {
    Rng rng(3, i);
    std::string bytes = seeds[rng.below(3)];
    for (uint32_t k = rng.below(6); k > 0; --k) {
      const auto at = static_cast<std::ptrdiff_t>(rng.below(static_cast<uint32_t>(bytes.size())));
      switch (rng.below(3)) {
        case 0:
          bytes[static_cast<size_t>(at)] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bytes.erase(bytes.begin() + at);
          break;
        default:
          bytes.insert(bytes.begin() + at, "\r\n:;0 "[rng.below(6)]);
      }
    }
    HttpReader whole(Kind::request), pieces(Kind::request);
    ASSERT_LE(whole.take(bytes), bytes.size());
    for (const char c : bytes) pieces.take(std::string_view(&c, 1));
    ASSERT_EQ(whole.whole(), pieces.whole()) << i;
    ASSERT_EQ(whole.fault().has_value(), pieces.fault().has_value()) << i;
    const bool good = whole.whole() && !whole.fault();
    ASSERT_TRUE(!good || whole.request().body == pieces.request().body) << i;
  }
}

}  // namespace
}  // namespace ductile::serving
