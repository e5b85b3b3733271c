#include "ductile/base/options.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile {
namespace {

using Json = nlohmann::json;

constexpr size_t kFewOptions = 10;  // that an error may name one by one

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string toml_quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string toml_text(bool v) { return v ? "true" : "false"; }
std::string toml_text(int64_t v) { return std::to_string(v); }
std::string toml_text(double v) {
  std::string text = fmt::format("{}", v);  // the shortest text that reads back to the same bits
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}
std::string toml_text(const std::string& v) { return toml_quoted(v); }
template <class T>
std::string toml_text(const std::vector<T>& v) {
  std::string out = "[";
  for (const T& item : v) out += (out.size() > 1 ? ", " : "") + toml_text(item);
  return out + "]";
}

OptionValue value_of(const OptionRef& ref) {
  return std::visit([](auto* p) -> OptionValue { return *p; }, ref);
}

std::string type_name(const OptionRef& ref) {
  return std::visit(Overloaded{
                        [](bool*) { return "true or false"; },
                        [](int64_t*) { return "a whole number"; },
                        [](double*) { return "a number"; },
                        [](std::string*) { return "a string"; },
                        [](std::vector<int64_t>*) { return "a list of whole numbers"; },
                        [](std::vector<double>*) { return "a list of numbers"; },
                        [](std::vector<std::string>*) { return "a list of strings"; },
                    },
                    ref);
}

std::string number(double v) {
  return std::abs(v) < 1e15 && v == std::floor(v) ? fmt::format("{:.0f}", v) : fmt::format("{}", v);
}

// "from 1 to 10", "at least 1", "above 0", or "" where everything is allowed.
std::string bounds_text(const OptionField& f) {
  const bool low = std::isfinite(f.min), high = std::isfinite(f.max);
  if (low && high)
    return fmt::format("{} {} {} {}", f.above_min ? "above" : "from", number(f.min),
                       f.above_min ? "and at most" : "to", number(f.max));
  if (low) return fmt::format("{} {}", f.above_min ? "above" : "at least", number(f.min));
  if (high) return fmt::format("at most {}", number(f.max));
  return "";
}

std::string choices_text(const OptionField& f) {
  std::string out;
  for (const std::string& c : f.choices) out += (out.empty() ? "" : ", ") + toml_quoted(c);
  return out;
}

std::string_view last_part(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::string_view first_parts(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

[[noreturn]] void bad(const std::string& text) { throw Error(ErrorCode::invalid_argument, text); }

// Converts one JSON value, or returns false where the type does not fit. A number written as 1e3
// is a whole number too.
bool convert(const Json& v, bool& out) {
  if (!v.is_boolean()) return false;
  out = v.get<bool>();
  return true;
}
bool convert(const Json& v, int64_t& out) {
  if (v.is_number_unsigned() && v.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  if (v.is_number_integer()) {
    out = v.get<int64_t>();
    return true;
  }
  if (!v.is_number_float()) return false;
  const double d = v.get<double>();
  if (!(std::abs(d) <= 0x1p53) || d != std::floor(d)) return false;
  out = static_cast<int64_t>(d);
  return true;
}
bool convert(const Json& v, double& out) {
  if (!v.is_number()) return false;
  out = v.get<double>() + 0.0;  // no negative zero
  return true;
}
bool convert(const Json& v, std::string& out) {
  if (!v.is_string()) return false;
  out = v.get<std::string>();
  return true;
}
template <class T>
bool convert(const Json& v, std::vector<T>& out) {
  if (!v.is_array()) return false;
  out.clear();
  for (const Json& item : v) {
    T value;
    if (!convert(item, value)) return false;
    out.push_back(std::move(value));
  }
  return true;
}

void check_value(const OptionField& f, double v, const std::string& where) {
  if (!std::isfinite(v)) bad(fmt::format("{}: {} must be a finite number", where, f.path));
  if (v < f.min || v > f.max || (f.above_min && v == f.min)) {
    bad(fmt::format("{}: {} = {} is out of range; allowed: {}", where, f.path, number(v),
                    bounds_text(f)));
  }
}
void check_value(const OptionField& f, const std::string& v, const std::string& where) {
  if (f.choices.empty() || std::find(f.choices.begin(), f.choices.end(), v) != f.choices.end()) {
    return;
  }
  bad(unknown_name(fmt::format("{}: {} =", where, f.path), v, f.choices));
}
void check_value(const OptionField& f, int64_t v, const std::string& where) {
  check_value(f, static_cast<double>(v), where);
}
void check_value(const OptionField&, bool, const std::string&) {}
template <class T>
void check_value(const OptionField& f, const std::vector<T>& v, const std::string& where) {
  for (const T& item : v) check_value(f, item, where);
}

Json json_of(const OptionRef& ref) {
  return std::visit([](auto* p) { return Json(*p); }, ref);
}

}  // namespace

Describer::FieldHandle& Describer::FieldHandle::range(double min, double max) {
  fields_[index_].min = min;
  fields_[index_].max = max;
  return *this;
}

Describer::FieldHandle& Describer::FieldHandle::at_least(double min) {
  fields_[index_].min = min;
  return *this;
}

Describer::FieldHandle& Describer::FieldHandle::above(double min) {
  fields_[index_].min = min;
  fields_[index_].above_min = true;
  return *this;
}

Describer::FieldHandle& Describer::FieldHandle::one_of(
    std::initializer_list<std::string_view> choices) {
  OptionField& field = fields_[index_];
  field.choices.insert(field.choices.end(), choices.begin(), choices.end());
  return *this;
}

Describer::FieldHandle& Describer::FieldHandle::one_of(std::string_view choice,
                                                       std::string_view help) {
  fields_[index_].choices.emplace_back(choice);
  fields_[index_].choice_help.emplace_back(help);
  return *this;
}

Describer::FieldHandle Describer::add(std::string_view name, OptionRef ref, std::string_view help) {
  OptionField field;
  field.path = prefix_ + std::string(name);
  field.help = help;
  field.ref = ref;
  field.default_value = value_of(ref);
  fields_.push_back(std::move(field));
  return FieldHandle(fields_, fields_.size() - 1);
}

void Describer::enter(std::string_view name, std::string_view help) {
  sections_.emplace_back(prefix_ + std::string(name), help);
  prefix_ += std::string(name) + ".";
}

void Describer::leave() {
  prefix_.pop_back();
  prefix_.resize(prefix_.rfind('.') + 1);  // npos + 1 == 0: back at the top
}

void Describer::moved(std::string_view name, std::initializer_list<std::string_view> now) {
  MovedOption& moved = moved_.emplace_back();
  moved.old_path = prefix_ + std::string(name);
  for (const std::string_view path : now) moved.new_paths.push_back(prefix_ + std::string(path));
}

void Describer::called_elsewhere(std::string_view word,
                                 std::initializer_list<std::string_view> here) {
  MovedOption& other = elsewhere_.emplace_back();
  other.old_path = word;
  for (const std::string_view path : here) other.new_paths.push_back(prefix_ + std::string(path));
}

// A table's fields follow each other, so only where the table changes there is something to see to.
void OptionSet::adopt(Describer&& d) {
  std::map<std::string_view, std::string_view> inside;  // by table: a field of a table in it
  std::optional<std::string_view> table;
  for (const OptionField& field : d.fields_) {
    if (table == first_parts(field.path)) continue;
    table = first_parts(field.path);
    const auto found = inside.find(*table);
    DUCTILE_CHECK(found == inside.end(), "{} is described after the section that holds {}",
                  field.path, found->second);
    for (std::string_view outer = *table; !outer.empty();) {
      outer = first_parts(outer);
      inside.emplace(outer, field.path);
    }
  }
  fields_ = std::move(d.fields_);
  sections_ = std::move(d.sections_);
  moved_ = std::move(d.moved_);
  elsewhere_ = std::move(d.elsewhere_);
}

const OptionField* OptionSet::find(std::string_view path) const {
  for (const OptionField& f : fields_) {
    if (f.path == path) return &f;
  }
  return nullptr;
}

const MovedOption* OptionSet::find_moved(std::string_view path) const {
  for (const MovedOption& moved : moved_) {
    if (moved.old_path == path) return &moved;
  }
  return nullptr;
}

bool OptionSet::is_section(std::string_view path) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const auto& section) { return section.first == path; });
}

