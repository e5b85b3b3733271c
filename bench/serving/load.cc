// Clients of an HTTP server, each of which sends its next request when it has its answer.
// Usage: serving_load PORT CLIENTS SECONDS WARM_UP REQUEST_FILE
// The file holds the bytes of one request. Prints a line of JSON: requests per second, the 50th and
// 99th percentile of the time to an answer in milliseconds, and answers other than 200.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/net/loop.h"
#include "ductile/serving/http_message.h"

namespace {

using namespace ductile;
using net::Clock;
using serving::HttpReader;

struct Load {
  net::Loop loop;
  std::string request;
  net::Deadline from, until;
  std::vector<double> milliseconds;
  int64_t answers = 0, failed = 0;  // with those of the warm-up
};

class Client {
 public:
  Client(Load& load, uint16_t port)
      : load_(load),
        socket_(net::connect({"127.0.0.1", port}, {}, Clock::now() + std::chrono::seconds(10))) {
    watch_ = load_.loop.watch(socket_.fd(), net::Interest::read, [this](net::Ready) { read(); });
    ask();
  }

 private:
  void ask() {
    reader_ = HttpReader(HttpReader::Kind::response);
    asked_ = Clock::now();
    socket_.write_all(std::as_bytes(std::span(load_.request)), asked_ + std::chrono::seconds(60));
  }

  void read() {
    char block[65536];
    const ssize_t n = ::recv(socket_.fd(), block, sizeof block, MSG_DONTWAIT);
    if (n < 0) return;
    reader_.take(std::string_view(block, static_cast<size_t>(n)));
    if (n == 0 || reader_.fault()) {
      ++load_.failed;
      return watch_.end();
    }
    if (!reader_.whole()) return;
    const auto now = Clock::now();
    ++load_.answers;
    if (reader_.response().status != 200) ++load_.failed;
    if (now >= load_.from && now < load_.until)
      load_.milliseconds.push_back(std::chrono::duration<double, std::milli>(now - asked_).count());
    if (now < load_.until) ask();
  }

  Load& load_;
  net::Socket socket_;
  net::Loop::Watch watch_;
  HttpReader reader_{HttpReader::Kind::response};
  net::Deadline asked_;
};

double percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(share * static_cast<double>(sorted.size())))];
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) {
    std::fputs("usage: serving_load PORT CLIENTS SECONDS WARM_UP REQUEST_FILE\n", stderr);
    return 2;
  }
  Load load;
  load.request = read_file(argv[5]);
  const double seconds = std::atof(argv[3]), warm_up = std::atof(argv[4]);
  const auto after = [](double s) {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
  };
  load.from = after(warm_up);
  load.until = after(warm_up + seconds);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = std::atoi(argv[2]); i > 0; --i)
    clients.push_back(std::make_unique<Client>(load, static_cast<uint16_t>(std::atoi(argv[1]))));
  load.loop.run_until(load.until);
  std::sort(load.milliseconds.begin(), load.milliseconds.end());
  std::printf(
      "{\"requests_per_second\": %.1f, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"answers\": %lld, "
      "\"failed\": %lld}\n",
      static_cast<double>(load.milliseconds.size()) / seconds, percentile(load.milliseconds, 0.5),
      percentile(load.milliseconds, 0.99), static_cast<long long>(load.answers),
      static_cast<long long>(load.failed));
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "serving_load: %s\n", e.what());
  return 1;
}
