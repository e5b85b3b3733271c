// The textual ways in: TOML files, "key=value" assignments, environment variables.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
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

// A number so close to 0 that a double holds 0 in its place, as it is written.
struct LostNumber {
  uint32_t line = 0;
  std::string text;
};

// Where numbers are written that are read as 0.
void find_zeros(const toml::node& node, std::vector<toml::source_region>& out) {
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, item] : *table) find_zeros(item, out);
  } else if (const toml::array* array = node.as_array()) {
    for (const toml::node& item : *array) find_zeros(item, out);
  } else if (node.value_exact<double>() == 0.0) {
    out.push_back(node.source());
  }
}

// The first of them in the text. It goes through the text once, however many zeros there are.
std::optional<LostNumber> find_lost_number(const toml::node& node, std::string_view text) {
  std::vector<toml::source_region> zeros;
  find_zeros(node, zeros);
  std::ranges::sort(zeros, {}, [](const toml::source_region& r) {
    return std::pair(r.begin.line, r.begin.column);
  });
  uint32_t line = 1, column = 1;  // columns are characters, of one or more bytes
  size_t at = 0;
  const auto go_to = [&](const toml::source_position& to) {
    while (at < text.size() && std::pair(line, column) < std::pair(to.line, to.column)) {
      const bool is_break = text[at] == '\n';
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
      line += is_break ? 1 : 0;
      column = is_break ? 1 : column + 1;
    }
    return at;
  };
  for (const toml::source_region& zero : zeros) {
    const size_t begin = go_to(zero.begin), end = go_to(zero.end);
    const std::string_view written = text.substr(begin, end - begin);
    const std::string_view digits = written.substr(0, written.find_first_of("eE"));
    if (digits.find_first_of("123456789") != std::string_view::npos)
      return LostNumber{zero.begin.line, std::string(written)};
  }
  return std::nullopt;
}

void require_kept(const std::optional<LostNumber>& lost, const std::string& where) {
  if (!lost) return;
  fail(ErrorCode::invalid_argument,
       "{}: {} is too small a number and would become 0; the smallest above 0 is 5e-324", where,
       lost->text);
}

// The TOML reader says of a number that is too large for a double that it is none.
void require_finite(const std::string& text, const std::string& where) {
  char* end = nullptr;
  const bool is_too_large = std::isinf(std::strtod(text.c_str(), &end)) && *end == 0 &&
                            text.find_first_of("0123456789") != std::string::npos;
  if (is_too_large)
    fail(ErrorCode::invalid_argument, "{}: {} is too large a number; the largest is {}", where,
         text, std::numeric_limits<double>::max());
}

char upper(char c) { return static_cast<char>(std::toupper(static_cast<unsigned char>(c))); }
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// TRAIN__BATCH_SIZE: train.batch_size.
std::string path_of(std::string_view variable) {
  std::string path;
  for (size_t i = 0; i < variable.size(); ++i) {
    const bool separator = variable.substr(i, 2) == "__";
    path += separator ? '.' : lower(variable[i]);
    i += separator;
  }
  return path;
}

// The variable that was meant by one with a single underscore for a dot, or with a typing error.
std::optional<std::string> nearest_variable(std::string_view name,
                                            const std::vector<std::string>& variables) {
  std::vector<std::string> candidates;  // with single underscores
  for (const std::string& variable : variables) {
    std::string& plain = candidates.emplace_back();
    for (size_t i = 0; i < variable.size(); ++i)
      if (variable.compare(i, 2, "__") != 0) plain += variable[i];
  }
  const auto near = nearest_name(name, candidates);
  if (!near) return std::nullopt;
  return variables[static_cast<size_t>(std::find(candidates.begin(), candidates.end(), *near) -
                                       candidates.begin())];
}

}  // namespace

void OptionSet::read_toml(const std::filesystem::path& file, Moved moved) {
  read_toml_text(read_text(file), file.string(), moved);
}

void OptionSet::read_toml_text(std::string_view text, std::string_view name, Moved moved) {
  const toml::table table = parse_toml(text, name);
  const auto lost = find_lost_number(table, text);
  require_kept(lost, fmt::format("{}:{}", name, lost ? lost->line : 0));
  Lines lines;
  const Json value = node_to_json(table, "", lines);
  read_table(value, "", moved, [&](const std::string& path) {
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
  std::optional<LostNumber> lost;
  try {
    const std::string line = fmt::format("value = {}\n", text);
    const toml::table table = parse_toml(line, origin);
    lost = find_lost_number(table, line);
    Lines lines;
    value = node_to_json(table, "", lines).at("value");
  } catch (const Error&) {
    require_finite(std::string(text), where);
    value = std::string(text);  // assign then says which type was wanted
  }
  require_kept(lost, where);
  assign(field, value, where, {std::string(origin)});
}

std::vector<std::string> OptionSet::environment_names(std::string_view prefix) const {
  std::vector<std::string> out;
  for (const OptionField& f : fields_) {
    std::string& spelled = out.emplace_back(prefix);
    for (char c : f.path) spelled += c == '.' ? "__" : std::string(1, upper(c));
  }
  return out;
}

void OptionSet::read_environment(const char* const* environment, std::string_view prefix) {
  const std::vector<std::string> variables = environment_names("");
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (!entry.starts_with(prefix) || equals == std::string_view::npos) continue;
    const std::string_view variable = entry.substr(0, equals);
    const std::string_view name = variable.substr(prefix.size());
    const std::string origin = fmt::format("environment {}", variable);
    const auto found = std::find(variables.begin(), variables.end(), name);
    if (found != variables.end()) {
      const std::string& path = fields_[static_cast<size_t>(found - variables.begin())].path;
      set(fmt::format("{}={}", path, entry.substr(equals + 1)), origin);
    } else if (name.find("__") != std::string_view::npos) {
      require(path_of(name), origin);  // throws, with the nearest name
    } else if (const auto near = nearest_variable(name, variables)) {
      fail(ErrorCode::invalid_argument, "{}: names no option; did you mean {}{}?", origin, prefix,
           *near);
    }
  }
}

}  // namespace ductile
