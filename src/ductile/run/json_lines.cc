#include "ductile/run/json_lines.h"

#include <cerrno>
#include <cmath>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"

namespace ductile::run {
namespace {

using nlohmann::json;

// An object, or a discarded value.
json parse_line(std::string_view line) {
  json value = parse_json(line);
  return value.is_object() ? value : json(json::value_t::discarded);
}

// Calls visit(line, terminated) for each line, the last possibly without its newline.
template <class Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return visit(text, false);
    visit(text.substr(0, end), true);
    text.remove_prefix(end + 1);
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

bool number_from_json(const json& value, double& out) {
  if (value.is_number()) {
    out = value.get<double>();
    return true;
  }
  if (!value.is_string()) return false;
  const std::string& text = value.get_ref<const std::string&>();
  if (text == "NaN") {
    out = std::nan("");
  } else if (text == "Infinity") {
    out = HUGE_VAL;
  } else if (text == "-Infinity") {
    out = -HUGE_VAL;
  } else {
    return false;
  }
  return true;
}

JsonLines::JsonLines(const fs::path& path) : path_(path), file_(path, O_RDWR | O_CREAT) {
  struct stat info {};
  if (::fstat(file_.fd(), &info) != 0) fail_errno(path_.string(), errno);
  if (!S_ISREG(info.st_mode) || info.st_size == 0) return;
  char last = '\n';
  if (::pread(file_.fd(), &last, 1, info.st_size - 1) < 0)
    fail_errno(path_.string() + ": read", errno);
  torn_ = last != '\n';
}

void JsonLines::append(const json& object) {
  DUCTILE_CHECK(object.is_object(), "{}: a line must be an object", path_.string());
  append_text(dump_json(object));
}

void JsonLines::append_text(std::string_view line) {
  std::string text = torn_ ? "\n" : "";
  text.append(line).append("\n");
  torn_ = true;  // where it fails
  file_.append_shared(text);
  torn_ = false;
}

void JsonLines::sync() { file_.sync(); }

double number_at(const nlohmann::json& object, const char* key, double otherwise) {
  const auto at = object.find(key);
  double value = otherwise;
  if (at != object.end()) number_from_json(*at, value);
  return value;
}

JsonLinesRead for_each_json_line(const fs::path& path, const std::function<void(json&)>& visit) {
  JsonLinesRead read;
  if (kind_of(path) == FileKind::none) return read;
  const std::string text = read_file(path);
  for_each_line(text, [&](std::string_view line, bool terminated) {
    if (is_blank(line)) return;
    json object = parse_line(line);
    if (object.is_object()) {
      ++read.lines;
      visit(object);
    } else if (terminated) {
      ++read.bad;
    } else {
      read.torn = true;
    }
  });
  return read;
}

std::vector<json> read_json_lines(const fs::path& path) {
  const std::string text = read_file(path);
  std::vector<json> out;
  int64_t number = 0;
  for_each_line(text, [&](std::string_view line, bool terminated) {
    ++number;
    if (is_blank(line)) return;
    json object = parse_line(line);
    if (object.is_object()) {
      out.push_back(std::move(object));
    } else if (terminated) {
      fail(ErrorCode::data_loss, "{}:{}: not a JSON object: {}", path.string(), number,
           line.substr(0, 60));
    }
  });
  return out;
}

}  // namespace ductile::run
