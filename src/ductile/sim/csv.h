#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/files.h"

namespace ductile::sim {

// The most bytes of a trace or table that are read.
inline constexpr size_t kMostTrace = size_t{1} << 30;

// A comma-separated file with a header row. Columns are found by name, in any order. The whole file
// is read at once. Every error is invalid_argument and names file, line and column; the header is
// line 1.
class Csv {
 public:
  static Csv read(const fs::path& file);
  static Csv parse(std::string_view text, std::string name);

  size_t rows() const { return rows_.size(); }
  bool has(std::string_view column) const { return find(column).has_value(); }
  const std::string& name() const { return name_; }

  // The cell, without surrounding blanks.
  std::string text(size_t row, std::string_view column) const;
  double number(size_t row, std::string_view column, double least, double most) const;
  int64_t whole(size_t row, std::string_view column, int64_t least, int64_t most) const;
  // "file:7: column 'time'"
  std::string where(size_t row, std::string_view column) const;

 private:
  std::optional<size_t> find(std::string_view column) const;
  size_t require(std::string_view column) const;

  struct Row {
    size_t line;
    std::vector<std::string> cells;
  };
  std::string name_;
  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

}  // namespace ductile::sim
