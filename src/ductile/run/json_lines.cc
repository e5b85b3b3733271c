#include "ductile/run/json_lines.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
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

JsonLines::JsonLines(const fs::path& path) : path_(path), file_(path, O_RDWR | O_CREAT) {}

// Whether the file may end inside a line. An empty line more than was needed harms nothing.
bool JsonLines::is_torn() const {
  struct stat info {};
  if (::fstat(file_.fd(), &info) != 0) return true;
  if (!S_ISREG(info.st_mode) || info.st_size == 0) return false;
  char last = '\0';
  return ::pread(file_.fd(), &last, 1, info.st_size - 1) != 1 || last != '\n';
}

void JsonLines::append(const json& object) {
  DUCTILE_CHECK(object.is_object(), "{}: a line must be an object", path_.string());
  append_text(dump_json(object));
}

void JsonLines::append_text(std::string_view line) {
  std::string text = is_torn() ? "\n" : "";
  text.append(line).append("\n");
  file_.append_shared(text);
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

void for_each_last_json_line(const fs::path& path, int64_t bytes,
                             const std::function<bool(json&)>& visit) {
  if (kind_of(path) == FileKind::none) return;
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // it may be a pipe
  struct stat info {};
  if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0) fail_errno(path.string(), errno);
  if (!S_ISREG(info.st_mode)) fail(ErrorCode::invalid_argument, "{}: is no file", path.string());
  const int64_t begin = std::max<int64_t>(0, info.st_size - bytes);
  std::string text(static_cast<size_t>(info.st_size - begin), '\0');
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), begin);
  if (got < 0) fail_errno(path.string() + ": read", errno);
  text.resize(static_cast<size_t>(got));
  std::vector<std::string_view> lines;
  for_each_line(text, [&](std::string_view line, bool) { lines.push_back(line); });
  // The first one may have begun before.
  const size_t first = begin > 0 ? 1 : 0;
  for (size_t i = lines.size(); i > first; --i) {
    json object = is_blank(lines[i - 1]) ? json() : parse_line(lines[i - 1]);
    if (object.is_object() && visit(object)) return;
  }
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
