#include "ductile/sim/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/options.h"

namespace ductile::sim {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    text = text.substr(1, text.size() - 2);
  return text;
}

std::vector<std::string> split(std::string_view line) {
  std::vector<std::string> cells;
  while (true) {
    const size_t comma = line.find(',');
    cells.emplace_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

std::string shown(std::string_view cell) {
  return cell.size() <= 40 ? std::string(cell) : std::string(cell.substr(0, 37)) + "...";
}

}  // namespace

Csv Csv::read(const fs::path& file) { return parse(read_text(file, kMostTrace), file.string()); }

Csv Csv::parse(std::string_view text, std::string name) {
  Csv csv;
  csv.name_ = std::move(name);
  size_t line = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line;
    if (trimmed(row).empty() || row.front() == '#') continue;
    std::vector<std::string> cells = split(row);
    if (csv.header_.empty()) {
      csv.header_ = std::move(cells);
      continue;
    }
    if (cells.size() != csv.header_.size())
      fail(ErrorCode::invalid_argument, "{}:{}: {} columns, but the header has {} ({})", csv.name_,
           line, cells.size(), csv.header_.size(), fmt::join(csv.header_, ","));
    csv.rows_.push_back({line, std::move(cells)});
  }
  if (csv.header_.empty())
    fail(ErrorCode::invalid_argument, "{}: empty; the first line names the columns", csv.name_);
  return csv;
}

std::optional<size_t> Csv::find(std::string_view column) const {
  const auto found = std::find(header_.begin(), header_.end(), column);
  if (found == header_.end()) return std::nullopt;
  return static_cast<size_t>(found - header_.begin());
}

size_t Csv::require(std::string_view column) const {
  if (const auto index = find(column)) return *index;
  const auto near = nearest_name(column, header_);
  fail(ErrorCode::invalid_argument, "{}:1: no column '{}'{}; the header is {}", name_, column,
       near ? fmt::format(" (is '{}' meant?)", *near) : "", fmt::join(header_, ","));
}

std::string Csv::where(size_t row, std::string_view column) const {
  return fmt::format("{}:{}: column '{}'", name_, rows_[row].line, column);
}

std::string Csv::text(size_t row, std::string_view column) const {
  return rows_[row].cells[require(column)];
}

double Csv::number(size_t row, std::string_view column, double least, double most) const {
  const std::string& cell = rows_[row].cells[require(column)];
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value))
    fail(ErrorCode::invalid_argument, "{}: '{}' is not a number", where(row, column), shown(cell));
  if (value < least || value > most)
    fail(ErrorCode::invalid_argument, "{}: {} is not from {} to {}", where(row, column), cell,
         least, most);
  return value;
}

int64_t Csv::whole(size_t row, std::string_view column, int64_t least, int64_t most) const {
  const double value = number(row, column, static_cast<double>(least), static_cast<double>(most));
  if (value != std::floor(value))
    fail(ErrorCode::invalid_argument, "{}: {} is not a whole number", where(row, column), value);
  return static_cast<int64_t>(value);
}

}  // namespace ductile::sim
