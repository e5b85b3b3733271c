#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/graph/cost_model.h"
#include "ductile/graph/graph.h"

namespace ductile::graph {

// Whatever the bytes, readers never crash, hang or take memory out of proportion. Every reader
// throws invalid_argument with `name` (the file), the operator or edge, and the field. Each result
// has passed check().

// The most text accepted: 64 MiB. The parsed form may take twenty times as much.
inline constexpr size_t kMaxText = kMostText;

// Ductile's own format, docs/reference/graph.schema.json.
nlohmann::json to_json(const Graph& graph);
Graph graph_from_json(const nlohmann::json& value);
nlohmann::json graph_schema();

// Piper's input (github.com/msr-fiddle/piper): forward and backward are one figure there; a third
// of it is taken as forward, the rest as backward, half of that for the weights where there are
// any. Degrees and recompute become variants; fixed_bytes are its memoryUsageB, which holds the
// weights, so state_factor is 0. Files whose times are milliseconds (bandwidth and bytes do not
// show this; Piper itself divides by bytes per second) are recognised by the size of the times: a
// mean time per operator above 0.1 cannot be seconds. A sample is one micro-batch.
Graph graph_from_piper(const nlohmann::json& value);

// PipeDream's profile, graph.txt (github.com/msr-fiddle/pipedream): milliseconds of one
// micro-batch; activation_size may be a list. Nodes "Input..." cost nothing: what the profile shows
// is the data loader. Sample: that micro-batch.
Graph graph_from_pipedream(std::string_view text);

// dnn-partitioning's input (github.com/msr-fiddle/dnn-partitioning). Latencies are milliseconds;
// `cost` of edges is in seconds in some files and milliseconds in others, and is not used: bytes
// are, or cost times 2^31 bytes per second in milliseconds where there are none. Backward operators
// of training graphs stay operators of their own, with their time as forward. colorClass becomes
// `tied`. Memory is fixed_bytes, state_factor 0.
Graph graph_from_dnn_partitioning(const nlohmann::json& value);

enum class Format { ductile, piper, pipedream, dnn_partitioning };
std::string_view to_string(Format format);

// Reads any of these formats, which it recognises by the contents. A graph without a name gets the
// name of the file.
Graph read_graph_text(std::string_view text, std::string_view name, Format* found = nullptr);
Graph read_graph(const std::filesystem::path& file, Format* found = nullptr);

// What a user names: a file in one of these formats, or a built-in graph (builders.h), priced for
// `device`. Throws not_found, which suggests the nearest name, if it is neither.
Graph find_graph(const std::string& text, const DeviceModel& device);

}  // namespace ductile::graph