bool OptionSet::was_section(std::string_view path) const {
  const std::string prefix = std::string(path) + ".";
  return std::ranges::any_of(
      moved_, [&](const MovedOption& moved) { return moved.old_path.starts_with(prefix); });
}

std::string OptionSet::meant_by(std::string_view path, bool as_section) const {
  if (as_section) {
    std::vector<std::string> sections;
    for (const auto& section : sections_) sections.push_back(section.first);
    if (const auto near = nearest_name(path, sections)) return *near;
  }
  const std::string_view word = last_part(path);
  for (const MovedOption& other : elsewhere_) {
    if (other.old_path == word) return fmt::format("{}", fmt::join(other.new_paths, " and "));
  }
  // The right key in another section comes first, of several the one in the nearest section; then
  // the nearest spelling.
  std::vector<std::string> paths, sections;
  for (const OptionField& f : fields_) {
    if (last_part(f.path) == word) sections.emplace_back(first_parts(f.path));
    paths.push_back(f.path);
  }
  if (!sections.empty()) {
    const std::string section =
        nearest_name(first_parts(path), sections).value_or(sections.front());
    return fmt::format("{}{}{}", section, section.empty() ? "" : ".", word);
  }
  return nearest_name(path, paths).value_or("");
}

OptionField& OptionSet::require(std::string_view path, const std::string& where, bool as_section) {
  for (OptionField& f : fields_) {
    if (f.path == path) return f;
  }
  if (const MovedOption* moved = find_moved(path)) {
    bad(fmt::format("{}: {} is now {}", where, path, fmt::join(moved->new_paths, " or ")));
  }
  if (is_section(path)) {
    const auto inside = std::find_if(fields_.begin(), fields_.end(), [&](const OptionField& f) {
      return f.path.starts_with(std::string(path) + ".");
    });
    bad(fmt::format("{}: {} is a section, not an option; name one of its options, such as {}",
                    where, path, inside == fields_.end() ? std::string(path) : inside->path));
  }
  std::string text = fmt::format("{}: unknown key {}", where, path);
  if (const std::string meant = meant_by(path, as_section); !meant.empty()) {
    text += "; did you mean " + meant + "?";
  } else if (fields_.size() <= kFewOptions) {
    std::vector<std::string> paths;
    for (const OptionField& f : fields_) paths.push_back(f.path);
    text += fmt::format("; the keys are {}", fmt::join(paths, ", "));
  }
  bad(text);
}

