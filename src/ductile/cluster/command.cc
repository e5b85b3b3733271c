#include <algorithm>
#include <cmath>
#include <string_view>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/paths.h"
#include "ductile/cluster/command_impl.h"

namespace ductile::cluster {
namespace {

using Kind = AttemptEnd::Kind;

constexpr std::pair<Kind, std::string_view> kKinds[] = {
    {Kind::exited, "exited"}, {Kind::killed, "killed"},   {Kind::stopped, "stopped"},
    {Kind::late, "late"},     {Kind::refused, "refused"}, {Kind::lost, "lost"},
};

constexpr int64_t kMostGpus = 1024;

fs::path attempt_file(const fs::path& run) { return run / "attempt.json"; }

// Opening a FIFO would wait for ever. (To read a folder fails at once, as any read may for a
// while.)
void require_no_special_file(const fs::path& file) {
  if (kind_of(file) != FileKind::other) return;
  fail(ErrorCode::data_loss, "{}: it is {}, and a run has a file there; remove it", file.string(),
       kind_text(file));
}

// A text that can be an argument or a variable of a program.
void require_no_zero(const std::string& text, std::string_view what) {
  if (text.find('\0') != std::string::npos)
    fail(ErrorCode::invalid_argument, "spec: {} has a zero byte", what);
}

}  // namespace

CommandSpec command_of(const nlohmann::json& spec) {
  const JsonFields fields(spec, "spec");
  fields.only({"command", "directory", "environment", "retries", "time_limit", "grace", "gpus"});
  CommandSpec out;
  for (const nlohmann::json& word : fields.array("command")) {
    if (!word.is_string()) fields.wrong("command", "a list of texts", word);
    out.command.push_back(word.get<std::string>());
    require_no_zero(out.command.back(), "command");
  }
  if (out.command.empty() || out.command.front().empty())
    fail(ErrorCode::invalid_argument, "spec: command names no program");
  out.directory = fields.text("directory");
  require_no_zero(out.directory.string(), "directory");
  if (!out.directory.is_absolute())
    fail(ErrorCode::invalid_argument, "spec: directory = \"{}\": an absolute path is wanted",
         out.directory.string());
  if (fields.has("environment")) {
    const nlohmann::json& environment = fields.at("environment");
    if (!environment.is_object()) fields.wrong("environment", "an object", environment);
    for (const auto& [name, value] : environment.items()) {
      if (!value.is_string()) fields.wrong("environment", "an object of texts", value);
      require_no_zero(name + value.get<std::string>(), "environment");
      if (name.empty() || name.find('=') != std::string::npos)
        fail(ErrorCode::invalid_argument,
             "spec: environment: \"{}\" is no name of a variable; it must not be empty or have "
             "\"=\"",
             name);
      out.environment.emplace_back(name, value.get<std::string>());
    }
  }
  out.retries = fields.integer_or("retries", 0, 0, 1000);
  if (fields.has("time_limit")) out.time_limit = fields.number("time_limit", 0, 1e9);
  if (fields.has("grace")) out.grace = fields.number("grace", 0, 86400);
  out.gpus = fields.integer_or("gpus", 0, 0, kMostGpus);
  return out;
}

nlohmann::json to_json(const CommandSpec& command) {
  nlohmann::json environment = nlohmann::json::object();
  for (const auto& [name, value] : command.environment) environment[name] = value;
  nlohmann::json out = {
      {"command", command.command},       {"directory", command.directory.string()},
      {"environment", environment},       {"retries", command.retries},
      {"time_limit", command.time_limit}, {"grace", command.grace}};
  if (command.gpus > 0) out["gpus"] = command.gpus;  // an older program knows no such key
  return out;
}

Attempt look_at_attempt(const fs::path& run) {
  require_no_special_file(attempt_file(run));
  return read_attempt(run);
}

Attempt read_attempt(const fs::path& run) try {
  Attempt out;
  const fs::path file = attempt_file(run);
  if (kind_of(file) == FileKind::none) return out;
  const nlohmann::json json = parse_json(read_file(file), file.string(), ErrorCode::data_loss);
  const JsonFields fields(json, file.string());
  fields.read("number", out.number);
  fields.read("fence", out.fence);
  fields.read("failures", out.failures);
  if (!fields.has("end")) return out;
  const JsonFields end(fields.at("end"), file.string() + ": end");
  out.end.emplace();
  end.read("kind", out.end->kind, kKinds);
  out.end->code = static_cast<int>(end.integer("code", 0, 255));
  out.end->signal = static_cast<int>(end.integer("signal", 0, 1000));
  end.read("text", out.end->text);
  return out;
} catch (const Error& error) {
  if (error.code() != ErrorCode::invalid_argument) throw;
  fail(ErrorCode::data_loss, "{}", error.what());
}

void write_attempt(const fs::path& run, const Attempt& attempt) {
  nlohmann::json json = {
      {"number", attempt.number}, {"fence", attempt.fence}, {"failures", attempt.failures}};
  if (attempt.end) {
    const auto named =
        std::ranges::find(kKinds, attempt.end->kind, [](const auto& known) { return known.first; });
    json["end"] = {{"kind", named->second},
                   {"code", attempt.end->code},
                   {"signal", attempt.end->signal},
                   {"text", attempt.end->text}};
  }
  write_file_atomic(attempt_file(run), dump_json(json, 1));
}

void write_orders(const fs::path& run, const KeeperOrders& orders) {
  write_file_atomic(run / "orders.json",
                    dump_json(nlohmann::json{{"attempt", orders.attempt},
                                             {"keeper", orders.keeper},
                                             {"node", orders.node},
                                             {"withdrawn", orders.withdrawn},
                                             {"lease", orders.lease},
                                             {"command", to_json(orders.command)}},
                              1));
}

std::optional<KeeperOrders> read_orders(const fs::path& run) try {
  const fs::path file = run / "orders.json";
  require_no_special_file(file);
  if (kind_of(file) == FileKind::none) return std::nullopt;
  const nlohmann::json json = parse_json(read_file(file), file.string(), ErrorCode::data_loss);
  const JsonFields fields(json, file.string());
  KeeperOrders out;
  fields.read("attempt", out.attempt);
  out.keeper = static_cast<uint64_t>(fields.integer("keeper", 1, INT64_MAX));
  fields.read("node", out.node);
  fields.read("withdrawn", out.withdrawn);
  out.lease = fields.number("lease", 0, 1e9);
  out.command = command_of(fields.at("command"));
  return out;
} catch (const Error& error) {
  if (error.code() != ErrorCode::invalid_argument) throw;
  fail(ErrorCode::data_loss, "{}", error.what());
}

bool may_run(const KeeperOrders& orders, const Attempt& last) {
  if (orders.withdrawn && orders.lease <= 0) return false;
  return !last.end || last.number < orders.attempt;
}

}  // namespace ductile::cluster
