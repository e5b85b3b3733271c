#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

// A reader of the text format of Prometheus, written from its documentation ("Exposition formats",
// version 0.0.4) and from nothing of ours: it refuses what that page does not allow.
namespace ductile::cluster::testing {

struct MetricsSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct MetricsFamily {
  std::string type, help;
  std::vector<MetricsSample> samples;
};

// By name of the family. Throws std::runtime_error, with the line.
std::map<std::string, MetricsFamily> parse_metrics(std::string_view text);

}  // namespace ductile::cluster::testing
