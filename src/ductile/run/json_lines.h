#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/run/append_file.h"

// Files with one JSON object per line. They are written so that a crash at any instant costs at
// most the line that was being written.
namespace ductile::run {

// Appends to one file, to which others may append as well. Each line is one write(2), so no line is
// lost in the process if it is killed. Nothing is ever cut off: a torn line (a process or machine
// died during a write, or the disk was full), be it another's, is ended by the next one, and stays
// as a line that readers skip. One thread uses it.
class JsonLines {
 public:
  // Opens or creates the file.
  explicit JsonLines(const fs::path& path);

  // Throws unavailable naming the file (disk full ...); a later append may succeed.
  void append(const nlohmann::json& object);

  // The same for a line that dump_json() has made.
  void append_text(std::string_view line);

  // When it returns, everything is on stable storage.
  void sync();

 private:
  bool is_torn() const;

  fs::path path_;
  AppendFile file_;
};

// A double as JSON. NaN, Infinity and -Infinity, for which JSON has no words, become the strings
// "NaN", "Infinity" and "-Infinity". number_from_json() reads numbers and these strings, and
// returns false for anything else.
nlohmann::json json_number(double value);
bool number_from_json(const nlohmann::json& value, double& out);
// The number under a key of an object; `otherwise` where there is none.
double number_at(const nlohmann::json& object, const char* key, double otherwise = NAN);

struct JsonLinesRead {
  int64_t lines = 0;
  int64_t bad = 0;    // lines that hold no JSON object
  bool torn = false;  // the last line is not complete, as while it is being written; not in `bad`
};

// Calls `visit` with each object in order. Lines that cannot be read are counted and skipped: a
// file that is still being written, or was repaired by hand, is no reason to show nothing. A
// missing file counts as an empty one.
JsonLinesRead for_each_json_line(const fs::path& path,
                                 const std::function<void(nlohmann::json&)>& visit);

// Calls `visit` with the whole objects among the last `bytes` of the file, the newest first, until
// it returns true. Throws invalid_argument for what is no file, and never waits. Otherwise as
// above.
void for_each_last_json_line(const fs::path& path, int64_t bytes,
                             const std::function<bool(nlohmann::json&)>& visit);

// All objects. Throws data_loss, naming file and line, if a line holds no JSON object, unless it is
// a torn last one. Throws not_found if there is no file.
std::vector<nlohmann::json> read_json_lines(const fs::path& path);

}  // namespace ductile::run
