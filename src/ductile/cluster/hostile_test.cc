// Clients that mean harm, against a real server on all its doors. DUCTILE_HOSTILE_REQUESTS says how
// many requests they send together.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/json.h"
#include "ductile/base/rng.h"
#include "ductile/cluster/client.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/service_spec_impl.h"
#include "ductile/cluster/spec_reader_impl.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

constexpr int kAttackers = 4;

int64_t wanted_requests() {
  const char* const text = std::getenv("DUCTILE_HOSTILE_REQUESTS");
  return text != nullptr ? std::atoll(text) : 4000;
}

int64_t open_files() {
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

int64_t resident_bytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

class Hostile : public ::testing::Test {
 protected:
  // `known`: those who attack have tokens, and may ask as fast as they can.
  explicit Hostile(bool known = false) {
    queue.commit([&](Change& change) {
      change.set_nodes({NodeRecord{"a", "cpu"}}, 1);
      change.add_token({0, "ada", Role::admin, "", digest_of_token(token), 1, {}, {}}, "test");
    });
    api.load_tokens();
    HttpOptions options;
    options.socket = folder.path() / "api.sock";
    options.port = 0;
    options.page = &page;
    options.principal_of = [this](std::string_view given) { return api.recognise(given); };
    HttpTls& tls = options.tls.emplace();
    tls.address.host = "127.0.0.1";
    tls.certificate = folder.path() / "certificate.pem";
    tls.key = folder.path() / "certificate.key";
    tls.make = true;
    // On a machine that does other things, too, a handshake takes its time.
    options.strangers_patience = options.idle = 3s;
    options.patience = 10s;
    options.limits.connections_of_one = 1000;  // attackers and we are one user of this machine
    if (known) options.limits.rate = options.limits.burst = 1e9;
    server = std::make_unique<HttpServer>(api, std::move(options));
  }

  Descriptor connect(uint16_t port) const {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Descriptor out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(out.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0)
      out.close();
    return out;
  }

  void attack(uint64_t seed);
  int64_t send_many(const Descriptor& to, Rng& rng);
  void read_answers(const Descriptor& from);

  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
  Store store{file};
  CommitQueue queue{store};
  Api api{file, queue};
  PageAccess page;
  const std::string token = make_token();
  std::unique_ptr<HttpServer> server;
  const int64_t wanted = wanted_requests();
  std::atomic<int64_t> sent = 0, answered = 0;
  std::mutex mutex;
  std::set<std::string> let_in;  // answers that nobody without a token may get
};

std::string pick(Rng& rng, const std::vector<std::string>& from) {
  return from[rng.below(static_cast<uint32_t>(from.size()))];
}

std::string noise(Rng& rng, uint32_t most) {
  std::string out(rng.below(most), '\0');
  for (char& c : out) c = static_cast<char>(rng.below(256));
  return out;
}

// A request of somebody whom the service does not know. None of them may be carried out.
std::string bad_request(Rng& rng) {
  const std::string method = pick(rng, {"GET", "GET", "POST", "POST", "HEAD", "PUT", "DELETE",
                                        "OPTIONS", "PATCH", "BREW", "get", "G\0T"});
  const std::string path = pick(rng, {"/v1/jobs",
                                      "/v1/jobs/1",
                                      "/v1/jobs/1/cancel",
                                      "/v1/nodes/a/drain",
                                      "/v1/tokens",
                                      "/v1/tokens/ada/revoke",
                                      "/v1/page/links",
                                      "/metrics",
                                      "/v1/events",
                                      "/login",
                                      "/logout",
                                      "/../../../../etc/passwd",
                                      "/assets/../../../etc/passwd",
                                      "/%2e%2e/%2e%2e/etc/passwd",
                                      "/assets/%2e%2e%2f%2e%2e%2fetc/passwd",
                                      "/v1/jobs/..%2f..%2ftokens",
                                      "//v1//jobs",
                                      "/v1/jobs/%00",
                                      "/v1/jobs?limit=-1",
                                      "http://127.0.0.1/v1/jobs",
                                      "*",
                                      "/" + std::string(9000, 'a'),
                                      "/v1/jobs/<script>alert(1)</script>"});
  const std::string host = pick(rng, {"127.0.0.1", "localhost", "evil.example", "", "127.0.0.1@x"});
  std::string head = method + " " + path +
                     pick(rng, {" HTTP/1.1\r\n", " HTTP/1.1\r\n", " HTTP/1.0\r\n", " HTTP/9.9\r\n",
                                "\r\n", "  HTTP/1.1\n"});
  head += "Host: " + host + "\r\n";
  for (uint32_t n = rng.below(4); n > 0; --n)
    head += pick(rng, {"Authorization: Bearer " + make_token() + "\r\n",
                       "Authorization: Bearer\r\n",
                       "Authorization: Basic YWRhOmFkYQ==\r\n",
                       "Cookie: ductile_0=" + std::string(64, '0') + "\r\n",
                       "X-Ductile-Key: " + std::string(64, '0') + "\r\n",
                       "Origin: http://evil.example\r\n",
                       "Origin: null\r\n",
                       "Sec-Fetch-Site: cross-site\r\n",
                       "Accept: text/event-stream\r\n",
                       "Last-Event-ID: 99999999999999999999\r\n",
                       "Idempotency-Key: " + std::string(300, 'k') + "\r\n",
                       "Content-Encoding: gzip\r\n",
                       "Expect: 100-continue\r\n",
                       "Range: bytes=0-,0-,0-\r\n",
                       "Connection: keep-alive, upgrade\r\n",
                       "Transfer-Encoding: chunked\r\n",
                       "Content-Length: 99999999999\r\n",
                       "Content-Length: -1\r\n",
                       std::string("X: \0\xff\r\n", 7),
                       std::string(3000, 'h') + ": x\r\n"});
  if (rng.below(50) == 0)  // a bomb of lines
    for (int i = 0; i < 2000; ++i) head += "a:\r\n";
  const std::string body = pick(rng, {"", R"({"name":"<img src=x onerror=alert(1)>","spec":{}})",
                                      "{}", "[[[[", R"({"name":"x","role":"admin"})",
                                      R"({"code":"00"})", std::string(5000, '['), noise(rng, 300)});
  if (method == "POST" && rng.below(4) != 0)
    head += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return head + "\r\n" + body;
}

// Whole requests, their beginnings, and bytes without any sense, one after the other.
int64_t Hostile::send_many(const Descriptor& to, Rng& rng) {
  std::string text;
  int64_t count = 0;
  for (uint32_t n = 1 + rng.below(30); n > 0; --n, ++count) {
    std::string one = rng.below(10) == 0 ? noise(rng, 2000) : bad_request(rng);
    if (rng.below(20) == 0 && !one.empty())
      one.resize(rng.below(static_cast<uint32_t>(one.size())));
    for (uint32_t i = rng.below(20) == 0 ? rng.below(5) : 0; i > 0 && !one.empty(); --i)
      one[rng.below(static_cast<uint32_t>(one.size()))] = static_cast<char>(rng.below(256));
    text += one;
  }
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n =
        ::send(to.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) break;  // the server has closed, or reads no more
    done += static_cast<size_t>(n);
  }
  return count;
}

