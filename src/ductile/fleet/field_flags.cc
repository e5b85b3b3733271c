// What a service says of a request's fields, in the words of the command line.
#include <span>
#include <string>
#include <string_view>

#include "ductile/base/error.h"
#include "ductile/fleet/service_request_impl.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr FieldFlag kFlags[] = {
    {"min_devices", "--min"},
    {"max_devices", "--max"},
    {"name", "--name"},
    {"team", "--team"},
    {"tier", "--tier"},
    {"role", "--role"},
    {"region", "--region"},
    {"transfer", "--transfer"},
    {"movable", "--stay"},
    {"after", "--after"},
    {"array", "--array"},
    {"gpus", "--gpus"},
    {"environment", "--env"},
    {"retries", "--retries"},
    {"time_limit", "--time-limit"},
    {"grace", "--grace"},
    {"port", "--port"},
    {"version", "--checkpoint"},
    {"max_batch", "--max-batch"},
    {"target", "--target"},
    {"reason", "--reason"},
    {"in", "--in"},
    {"for", "--for"},
};

// The text, where it begins with the field; empty: it does not. Words that are no field may stand
// at its beginning, too, unless it says that it is about the body.
std::string said_of(const FieldFlag& field, std::string_view text, bool of_body) {
  if (!text.starts_with(field.field)) return "";
  const std::string_view rest = text.substr(field.field.size());
  constexpr std::string_view kIs = " = ", kIsNot = " = false";
  const std::string flag(field.flag);
  if (rest.starts_with(kIsNot)) return flag + std::string(rest.substr(kIsNot.size()));
  if (rest.starts_with(kIs)) return flag + " " + std::string(rest.substr(kIs.size()));
  const bool ends = rest.starts_with(' ') || rest.starts_with(':');
  return of_body && ends ? flag + std::string(rest) : "";
}

}  // namespace

std::string with_flags(const std::string& text, std::span<const FieldFlag> own) {
  std::string_view rest = text;
  bool of_body = false;
  for (const std::string_view where : {"body: ", "spec: "}) {
    if (of_body || !rest.starts_with(where)) continue;
    rest.remove_prefix(where.size());
    of_body = true;
  }
  for (const std::span<const FieldFlag> fields : {own, std::span<const FieldFlag>(kFlags)})
    for (const FieldFlag& field : fields)
      if (std::string said = said_of(field, rest, of_body); !said.empty()) return said;
  return text;
}

Json post_flags(const cluster::Client& client, const std::string& path, const nlohmann::json& body,
                std::span<const FieldFlag> own) {
  try {
    return client.post(path, body);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument && error.code() != ErrorCode::conflict) throw;
    fail(error.code(), "{}", with_flags(error.message(), own));
  }
}

}  // namespace ductile::cli
