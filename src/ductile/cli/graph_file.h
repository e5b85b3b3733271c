#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/console.h"

// What becomes of a graph that was measured.
namespace ductile::cli {

// What cannot be written is told before minutes of measuring. Throws what is wrong with `out`.
void check_graph_file(const fs::path& out);

// ", extrapolated from 8, 16": what has to be said of figures for so many samples at once that were
// measured with these; empty: nothing, as one of them is as large, or they were not chosen.
std::string beyond_shares(double samples, const std::vector<int64_t>& shares);

// Writes the graph to `out` and prints its operators as a table, for `samples` at once, by what was
// measured with `shares`; without `out` the graph is printed.
void put_graph(Console& console, const nlohmann::json& graph, const std::optional<fs::path>& out,
               double samples, const std::vector<int64_t>& shares);

}  // namespace ductile::cli
