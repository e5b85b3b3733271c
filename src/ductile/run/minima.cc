#include "ductile/run/minima.h"

#include <utility>

#include "ductile/base/clock.h"
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
  measurement["time"] = wall_seconds();
  JsonLines(minima_file(folder)).append(measurement);
}

}  // namespace ductile::run
