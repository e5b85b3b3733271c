#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace ductile::cluster {

// Figures in the text format of Prometheus (version 0.0.4).
class MetricsText {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Begins a metric; its samples follow. `type`: gauge, counter or histogram.
  void begin(std::string_view name, std::string_view type, std::string_view help);
  void sample(const Labels& labels, double value, std::string_view suffix = "");
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

// What the interface counts of the requests that it answers. Thread-safe. There are as many series
// as routes and codes, whatever clients send.
class RequestCounts {
 public:
  // `route`: its path in the table, which outlives this; empty: refused before it was looked at.
  void count(std::string_view method, std::string_view route, int status, double seconds);
  void write(MetricsText& out) const;

 private:
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                         0.1,   0.25,   0.5,   1.0,  2.5,   10.0};
  struct Route {
    std::map<int, int64_t> by_code;
    std::array<int64_t, kBounds.size()> up_to{};  // by bound, each with all that are smaller
    int64_t count = 0;
    double seconds = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::pair<std::string_view, std::string_view>, Route> routes_;
};

// Of this process.
void write_process_metrics(MetricsText& out);

}  // namespace ductile::cluster
