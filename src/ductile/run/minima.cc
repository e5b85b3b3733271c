#include "ductile/run/minima.h"

#include <chrono>
#include <utility>

#include "ductile/base/json_value.h"
#include "ductile/run/json_lines.h"

namespace ductile::run {

std::vector<nlohmann::json> read_minima(const RunFolder& folder) {
  std::vector<nlohmann::json> out;
  for_each_json_line(minima_file(folder),
                     [&](nlohmann::json& line) { out.push_back(std::move(line)); });
  return out;
}

void append_minimum(const RunFolder& folder, nlohmann::json measurement) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  measurement["time"] = std::chrono::duration<double>(now).count();
  JsonLines(minima_file(folder)).append(measurement);
}

}  // namespace ductile::run
