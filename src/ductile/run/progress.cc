#include "ductile/run/progress.h"

#include <cerrno>
#include <cmath>

#include <poll.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/run/json_lines.h"

namespace ductile::run {
namespace {

using nlohmann::json;

constexpr size_t kLineLimit = 4096;  // PIPE_BUF: longer writes to a pipe may be mixed with others

template <class Visit>
void visit_optionals(Progress& p, const Visit& visit) {
  visit("phase_share", p.phase_share);
  visit("loss", p.loss);
  visit("accuracy", p.accuracy);
  visit("eval_accuracy", p.eval_accuracy);
  visit("lr", p.lr);
  visit("samples_per_second", p.samples_per_second);
  visit("eta_seconds", p.eta_seconds);
}

template <class T>
void read_number(const json& value, const char* key, T& out) {
  const auto at = value.find(key);
  if (at == value.end()) return;
  double number = 0;
  const bool fits =
      number_from_json(*at, number) && (std::is_floating_point_v<T> || std::abs(number) < 9e18);
  if (!fits) {
    fail(ErrorCode::invalid_argument, "progress: {} must be a number, not {}", key, dump_json(*at));
  }
  out = static_cast<T>(number);
}

Phase phase_from(const json& value) {
  for (const Phase phase : {Phase::train, Phase::eval, Phase::tune}) {
    if (value == to_string(phase)) return phase;
  }
  fail(ErrorCode::invalid_argument, "progress: phase is train, eval or tune, not {}",
       dump_json(value));
}

// Cuts to at most `limit` bytes without splitting a UTF-8 character.
std::string_view cut(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit);
}

// The line of an object with a text that is cut until it fits: a character may become six in JSON.
template <class Make>
std::string fitting(std::string_view text, const Make& make) {
  for (size_t limit = kLineLimit;; limit /= 2) {
    std::string line = dump_json(make(cut(text, limit)));
    if (line.size() < kLineLimit) return line + "\n";
  }
}

}  // namespace

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::train:
      return "train";
    case Phase::eval:
      return "eval";
    case Phase::tune:
      return "tune";
  }
  return "train";
}

json to_json(const Progress& progress) {
  json value = {{"phase", to_string(progress.phase)},  {"step", progress.step},
                {"total_steps", progress.total_steps}, {"epoch", json_number(progress.epoch)},
                {"epochs", progress.epochs},           {"workers", progress.workers}};
  Progress copy = progress;
  visit_optionals(copy, [&](const char* key, const std::optional<double>& field) {
    if (field) value[key] = json_number(*field);
  });
  return value;
}

Progress progress_from_json(const json& value) {
  if (!value.is_object()) {
    fail(ErrorCode::invalid_argument, "progress: must be an object, not {}", value.type_name());
  }
  Progress p;
  if (const auto at = value.find("phase"); at != value.end()) p.phase = phase_from(*at);
  read_number(value, "step", p.step);
  read_number(value, "total_steps", p.total_steps);
  read_number(value, "epoch", p.epoch);
  read_number(value, "epochs", p.epochs);
  read_number(value, "workers", p.workers);
  visit_optionals(p, [&](const char* key, std::optional<double>& field) {
    if (!value.contains(key)) return;
    double number = 0;
    read_number(value, key, number);
    field = number;
  });
  return p;
}

std::string encode(const WorkerLine& line) {
  if (const auto* progress = std::get_if<Progress>(&line)) {
    return dump_json(json{{"progress", to_json(*progress)}}) + "\n";
  }
  if (const auto* row = std::get_if<Row>(&line)) {
    return dump_json(json{{"row", row->values}}) + "\n";
  }
  if (const auto* done = std::get_if<Done>(&line)) {
    return dump_json(json{{"done", done->figures}}) + "\n";
  }
  if (const auto* failed = std::get_if<Failed>(&line)) {
    return fitting(failed->text, [&](std::string_view text) {
      return json{{"error", text}, {"code", to_string(failed->code)}};
    });
  }
  const auto& message = std::get<Message>(line);
  return fitting(message.text, [&](std::string_view text) {
    return json{{"message", text}, {"level", cut(message.level, 16)}};
  });
}

void write_line(int fd, const WorkerLine& line) noexcept try {
  if (fd < 0) return;
  const std::string text = encode(line);
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    done += static_cast<size_t>(n);
  }
} catch (const std::exception&) {  // no memory for a line
}

void offer_line(int fd, const WorkerLine& line) noexcept {
  pollfd room{fd, POLLOUT, 0};  // a pipe says so where it takes PIPE_BUF bytes at once
  if (fd >= 0 && ::poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0) write_line(fd, line);
}

std::optional<WorkerLine> decode(std::string_view line) {
  const json value = parse_json(line);
  if (!value.is_object()) return std::nullopt;
  if (const auto at = value.find("progress"); at != value.end()) {
    try {
      return progress_from_json(*at);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  if (const auto at = value.find("row"); at != value.end() && at->is_object()) return Row{*at};
  if (const auto at = value.find("done"); at != value.end() && at->is_object()) return Done{*at};
  const auto text_of = [&](const char* key) -> std::optional<std::string> {
    const auto at = value.find(key);
    if (at == value.end() || !at->is_string()) return std::nullopt;
    return at->get<std::string>();
  };
  if (const auto text = text_of("error")) {
    return Failed{error_code_from(text_of("code").value_or("")), *text};
  }
  const auto text = text_of("message");
  if (!text) return std::nullopt;
  return Message{.level = text_of("level").value_or("info"), .text = *text};
}

}  // namespace ductile::run