void OptionSet::assign(OptionField& field, const Json& value, const std::string& where,
                       Origin origin) {
  std::visit(
      [&](auto* target) {
        std::remove_pointer_t<decltype(target)> parsed{};
        if (!convert(value, parsed)) {
          bad(fmt::format("{}: {} must be {}, not {}", where, field.path, type_name(field.ref),
                          dump_json(value)));
        }
        check_value(field, parsed, where);
        *target = std::move(parsed);
      },
      field.ref);
  field.origin = std::move(origin);
}

void OptionSet::read_table(const Json& value, const std::string& prefix, Moved how,
                           const std::function<std::string(const std::string&)>& where) {
  // The fields of a table follow each other, and a job has hundreds.
  const auto in_table = [&](const OptionField& f) { return f.path.starts_with(prefix); };
  const auto first = std::find_if(fields_.begin(), fields_.end(), in_table);
  const auto last = std::find_if_not(first, fields_.end(), in_table);
  for (const auto& [key, item] : value.items()) {
    const std::string path = prefix + key;
    const auto known =
        std::find_if(first, last, [&](const OptionField& f) { return f.path == path; });
    const std::string at = where(path);
    if (known != last) {
      assign(*known, item, at, {at});
      continue;
    }
    if (is_section(path) || (item.is_object() && was_section(path))) {
      if (!item.is_object())
        bad(fmt::format("{}: {} is a section, not a value; write [{}]", at, path, path));
      read_table(item, path + ".", how, where);
      continue;
    }
    const MovedOption* moved = how == Moved::follow ? find_moved(path) : nullptr;
    if (moved == nullptr) {
      assign(require(path, at, item.is_object()), item, at, {at});
      continue;
    }
    for (const std::string& now : moved->new_paths) assign(require(now, at), item, at, {at});
  }
}

void OptionSet::read_json(const Json& value, std::string_view name, Moved moved) {
  if (!value.is_object()) bad(fmt::format("{}: must be a JSON object", name));
  read_table(value, "", moved, [&](const std::string&) { return std::string(name); });
}

