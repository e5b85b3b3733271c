#include <cerrno>
#include <charconv>
#include <system_error>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/net/secret.h"
#include "ductile/server/pilot.h"
#include "ductile/server/pilot_impl.h"

namespace ductile::server {
namespace {

using nlohmann::json;

fs::path place_of(const fs::path& folder, const std::string& node) {
  return folder / "pilots" / node;
}

// What is there, or nothing; an unreadable file is an error.
std::optional<json> read_record(const fs::path& file) {
  if (::access(file.c_str(), F_OK) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    fail_errno(file.string(), errno);
  }
  return parse_json(read_file(file), file.string(), ErrorCode::data_loss);
}

}  // namespace

fs::path PilotTicket::path() const { return place_of(folder, node) / std::to_string(generation); }

PilotTicket PilotTicket::at(const fs::path& path) {
  PilotTicket out;
  const std::string number = path.filename().string();
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), out.generation);
  out.node = path.parent_path().filename().string();
  out.folder = path.parent_path().parent_path().parent_path();
  if (error != std::errc() || end != number.data() + number.size() || !path.is_absolute() ||
      out.path() != path)
    fail(ErrorCode::invalid_argument,
         "'{}' is no ticket of a pilot; the service's batch script gives FOLDER/pilots/NODE/NUMBER",
         path.string());
  return out;
}

void issue(const PilotTicket& ticket) {
  const uint64_t before = current_generation(ticket.folder, ticket.node);
  const fs::path path = ticket.path();
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_errno(path.string() + ": tickets of pilots are kept there", error.value());
  if (::access((path / "secret").c_str(), F_OK) != 0) net::Secret::create_file(path / "secret");
  write_file_atomic(place_of(ticket.folder, ticket.node) / "current",
                    dump_json(json{{"generation", ticket.generation}}) + "\n");
  if (before != 0 && before != ticket.generation) withdraw({ticket.folder, ticket.node, before});
}

void withdraw(const PilotTicket& ticket) {
  std::error_code error;
  fs::remove(ticket.path() / "secret", error);
  if (error) fail_errno((ticket.path() / "secret").string(), error.value());
}

uint64_t current_generation(const fs::path& folder, const std::string& node) {
  const fs::path file = place_of(folder, node) / "current";
  const std::optional<json> record = read_record(file);
  if (!record) return 0;
  try {
    return record->at("generation").get<uint64_t>();
  } catch (const json::exception& e) {
    fail(ErrorCode::data_loss,
         "{}: {}; cancel the pilots of this node (scancel), and remove the file's folder",
         file.string(), e.what());
  }
}

std::optional<PilotClaim> claim_of(const PilotTicket& ticket) {
  const fs::path file = ticket.path() / "claim";
  const std::optional<json> record = read_record(file);
  if (!record) return std::nullopt;
  try {
    return PilotClaim{record->at("job"), record->at("machine"), record->at("address"),
                      record->at("port")};
  } catch (const json::exception& e) {
    fail(ErrorCode::data_loss, "{}: {}; the pilot is given up, cancel its job", file.string(),
         e.what());
  }
}

bool has_notice(const PilotTicket& ticket) {
  return ::access((ticket.path() / "notice").c_str(), F_OK) == 0;
}

bool is_withdrawn(const PilotTicket& ticket) {
  return ::access((ticket.path() / "secret").c_str(), F_OK) != 0 &&
         (errno == ENOENT || errno == ENOTDIR);
}

// A link is made by one of those that try, also on network file systems, and is whole at once.
void claim(const PilotTicket& ticket, const PilotClaim& by) {
  const fs::path file = ticket.path() / "claim";
  const fs::path mine = ticket.path() / fmt::format("claim.{}.{}", by.machine, ::getpid());
  write_file_atomic(
      mine,
      dump_json(json{
          {"job", by.job}, {"machine", by.machine}, {"address", by.address}, {"port", by.port}}) +
          "\n");
  const int error = ::link(mine.c_str(), file.c_str()) == 0 ? 0 : errno;
  std::error_code ignored;
  fs::remove(mine, ignored);
  if (error == EEXIST)
    fail(ErrorCode::conflict,
         "pilot of {}, generation {}: another pilot has this ticket; the batch system started job "
         "{} twice, and this copy ends",
         ticket.node, ticket.generation, by.job);
  if (error != 0) fail_errno(file.string(), error);
}

net::Identity pilot_identity(const PilotTicket& ticket) {
  return {"pilot", ticket.node, ticket.generation, -1, 0};
}

net::Identity caller_identity(const PilotTicket& ticket) {
  return {"service", ticket.node, ticket.generation, -1, 0};
}

}  // namespace ductile::server
