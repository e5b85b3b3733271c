#include "ductile/link/saved_state.h"

#include <span>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/run/tensorboard.h"

namespace ductile::link {
namespace {

using nlohmann::json;

std::string checksum_of(const std::string& text) {
  return fmt::format("{:08x}", run::crc32c(std::as_bytes(std::span(text))));
}

}  // namespace

fs::path state_file(const fs::path& run) { return run / "membership.json"; }

std::string sealed(const json& state) {
  const std::string text = dump_json(state);
  return fmt::format("{{\"checksum\":\"{}\",\"state\":{}}}\n", checksum_of(text), text);
}

std::string state_remedy(const fs::path& file) {
  return fmt::format(
      "remove {} to go on from the run's last checkpoint (say --workers N again: it was in there)",
      file.string());
}

std::optional<json> read_state(const fs::path& file) {
  if (kind_of(file) == FileKind::none) return std::nullopt;
  const json value = parse_json(read_file(file));
  if (!value.is_object())
    fail(ErrorCode::data_loss, "{}: not a saved state of a job; {}", file.string(),
         state_remedy(file));
  if (!value.contains("state")) return value;
  if (!value.contains("checksum") || value["checksum"] != checksum_of(dump_json(value["state"])))
    fail(ErrorCode::data_loss, "{}: damaged, its checksum is another one; {}", file.string(),
         state_remedy(file));
  return value["state"];
}

}  // namespace ductile::link
