#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ductile::serving {

// Counts of values by size, as Prometheus has them.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)) {
    counts_.resize(bounds_.size() + 1);
  }

  void add(double value);
  // The lines of the text format; `labels` may be empty, or is like `model="a"`.
  std::string text(std::string_view name, std::string_view help) const;

 private:
  std::vector<double> bounds_;  // rising
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

// What `GET /metrics` tells. Of one thread.
struct Metrics {
  std::map<int, int64_t> answers;  // of inference requests, by status
  Histogram request_seconds{{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10}};
  Histogram batch_seconds{{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}};
  Histogram batch_samples{{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}};
  int64_t samples = 0, filled = 0;  // run, and run only to fill a batch up
  double busy_seconds = 0;          // that the model ran
  int64_t reloads = 0, refused_reloads = 0;
  // As they are now.
  int64_t waiting = 0, connections = 0, version = 0, in_flight = 0;

  std::string text() const;
};

}  // namespace ductile::serving