Json OptionSet::to_json() const {
  Json out = Json::object();
  for (const OptionField& f : fields_) {
    Json* table = &out;
    std::string_view rest = f.path;
    for (size_t dot; (dot = rest.find('.')) != std::string_view::npos;
         rest.remove_prefix(dot + 1)) {
      table = &(*table)[std::string(rest.substr(0, dot))];
    }
    (*table)[std::string(rest)] = json_of(f.ref);
  }
  return out;
}

std::string OptionSet::to_toml(bool only_changed, bool with_help) const {
  std::string out, section;
  for (const OptionField& f : fields_) {
    if (only_changed && value_of(f.ref) == f.default_value) continue;
    if (first_parts(f.path) != section) {
      section = first_parts(f.path);
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    if (with_help) {
      out += "# " + f.help;
      const std::string allowed = f.choices.empty() ? bounds_text(f) : choices_text(f);
      out += allowed.empty() ? "\n" : " (" + allowed + ")\n";
    }
    out += fmt::format("{} = {}\n", last_part(f.path), ductile::to_toml(f.ref));
  }
  return out;
}

Json OptionSet::json_schema(std::string_view title) const {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", title},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", Json::object()}};
  const auto table_of = [&](std::string_view path) -> Json& {
    Json* table = &root;
    while (!path.empty()) {
      const size_t dot = std::min(path.find('.'), path.size());
      table = &(*table)["properties"][std::string(path.substr(0, dot))];
      path.remove_prefix(std::min(dot + 1, path.size()));
    }
    return *table;
  };
  for (const auto& [path, help] : sections_) {
    table_of(path) = {{"type", "object"},
                      {"description", help},
                      {"additionalProperties", false},
                      {"properties", Json::object()}};
  }
  for (const OptionField& f : fields_) {
    Json scalar;
    if (std::isfinite(f.min)) scalar[f.above_min ? "exclusiveMinimum" : "minimum"] = f.min;
    if (std::isfinite(f.max)) scalar["maximum"] = f.max;
    if (!f.choices.empty()) scalar["enum"] = f.choices;
    const auto typed = [&](const char* type) {
      scalar["type"] = type;
      return scalar;
    };
    const auto list = [&](const char* type) {
      return Json{{"type", "array"}, {"items", typed(type)}};
    };
    Json entry = std::visit(Overloaded{
                                [&](bool*) { return typed("boolean"); },
                                [&](int64_t*) { return typed("integer"); },
                                [&](double*) { return typed("number"); },
                                [&](std::string*) { return typed("string"); },
                                [&](std::vector<int64_t>*) { return list("integer"); },
                                [&](std::vector<double>*) { return list("number"); },
                                [&](std::vector<std::string>*) { return list("string"); },
                            },
                            f.ref);
    entry["description"] = f.help;
    entry["default"] = std::visit([](const auto& v) { return Json(v); }, f.default_value);
    table_of(first_parts(f.path))["properties"][std::string(last_part(f.path))] = std::move(entry);
  }
  return root;
}

std::string OptionSet::markdown() const {
  std::string out, section = "?", choices;
  const auto end_table = [&] { out += std::exchange(choices, ""); };
  for (const OptionField& f : fields_) {
    if (first_parts(f.path) != section) {
      end_table();
      section = first_parts(f.path);
      if (!section.empty()) {
        const auto found = std::find_if(sections_.begin(), sections_.end(),
                                        [&](const auto& s) { return s.first == section; });
        out += fmt::format("\n## [{}]\n\n{}\n\n", section, found->second);
      }
      out += "| key | default | allowed | meaning |\n|---|---|---|---|\n";
    }
    std::string allowed = f.choices.empty() ? bounds_text(f) : choices_text(f);
    if (allowed.empty()) allowed = type_name(f.ref);
    if (!f.choice_help.empty()) {
      allowed = "see below";
      choices += fmt::format("\n| `{}` | meaning |\n|---|---|\n", last_part(f.path));
      for (size_t i = 0; i < f.choices.size(); ++i)
        choices += fmt::format("| `\"{}\"` | {} |\n", f.choices[i], f.choice_help[i]);
    }
    out += fmt::format("| `{}` | `{}` | {} | {} |\n", last_part(f.path),
                       ductile::to_toml(f.default_value), allowed, f.help);
  }
  end_table();
  return out;
}

std::string to_toml(const OptionRef& ref) { return to_toml(value_of(ref)); }

std::string to_toml(const OptionValue& value) {
  return std::visit([](const auto& v) { return toml_text(v); }, value);
}

}  // namespace ductile
