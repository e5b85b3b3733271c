#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

// What a worker tells the process that started it: one JSON object per line, over a pipe. The
// schema is in docs/reference/run-folder.md.
namespace ductile::run {

enum class Phase : uint8_t { train, eval, tune };
std::string_view to_string(Phase phase);

// The progress of the run. Absent numbers are not known yet.
struct Progress {
  Phase phase = Phase::train;
  int64_t step = 0;                   // steps done
  int64_t total_steps = 0;            // 0 = unknown
  double epoch = 0;                   // passes over the data done: 2.26
  int64_t epochs = 0;                 // 0 = unknown
  std::optional<double> phase_share;  // of an evaluation, of a search's budget
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

// One row of a long answer (`ductile predict`).
struct Row {
  nlohmann::json values;

  bool operator==(const Row&) const = default;
};

// The last line of a worker: the figures of its run (docs/reference/run-folder.md, event "end").
struct Done {
  nlohmann::json figures;

  bool operator==(const Done&) const = default;
};

// The last line of a worker that ends early, with the reason.
struct Failed {
  ErrorCode code = ErrorCode::internal;
  std::string text;

  bool operator==(const Failed&) const = default;
};

nlohmann::json to_json(const Progress& progress);
// Absent fields keep their defaults, and unknown fields are skipped. Throws invalid_argument that
// names a field of the wrong type.
Progress progress_from_json(const nlohmann::json& value);

using WorkerLine = std::variant<Progress, Message, Row, Done, Failed>;

// One line with its newline. It has at most 4096 bytes, which a pipe transfers atomically, and
// texts are cut to fit; only Row and Done may be longer.
std::string encode(const WorkerLine& line);
// Writes the encoded line to a pipe. If the reader is gone, only the line is lost, and the run goes
// on: the run directory has everything. With fd -1 nothing is written.
void write_line(int fd, const WorkerLine& line) noexcept;
// The same for what a run can do without: it is not written where the reader, which may be stopped,
// leaves no room for it. Never waits.
void offer_line(int fd, const WorkerLine& line) noexcept;
// Returns nullopt for any other line, since libraries in the worker may print anything.
std::optional<WorkerLine> decode(std::string_view line);

}  // namespace ductile::run
