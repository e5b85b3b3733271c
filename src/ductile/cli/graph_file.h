#pragma once

#include <optional>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/console.h"

// What becomes of a graph that was measured.
namespace ductile::cli {

// What cannot be written is told before minutes of measuring. Throws what is wrong with `out`.
void check_graph_file(const fs::path& out);

// Writes the graph to `out` and prints its operators as a table, for `samples` at once; without
// `out` the graph is printed.
void put_graph(Console& console, const nlohmann::json& graph, const std::optional<fs::path>& out,
               double samples);

}  // namespace ductile::cli
