// The textual ways in: TOML files, "key=value" assignments, environment variables.
#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/options.h"
#include "ductile/base/text.h"
#include "ductile/base/toml.h"

namespace ductile {
namespace {

using Json = nlohmann::json;
using Lines = std::map<std::string, uint32_t>;  // dotted path -> line

Json node_to_json(const toml::node& node, const std::string& path, Lines& lines) {
  lines[path] = node.source().begin.line;
  if (const toml::table* table = node.as_table()) {
    Json out = Json::object();
    for (const auto& [key, item] : *table) {
      const std::string name(key.str());
      out[name] = node_to_json(item, path.empty() ? name : path + "." + name, lines);
    }
    return out;
  }
  if (const toml::array* array = node.as_array()) {
    Json out = Json::array();
    for (const toml::node& item : *array) out.push_back(node_to_json(item, path + "[]", lines));
    return out;
  }
  if (auto v = node.value_exact<bool>()) return *v;
  if (auto v = node.value_exact<int64_t>()) return *v;
  if (auto v = node.value_exact<double>()) return *v;
  if (auto v = node.value_exact<std::string>()) return *v;
  std::ostringstream text;  // a date or time; no option has such a type
  text << "date or time (line " << node.source().begin.line << ")";
  return Json::array({text.str(), nullptr});
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return out;
}

}  // namespace

void OptionSet::read_toml(const std::filesystem::path& file) {
  read_toml_text(read_file(file), file.string());
}

void OptionSet::read_toml_text(std::string_view text, std::string_view name) {
  Lines lines;
  const Json value = node_to_json(parse_toml(text, name), "", lines);
  read_table(value, "", [&](const std::string& path) {
    const auto found = lines.find(path);
    return found == lines.end() ? std::string(name) : fmt::format("{}:{}", name, found->second);
  });
}

void OptionSet::set(std::string_view assignment, std::string_view origin) {
  const size_t equals = assignment.find('=');
  const std::string where = fmt::format("{} {}", origin, to_utf8(assignment));
  if (const size_t at = find_not_utf8(assignment); at != std::string_view::npos) {
    fail(ErrorCode::invalid_argument, "{}: not UTF-8 text (byte {} is {:#04x})", where, at + 1,
         static_cast<unsigned char>(assignment[at]));
  }
  if (equals == std::string_view::npos || equals == 0) {
    fail(ErrorCode::invalid_argument, "{}: write key=value, for example train.epochs=5", where);
  }
  std::string_view key = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  const auto trim = [](std::string_view& v) {
    while (!v.empty() && v.front() == ' ') v.remove_prefix(1);
    while (!v.empty() && v.back() == ' ') v.remove_suffix(1);
  };
  trim(key);
  trim(text);
  OptionField& field = require(key, where);
  const bool is_string = std::holds_alternative<std::string*>(field.ref);
  const bool is_quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'');
  if (is_string && !is_quoted) {
    assign(field, Json(std::string(text)), where, {std::string(origin)});
    return;
  }
  Json value;
  try {
    Lines lines;
    value =
        node_to_json(parse_toml(fmt::format("value = {}\n", text), origin), "", lines).at("value");
  } catch (const Error&) {
    value = std::string(text);  // assign then says which type was wanted
  }
  assign(field, value, where, {std::string(origin)});
}

void OptionSet::read_environment(const char* const* environment, std::string_view prefix) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (!entry.starts_with(prefix) || equals == std::string_view::npos) continue;
    const std::string_view variable = entry.substr(0, equals);
    const std::string_view name = variable.substr(prefix.size());
    const std::string origin = fmt::format("environment {}", variable);
    const OptionField* found = nullptr;
    for (const OptionField& f : fields_) {
      std::string spelled;
      for (char c : f.path) spelled += c == '.' ? "__" : std::string(1, c);
      if (upper(spelled) == name) found = &f;
    }
    if (found != nullptr) {
      set(fmt::format("{}={}", found->path, entry.substr(equals + 1)), origin);
    } else if (name.find("__") != std::string_view::npos) {
      std::string path;
      for (size_t i = 0; i < name.size(); ++i) {
        const bool separator = name.substr(i, 2) == "__";
        path += separator ? '.' : static_cast<char>(std::tolower(name[i]));
        i += separator;
      }
      require(path, origin);  // throws, with the nearest name
    }
  }
}

}  // namespace ductile
