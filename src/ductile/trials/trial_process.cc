#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include <sys/wait.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/process/spawn.h"
#include "ductile/process/worker.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"
#include "ductile/run/json_lines.h"
#include "ductile/run/meters.h"
#include "ductile/run/new_folder.h"
#include "ductile/trials/trial_process_impl.h"

namespace ductile::trials {
namespace {

using Json = nlohmann::json;

// To save what a trial has done; a controller gives its workers a minute for a step.
constexpr auto kPatience = std::chrono::seconds(120);

// A FIFO, which would be waited for, has no lines; `train --resume` says that it is there.
template <typename Each>
void for_each_event(const fs::path& run, const Each& each) {
  if (kind_of(run / "events.jsonl") == FileKind::file)
    run::for_each_diary_line(run / "events.jsonl", each);
}

uintmax_t size_of(const fs::path& file) {
  std::error_code error;
  const uintmax_t size = fs::file_size(file, error);
  return error ? 0 : size;
}

bool holds_a_run(const fs::path& folder) { return kind_of(folder / "job.toml") != FileKind::none; }

}  // namespace

TrialProcess::TrialProcess(const Launch& launch)
    : log_(launch.log),
      events_(launch.folder / "events.jsonl"),
      log_before_(size_of(log_)),
      events_before_(size_of(events_)) {
  process::SpawnOptions spawn;
  spawn.program = launch.program;
  if (holds_a_run(launch.folder)) {
    spawn.arguments = {"-q", "train", "--resume", launch.folder.string()};
    if (launch.trust) spawn.arguments.emplace_back("--trust");
  } else {
    run::remove_half_made(launch.folder);
    spawn.arguments = {"-q", "train", launch.job.string(), "--out", launch.folder.string()};
    for (const std::string& option : launch.options) {
      spawn.arguments.push_back("--set");
      spawn.arguments.push_back(option);
    }
  }
  spawn.log = launch.log;
  spawn.mask = launch.mask;
  spawn.cpus = launch.cpus;
  pid_ = process::spawn(spawn);
}

TrialProcess::~TrialProcess() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  pause();
  while (!ended()) {
    if (std::chrono::steady_clock::now() > end) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

bool TrialProcess::ended() {
  if (status_) return true;
  int status = 0;
  const pid_t got = ::waitpid(pid_, &status, WNOHANG);
  if (got == 0 || (got < 0 && errno == EINTR)) return false;
  if (got < 0) {
    status_ = 255;  // somebody else reaped it
  } else {
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return true;
}

void TrialProcess::pause() {
  if (asked_ || ended()) return;
  asked_ = true;
  ::kill(pid_, SIGTERM);
}

std::string TrialProcess::said(int lines) const {
  return process::log_tail(log_, lines, log_before_);
}

bool TrialProcess::has_events() const { return size_of(events_) > events_before_; }

std::map<double, double> evaluations(const fs::path& run, const std::string& metric) {
  std::map<double, double> out;
  for_each_event(run, [&](const Json& line) {
    if (line.value("kind", Json()) != "evaluation") return;
    if (!line.contains(metric))
      fail(ErrorCode::invalid_argument,
           "{}: its evaluations have no {}; begin another session with --tune metric=loss",
           run.string(), metric);
    const double epoch = run::number_at(line, "epoch", 0);
    if (epoch > 0) out[epoch] = run::number_at(line, metric.c_str(), NAN);
  });
  return out;
}

RunEnd end_of(const fs::path& run) {
  RunEnd out;
  for_each_event(run, [&](const Json& line) {
    const Json kind = line.value("kind", Json());
    if (kind == "start" || kind == "resume") out.status.clear();
    if (kind != "end") return;
    out.status = line.value("status", "");
    out.message = line.value("message", "");
    if (const auto cost = line.find("cost"); cost != line.end()) {
      out.core_seconds = run::number_at(*cost, "core_seconds", out.core_seconds);
      out.wall_seconds = run::number_at(*cost, "wall_seconds", out.wall_seconds);
    }
  });
  return out;
}

}  // namespace ductile::trials
