#include "ductile/cli/graph_file.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/paths.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

double at(const json& cost, double samples) {
  if (cost.is_number()) return cost.get<double>() * samples;
  return cost.at("fixed").get<double>() + cost.at("per_sample").get<double>() * samples;
}

void print_operators(Console& console, const json& graph, double samples) {
  std::vector<std::vector<std::string>> rows = {
      {"OPERATOR", "KIND", "FORWARD", "BACKWARD", "WEIGHTS", "PARAMETERS", "HELD"}};
  std::vector<double> sums(5, 0);
  const auto add = [&](std::string name, std::string kind, const std::vector<double>& v) {
    rows.push_back({std::move(name), std::move(kind), page::as_short_duration(v[0]),
                    page::as_short_duration(v[1]), page::as_short_duration(v[2]),
                    page::as_bytes(v[3]), page::as_bytes(v[4])});
  };
  for (const json& op : graph.at("ops")) {
    const std::vector<double> own = {
        at(op.at("forward"), samples), at(op.at("backward_input"), samples),
        at(op.at("backward_weight"), samples), op.at("parameter_bytes").get<double>(),
        op.at("activation_bytes").get<double>() * samples};
    for (size_t i = 0; i < own.size(); ++i) sums[i] += own[i];
    add(op.at("name"), op.at("kind"), own);
  }
  add("all", "", sums);
  console.print("{}", page::table(rows));
}

}  // namespace

void check_graph_file(const fs::path& out) {
  const fs::path folder = fs::absolute(out).parent_path();
  if (!is_folder(folder))
    fail(ErrorCode::not_found, "--out {}: there is no folder {}; make it, or name another file",
         out.string(), out.parent_path().string());
  switch (kind_of(out)) {
    case FileKind::folder:
      fail(ErrorCode::conflict, "--out {}: is a folder; name a file", out.string());
    case FileKind::other:
      fail(ErrorCode::invalid_argument,
           "--out {}: is {}, not a file; without --out the graph goes to standard output",
           out.string(), kind_text(out));
    case FileKind::none:
    case FileKind::file:
      break;
  }
  // A file beside it is written and takes its place.
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    fail_errno(
        fmt::format("--out {}: the folder {} cannot be written to", out.string(), folder.string()),
        errno);
}

std::string beyond_shares(double samples, const std::vector<int64_t>& shares) {
  const bool measured = shares.empty() || static_cast<double>(std::ranges::max(shares)) >= samples;
  return measured ? "" : fmt::format(", extrapolated from {}", fmt::join(shares, ", "));
}

void put_graph(Console& console, const json& graph, const std::optional<fs::path>& out,
               double samples, const std::vector<int64_t>& shares) {
  const std::string text = dump_json(graph, 1) + "\n";
  if (!out) {
    console.print("{}", text);
    return;
  }
  write_file_atomic(*out, text);
  print_operators(console, graph, samples);
  console.print("\nTimes and bytes held are for {} samples at once{}. The graph is {}.\n",
                page::with_thousands(samples), beyond_shares(samples, shares), out->string());
}

}  // namespace ductile::cli