// Until the other end closes, or nothing comes for five seconds.
std::string all_that_comes(const Descriptor& from) {
  std::string text;
  char block[16384];
  pollfd polled{from.get(), POLLIN, 0};
  while (::poll(&polled, 1, 5000) > 0) {
    const ssize_t n = ::recv(from.get(), block, sizeof block, 0);
    if (n <= 0) break;
    text.append(block, static_cast<size_t>(n));
  }
  return text;
}

// What came back is an error, or a file of the page.
void Hostile::read_answers(const Descriptor& from) {
  const std::string text = all_that_comes(from);
  for (size_t at = text.find("HTTP/1.1 "); at != std::string::npos;
       at = text.find("HTTP/1.1 ", at + 1)) {
    ++answered;
    const std::string status = text.substr(at + 9, 3);
    const bool of_page = text.find("Content-Security-Policy", at) != std::string::npos;
    const bool logged_out = text.find("Max-Age=0", at) != std::string::npos;
    if (status[0] == '4' || status == "503" || (status == "200" && (of_page || logged_out)) ||
        status == "100")
      continue;
    const std::lock_guard lock(mutex);
    let_in.insert(text.substr(at, 300));
  }
}

void Hostile::attack(uint64_t seed) {
  Rng rng(seed);
  std::vector<Descriptor> slow;  // that say something now and then, or nothing
  while (sent < wanted) {
    const bool tls = rng.below(4) == 0;
    Descriptor connection = connect(tls ? server->tls_port() : server->port());
    if (!connection) continue;
    if (tls) {  // frames that are none, and beginnings of some
      std::string frame =
          rng.below(2) == 0 ? noise(rng, 600) : std::string("\x16\x03\x01", 3) + noise(rng, 600);
      [[maybe_unused]] const ssize_t n =
          ::send(connection.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
      ++sent;
    } else {
      sent += send_many(connection, rng);
    }
    switch (rng.below(4)) {
      case 0:
        slow.push_back(std::move(connection));
        if (slow.size() > 20) slow.erase(slow.begin());
        break;
      case 1:
        break;  // gone, with answers on their way
      default:
        ::shutdown(connection.get(), SHUT_WR);
        read_answers(connection);
    }
    for (const Descriptor& one : slow) {
      [[maybe_unused]] const ssize_t n = ::send(one.get(), "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

class KnownHostile : public Hostile {
 protected:
  // What is submitted is read, as a service does.
  KnownHostile() : Hostile(true) {
    api.check_submission(
        [this](const Submission& s, nlohmann::json& spec, const Principal&, const Beginning*) {
          const auto read = specs.read(s.kind, spec);
          check_spec(s, read->work, read->plans, kDevices, kDevices);
        });
  }
  ~KnownHostile() override { server.reset(); }  // which reads with what is of this class

  std::string token_for(const std::string& name, Role role) {
    const std::string made = make_token();
    queue.commit([&](Change& change) {
      change.add_token({0, name, role, "", digest_of_token(made), 1, {}, {}}, "test");
    });
    api.load_tokens();
    return made;
  }
  void attack_as(const std::string& who, uint64_t seed);
  void ask(const Descriptor& to, const std::string& who, Rng& rng);
  void read_errors(const Descriptor& from);

  static constexpr int64_t kDevices = 4;
  SpecReader specs;
  std::set<std::string> faults;  // answers that nobody may get, whatever was asked
};

// What is nearly right becomes a little wrong.
std::string spoilt(Rng& rng, std::string text) {
  for (uint32_t n = rng.below(5); n > 0 && !text.empty(); --n) {
    const size_t at = rng.below(static_cast<uint32_t>(text.size()));
    const size_t count = std::min<size_t>(text.size() - at, 1 + rng.below(12));
    switch (rng.below(5)) {
      case 0:
        text[at] = static_cast<char>(rng.below(256));
        break;
      case 1:
        text.erase(at, count);
        break;
      case 2:
        text.insert(at, text.substr(at, count));
        break;
      case 3:
        text.insert(at, pick(rng, {"-", "9999999999999999999", "1e308", "0.5", "null", "true",
                                   "{\"a\":", "[", "\\u0000", "\\ud800", "\"", "NaN"}));
        break;
      default:
        text.insert(at, noise(rng, 8));
    }
  }
  return text;
}

constexpr const char* kJob = "[train]\nvirtual_ranks = 4\nbatch_size = 64\n";

// Of jobs, of arrays of them, by plans, and of other things.
std::string known_body(Rng& rng) {
  const std::string job = "\"spec\":" + dump_json(Json{{"job", kJob}}) + "}";
  return pick(
      rng, {R"({"name":"mine",)" + job, R"({"name":"mine","team":"vision","tier":"premium",)" + job,
            R"({"name":"mine","kind":"command","spec":{"command":["/bin/true"],"directory":"/"}})",
            R"({"name":"m","min_devices":3,"max_devices":9,"region":"r","transfer":1e3,)"
            R"("movable":false,"spec":{"job":"[train]"}})",
            R"({"name":"mine","held":true,"after":[1],)" + job,
            R"({"name":"mine","array":[{"index":0,)" + job + R"(,{"index":7,)" + job + "]}",
            R"({"name":"mine","max_devices":4,"spec":{"job":"[train]\nbatch_size = 64\n","plans":[)"
            R"({"virtual_ranks":4,"pipelined":"replicas = 2\nmicro_batches = 4\n","seconds":1,)"
            R"("plan":"{}"},{"virtual_ranks":2,"pipelined":"","seconds":2.5}]}})",
            R"({"name":"mine","kind":"serve","spec":{"run":"/nowhere","model":"m","max_batch":8}})",
            R"({"min_devices":2,"max_devices":4})", R"({"reason":"r","in":5,"for":60})",
            R"({"name":"eve","role":"admin","seconds":60})", R"({"version":3})", "{}", "[]", "null",
            "1e999", ""});
}

std::string known_request(Rng& rng, const std::string& token, uint16_t port) {
  const bool posts = rng.below(2) == 0;
  std::string path =
      posts
          ? pick(rng,
                 {"/v1/jobs", "/v1/jobs", "/v1/jobs", "/v1/jobs/1/cancel", "/v1/jobs/1/pause",
                  "/v1/jobs/1/resize", "/v1/jobs/1/reload", "/v1/jobs/mine/resume",
                  "/v1/jobs/mine/cancel", "/v1/jobs/mine/resize", "/v1/nodes/a/drain",
                  "/v1/nodes/a/undrain", "/v1/tokens", "/v1/tokens/ada/revoke", "/v1/page/links"})
          : pick(rng, {"/v1/jobs", "/v1/jobs?live=1&limit=3", "/v1/jobs?part=%25&before=7",
                       "/v1/jobs?phase=queued&name=mine-*", "/v1/jobs/1", "/v1/jobs/mine",
                       "/v1/jobs/mine-7/metrics", "/v1/jobs/1/curves?known=0-0",
                       "/v1/jobs/1/log?from=99999999999", "/v1/jobs/1/options",
                       "/v1/events?limit=5&after=9223372036854775807", "/v1/events?newest=3&job=1",
                       "/v1/nodes", "/v1/overview", "/v1/allocations?since=1", "/v1/accounts",
                       "/v1/tokens", "/metrics", "/v1/openapi.json"});
  if (rng.below(6) == 0) {
    path = spoilt(rng, path);
    std::erase_if(path, [](char c) { return c == ' ' || c == '\r' || c == '\n'; });
    if (!path.starts_with('/')) path.insert(0, 1, '/');
  }
  std::string body;
  if (posts) {
    body = known_body(rng);
    if (rng.below(2) == 0) body = spoilt(rng, std::move(body));
  }
  std::string head = (posts ? "POST " : "GET ") + path +
                     " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) +
                     "\r\nAuthorization: Bearer " + token + "\r\n";
  if (posts) head += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  if (posts && rng.below(3) == 0)
    head += "Idempotency-Key: key" + std::to_string(rng.below(50)) + "\r\n";
  return head + "\r\n" + body;
}

// Every answer is whole and says what was wrong: no request makes the service fail.
void KnownHostile::read_errors(const Descriptor& from) {
  const std::string text = all_that_comes(from);
  for (size_t at = text.find("HTTP/1.1 "); at != std::string::npos;
       at = text.find("HTTP/1.1 ", at + 1)) {
    ++answered;
    const std::string status = text.substr(at + 9, 3);
    if (status.size() < 3 || status[0] == '2' || status[0] == '4' || status == "503") continue;
    const std::lock_guard lock(mutex);
    faults.insert(text.substr(at, 400));
  }
}

// A few requests, one behind the other, on one connection.
void KnownHostile::ask(const Descriptor& to, const std::string& who, Rng& rng) {
  std::string text;
  for (uint32_t n = 1 + rng.below(8); n > 0; --n) {
    text += known_request(rng, who, server->port());
    ++sent;
  }
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::send(to.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (n <= 0) break;  // what is ambiguous ends the connection
    done += static_cast<size_t>(n);
  }
}

void KnownHostile::attack_as(const std::string& who, uint64_t seed) {
  std::vector<std::thread> attackers;
  sent = answered = 0;
  for (int i = 0; i < kAttackers; ++i)
    attackers.emplace_back([&, i] {
      Rng rng(seed, static_cast<uint64_t>(i));
      while (sent < wanted / 2) {
        const Descriptor connection = connect(server->port());
        if (!connection) continue;
        ask(connection, who, rng);
        if (rng.below(8) == 0) continue;  // gone, with answers on their way
        ::shutdown(connection.get(), SHUT_WR);
        read_errors(connection);
      }
    });
  for (std::thread& attacker : attackers) attacker.join();
}

// Whom the service knows gets further than strangers: to the routes, the bodies and the store.
TEST_F(KnownHostile, WhoMayOnlyReadChangesNothingAndWhoMaySubmitOnlyWhatIsHis) {
  const std::string reads = token_for("rita", Role::read), submits = token_for("sue", Role::submit);
  const Client honest(
      Access{"https://127.0.0.1:" + std::to_string(server->tls_port()), server->pin(), token});
  honest.post("/v1/jobs", {{"name", "hers"}, {"spec", {{"job", kJob}}}});
  Reader reader(file);
  const Revision before = reader.last_event();
  attack_as(reads, 1);
  EXPECT_EQ(reader.last_event(), before);
  EXPECT_GT(answered, wanted / 8);
  fmt::print("{} texts sent, {} answers read; ", sent.load(), answered.load());
  attack_as(submits, 2);
  EXPECT_GT(answered, wanted / 8);
  fmt::print("{} texts sent, {} answers read\n", sent.load(), answered.load());
  EXPECT_TRUE(faults.empty()) << faults.size() << " answers, such as\n" << *faults.begin();
  const std::vector<JobRecord> jobs = reader.jobs({}, 0, 1'000'000);
  EXPECT_GT(jobs.size(), 1u);
  for (const JobRecord& job : jobs) {
    const Submission& s = job.submission;
    EXPECT_EQ(s.owner, job.id == 1 ? "ada" : "sue");
    EXPECT_TRUE(s.tier != "premium" && s.kind != "command") << job.id;
  }
  const JobRecord hers = reader.find("1");
  EXPECT_EQ(hers.wish, Wish::run);
  EXPECT_EQ(hers.submission.max_devices, 1);
  EXPECT_TRUE(reader.drains().empty());
  ASSERT_EQ(reader.tokens().size(), 3u);
  for (const auto& known : reader.tokens()) EXPECT_FALSE(known.revoked);
  EXPECT_TRUE(reader.check().empty()) << ::testing::PrintToString(reader.check());
  EXPECT_EQ(honest.get("/v1/jobs/1").at("name"), "hers");
}

TEST_F(Hostile, NobodyGetsInNothingStopsAndNothingGrows) {
  const Client honest(
      Access{"https://127.0.0.1:" + std::to_string(server->tls_port()), server->pin(), token});
  const Client local(folder.path());
  // A name may be any text on one line; it comes back as JSON, which no browser takes for a page.
  const std::string name = "<img src=x onerror=alert(1)>\"'&";
  honest.post("/v1/jobs", {{"name", name}, {"spec", Json::object()}});
  honest.get("/v1/jobs");
  const auto run = [&] {
    std::vector<std::thread> attackers;
    const uint64_t round = static_cast<uint64_t>(sent.load());
    for (int i = 0; i < kAttackers; ++i)
      attackers.emplace_back([this, seed = round + static_cast<uint64_t>(i)] { attack(seed); });
    int64_t served = 0;
    std::string failure;
    try {
      while (sent < wanted) {  // whoever is known is served all the while
        EXPECT_EQ(honest.get("/v1/jobs/1").at("name"), name);
        EXPECT_EQ(local.get("/v1/jobs/1").at("name"), name);
        ++served;
      }
    } catch (const std::exception& error) {
      failure = error.what();
      sent = wanted;
    }
    for (std::thread& attacker : attackers) attacker.join();
    EXPECT_EQ(failure, "");
    EXPECT_GT(served, 0);
  };
  run();  // what a server takes once, such as stacks and caches, is taken now
  // Who was slow is gone; a stream whose client left is noticed when it is told something again.
  const auto settle = [&](int64_t most) {
    for (int i = 0; i < 3000 && open_files() > most; ++i) std::this_thread::sleep_for(20ms);
  };
  settle(40);
  const int64_t files = open_files(), bytes = resident_bytes();
  sent = 0;
  run();
  settle(files + 8);
  EXPECT_LE(open_files(), files + 8);
  EXPECT_LE(resident_bytes(), bytes + (int64_t{48} << 20));
  // The first text of a connection that is no request ends it, and half of all answers are read.
  fmt::print("{} texts sent, {} answers read\n", sent.load(), answered.load());
  EXPECT_GT(answered, 0);
  EXPECT_TRUE(let_in.empty()) << let_in.size() << " answers, such as\n" << *let_in.begin();
  Reader reader(file);
  EXPECT_EQ(reader.live_jobs().size(), 1u);
  EXPECT_EQ(reader.live_jobs().at(0).wish, Wish::run);
  EXPECT_TRUE(reader.drains().empty());
  ASSERT_EQ(reader.tokens().size(), 1u);
  EXPECT_FALSE(reader.tokens()[0].revoked);
  EXPECT_TRUE(reader.check().empty());
}

}  // namespace
}  // namespace ductile::cluster
