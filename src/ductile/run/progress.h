#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <nlohmann/json.hpp>

#include "ductile/base/error.h"

// What a worker tells the process that started it while it runs: one JSON object a line, over a
// pipe. Schema: docs/reference/run-folder.md.
namespace ductile::run {

enum class Phase : uint8_t { train, eval, checkpoint };
std::string_view to_string(Phase phase);

// Where the run stands. Absent numbers are those not known yet.
struct Progress {
  Phase phase = Phase::train;
  int64_t step = 0;                   // steps done
  int64_t total_steps = 0;            // 0 = unknown
  double epoch = 0;                   // passes over the data done: 2.26
  int64_t epochs = 0;                 // 0 = unknown
  std::optional<double> phase_share;  // how much of an evaluation is done, [0, 1]
  std::optional<double> loss;
  std::optional<double> accuracy;       // of training, [0, 1]
  std::optional<double> eval_accuracy;  // of the last evaluation, [0, 1]
  std::optional<double> lr;
  std::optional<double> samples_per_second;
  std::optional<double> eta_seconds;
  int64_t workers = 1;

  bool operator==(const Progress&) const = default;
};

// A line for the user; `level` is info, warning or error.
struct Message {
  std::string level = "info";
  std::string text;

  bool operator==(const Message&) const = default;
};

// The last line of a worker: the figures of its run (docs/reference/run-folder.md, event "end").
struct Done {
  nlohmann::json figures;

  bool operator==(const Done&) const = default;
};

// The last line of a worker that ends early, and why.
struct Failed {
  ErrorCode code = ErrorCode::internal;
  std::string text;

  bool operator==(const Failed&) const = default;
};

nlohmann::json to_json(const Progress& progress);
// Fields that are absent keep their defaults, fields not known are passed over. Throws
// invalid_argument naming a field that has the wrong type.
Progress progress_from_json(const nlohmann::json& value);

using WorkerLine = std::variant<Progress, Message, Done, Failed>;

// One line with its newline. At most a pipe's atomic 4096 bytes, texts being cut to fit; Done alone
// may be longer.
std::string encode(const WorkerLine& line);
// Writes the encoded line to a pipe. A reader that is gone loses the line, never the run: the run
// directory has it all. fd -1: nowhere.
void write_line(int fd, const WorkerLine& line) noexcept;
// nullopt for any other line: a library of the worker's may print what it likes.
std::optional<WorkerLine> decode(std::string_view line);

}  // namespace ductile::run
