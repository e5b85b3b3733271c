#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/run/append_file.h"

// Files of one JSON object a line, written so that a crash at any instant costs at most the line
// being written.
namespace ductile::run {

// Appends to one file, to which others may append as well. Each line is one write(2), so nothing
// waits in the process when it is killed. Nothing is ever cut off: a torn line (the process or
// machine died inside a write, the disk had no room) is ended by the next one, and stays as a line
// that readers skip. Not shared between threads.
class JsonLines {
 public:
  // Opens or makes the file.
  explicit JsonLines(const fs::path& path);

  // Throws unavailable naming the file (disk full ...); a later append may succeed.
  void append(const nlohmann::json& object);

  // The same of a line as dump_json() makes it.
  void append_text(std::string_view line);

  // On stable storage when it returns.
  void sync();

 private:
  fs::path path_;
  AppendFile file_;
  bool torn_ = false;  // the file may end inside a line
};

// A double as JSON, which has no word for them: NaN, Infinity and -Infinity become the strings
// "NaN", "Infinity", "-Infinity". number_from_json() reads both forms and returns false for others.
nlohmann::json json_number(double value);
bool number_from_json(const nlohmann::json& value, double& out);

struct JsonLinesRead {
  int64_t lines = 0;
  int64_t bad = 0;    // lines that hold no JSON object
  bool torn = false;  // the last line is not complete, as while it is being written; not in `bad`
};

// Calls `visit` with each object in order. Lines that cannot be read are counted and passed over:
// a file still being written, or repaired by hand, is no reason to show nothing. A missing file
// counts as an empty one.
JsonLinesRead for_each_json_line(const fs::path& path,
                                 const std::function<void(nlohmann::json&)>& visit);

// All of them. Throws data_loss, naming file and line, where a line other than a torn last one
// holds no JSON object, and not_found where there is no file.
std::vector<nlohmann::json> read_json_lines(const fs::path& path);

}  // namespace ductile::run
