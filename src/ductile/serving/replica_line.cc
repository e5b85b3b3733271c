#include "ductile/serving/replica_line.h"

#include "ductile/base/json_value.h"
#include "ductile/run/progress.h"

namespace ductile::serving {

std::optional<ReplicaLine> read_replica_line(std::string_view line) {
  const auto known = run::decode(line);
  if (!known) return std::nullopt;
  ReplicaLine out;
  if (const auto* failed = std::get_if<run::Failed>(&*known))
    out.failed.emplace(failed->code, failed->text);
  const auto* row = std::get_if<run::Row>(&*known);
  if (row == nullptr) return out;
  const nlohmann::json& values = row->values;
  if (const auto told = values.find("told"); told != values.end() && told->is_string())
    out.told = told->get<std::string>();
  if (const auto address = values.find("address");
      address != values.end() && address->is_string()) {
    out.address = address->get<std::string>();
    const auto version = values.find("version");
    if (version != values.end() && version->is_number_integer())
      out.version = version->get<int64_t>();
    if (const auto place = values.find("place"); place != values.end() && place->is_string())
      out.place = place->get<std::string>();
    if (const auto door = values.find("door"); door != values.end() && door->is_string())
      out.door = door->get<std::string>();
  }
  return out;
}

}  // namespace ductile::serving
