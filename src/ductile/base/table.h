#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ductile {

// The candidate with the smallest edit distance, if near enough to be a likely typing error; upper
// and lower case are the same.
std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates);

// The text of the error for an unknown name, everywhere: `policy "siar" is not known; did you mean
// "sia"? Allowed: "fifo", "sia"`. `what` comes before the name: "policy", "optimizer.name =".
std::string unknown_name(std::string_view what, std::string_view name,
                         std::span<const std::string> known);

// Throws invalid_argument with that text.
[[noreturn]] void fail_unknown_name(std::string_view what, std::string_view name,
                                    std::span<const std::string> known);

// The members that every row of a table has.
struct Named {
  std::string_view name;
  std::string_view help;
};

// Everything of one kind that can be chosen by name: the optimisers, the policies, and so on. A row
// has `name` and `help`; it also has `make` if the module that holds the table can make the thing.
// Lists of allowed names, help texts and reference pages are taken from the table, so a row in it
// is all that registers a new thing. The table is a view of an array that lives as long as the
// program. Two rows with the same name do not compile.
//
// If the names are read on a lower layer than the one that makes the things (spec knows no torch),
// the rows are written once, as a macro, and each of the two layers expands it to its own half:
//   #define DUCTILE_OPTIMIZERS(ROW) ROW("sgd", make_sgd, "SGD with momentum") ROW(...)
//   constexpr OptimizerEntry kRows[] = {DUCTILE_OPTIMIZERS(DUCTILE_TABLE_ROW)};
template <class Row>
class Table {
 public:
  // `what` as unknown_name() has it.
  template <size_t N>
  constexpr Table(std::string_view what, const Row (&rows)[N]) : what_(what), rows_(rows) {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (rows[i].name == rows[j].name) throw std::logic_error("two rows of one name");
      }
    }
  }

  constexpr auto begin() const { return rows_.begin(); }
  constexpr auto end() const { return rows_.end(); }
  constexpr size_t size() const { return rows_.size(); }

  // Null if there is no row with that name.
  constexpr const Row* find(std::string_view name) const {
    for (const Row& row : rows_) {
      if (row.name == name) return &row;
    }
    return nullptr;
  }
  // Throws invalid_argument, which suggests the nearest name and lists all of them, if there is no
  // such row.
  const Row& at(std::string_view name) const {
    if (const Row* row = find(name)) return *row;
    fail_unknown_name(what_, name, names());
  }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const Row& row : rows_) out.emplace_back(row.name);
    return out;
  }

 private:
  std::string_view what_;
  std::span<const Row> rows_;
};

}  // namespace ductile

// Expands to the whole row; for the module that makes the things.
#define DUCTILE_TABLE_ROW(...) {__VA_ARGS__},
