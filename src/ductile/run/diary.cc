#include "ductile/run/diary.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

namespace ductile::run {
namespace {

using nlohmann::json;

// Lines that wait for a disk, at most; of more the oldest are dropped, and counted.
constexpr size_t kMostWaiting = 20'000;

// A number that no run has is none: one line that was altered must not void all others.
int64_t whole_number_at(const json& line, const char* key, int64_t otherwise) {
  constexpr uint64_t kMost = uint64_t{1} << 50;
  const auto at = line.find(key);
  if (at == line.end() || !at->is_number_integer()) return otherwise;
  const auto value = at->get<uint64_t>();
  return value <= kMost ? static_cast<int64_t>(value) : otherwise;
}

}  // namespace

void Diary::append(const json& line) {
  waiting_.push_back(dump_json(line));
  if (waiting_.size() > kMostWaiting) {
    waiting_.pop_front();
    ++dropped_;
  }
  write_waiting();
}

bool Diary::write_waiting() {
  try {
    if (!file_) file_.emplace(path_);
    while (!waiting_.empty()) {
      file_->append_text(waiting_.front());
      waiting_.pop_front();
    }
    if (in_trouble_)
      trouble_ = fmt::format("{}: can be written again{}", path_.string(),
                             dropped_ == 0 ? "" : fmt::format("; {} lines were lost", dropped_));
    in_trouble_ = false;
    dropped_ = 0;
    return true;
  } catch (const std::exception& e) {
    if (!in_trouble_)
      trouble_ =
          fmt::format("{}; training goes on, and what is to be written there waits", e.what());
    in_trouble_ = true;
    return false;
  }
}

void Diary::sync() {
  if (!write_waiting()) return;
  try {
    file_->sync();
  } catch (const std::exception& e) {
    trouble_ = e.what();
  }
}

std::string Diary::take_trouble() { return std::exchange(trouble_, {}); }

JsonLinesRead for_each_diary_line(const fs::path& path, const std::function<void(json&)>& visit) {
  // Of each line whether it is of a replaced writer, and the last step that counts before it.
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  std::vector<std::pair<bool, int64_t>> lines;
  int64_t newest = 0;
  for_each_json_line(path, [&](json& line) {
    const int64_t generation = whole_number_at(line, "generation", newest);
    const bool stale = generation < newest;
    newest = std::max(newest, generation);
    const bool begins = !stale && line.contains("begins");
    lines.emplace_back(stale, begins ? whole_number_at(line, "step", kAll) : kAll);
  });
  int64_t last = kAll;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)
    line->second = std::exchange(last, std::min(last, line->second));

  size_t i = 0;
  return for_each_json_line(path, [&](json& line) {
    if (i == lines.size()) return;  // appended since
    const auto& [stale, last_step] = lines[i++];
    if (stale || line.contains("begins")) return;
    if (whole_number_at(line, "step", 0) > last_step) return;
    visit(line);
  });
}

DiaryEnd end_of_diaries(const RunFolder& folder) {
  DiaryEnd end;
  for (const fs::path& path : {folder.metrics_file(), folder.events_file()}) {
    for_each_json_line(path, [&](json& line) {
      end.generation = std::max(end.generation, whole_number_at(line, "generation", 0));
      double seconds = 0;
      if (line.contains("seconds") && number_from_json(line["seconds"], seconds))
        end.seconds = std::max(end.seconds, seconds);
    });
  }
  return end;
}

}  // namespace ductile::run
