#include "ductile/run/json_lines.h"

#include <cerrno>
#include <cmath>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
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

// The length up to which the file is whole lines, and whether the last lacks only its newline.
struct Whole {
  off_t size;
  bool add_newline;
};

Whole whole_lines(int fd, off_t size, const fs::path& path) {
  while (size > 0) {
    // The last line: read backwards until a newline that is not the file's last byte.
    std::string tail;
    off_t begin = size;
    size_t newline = std::string::npos;
    while (begin > 0 && newline == std::string::npos) {
      const off_t n = std::min<off_t>(begin, 4096);
      std::string part(static_cast<size_t>(n), '\0');
      begin -= n;
      if (::pread(fd, part.data(), part.size(), begin) != n) {
        fail_errno(path.string() + ": read", errno);
      }
      tail = part + tail;
      if (tail.size() >= 2) newline = tail.rfind('\n', tail.size() - 2);
    }
    const size_t start = newline == std::string::npos ? 0 : newline + 1;
    std::string_view line = std::string_view(tail).substr(start);
    const bool terminated = line.ends_with('\n');
    if (terminated) line.remove_suffix(1);
    if (parse_line(line).is_object()) return {size, !terminated};
    size = begin + static_cast<off_t>(start);
  }
  return {0, false};
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

JsonLines::JsonLines(const fs::path& path) : path_(path) {
  file_ = AppendFile(path_, O_RDWR | O_CREAT);
  struct stat info {};
  if (::fstat(file_.fd(), &info) != 0) fail_errno(path_.string(), errno);
  if (!S_ISREG(info.st_mode)) return;
  const Whole whole = whole_lines(file_.fd(), info.st_size, path_);
  if (whole.size < info.st_size && ::ftruncate(file_.fd(), whole.size) != 0) {
    fail_errno(path_.string() + ": cutting off a torn last line", errno);
  }
  if (whole.add_newline) file_.append("\n");
}

void JsonLines::append(const json& object) {
  DUCTILE_CHECK(object.is_object(), "{}: a line must be an object", path_.string());
  append_text(dump_json(object));
}

void JsonLines::append_text(std::string_view line) { file_.append(std::string(line) + "\n"); }

void JsonLines::sync() { file_.sync(); }

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
