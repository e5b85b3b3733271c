#include "ductile/run/folder.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iterator>
#include <system_error>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/run/checkpoints.h"
#include "ductile/run/new_folder.h"

namespace ductile::run {
namespace {

std::string local_time_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return text;
}

void make_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) != 0) fail_errno(path.string() + ": mkdir", errno);
}

bool is_absence(const std::error_code& error) {
  return error.value() == ENOENT || error.value() == ENOTDIR;
}

// The link is made aside and renamed, so that `latest` always points at some run. A `latest` that
// is not a link belongs to the user and stays.
void point_latest_at(const fs::path& runs, const fs::path& name) {
  const fs::path link = runs / "latest";
  std::error_code error;
  const fs::file_status now = fs::symlink_status(link, error);
  if (now.type() != fs::file_type::not_found && !fs::is_symlink(now)) return;
  const fs::path aside = runs / (".latest." + name.string());
  ::unlink(aside.c_str());
  if (::symlink(name.c_str(), aside.c_str()) != 0) return;  // a file system without links
  if (::rename(aside.c_str(), link.c_str()) != 0) ::unlink(aside.c_str());
}

}  // namespace

std::string file_name_of(std::string_view job_name) {
  std::string out;
  for (const char c : job_name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (plain && !(out.empty() && (c == '.' || c == '-'))) {
      out += c;
    } else if (!plain && !out.empty() && out.back() != '-') {
      out += '-';
    }
    if (out.size() == 80) break;
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "job" : out;
}

namespace {

// What a run may have before it has its job.toml, which filled() writes last.
constexpr std::string_view kBeforeJob[] = {"checkpoints", "tensorboard",   "job.toml",
                                           "run.lock",    kInitialWeights, "plan.json",
                                           "replay.json", "batch.json"};

// Of a folder that was just made: a run, or nothing.
RunFolder filled(const fs::path& path, std::string_view job, std::span<const FirstFile> files) {
  try {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error) fail_errno(path.string(), error.value());
    for (const char* name : {"checkpoints", "tensorboard"}) make_folder(real / name);
    for (const FirstFile& file : files) write_file_atomic(real / file.name, file.bytes);
    write_file_atomic(real / "job.toml", job);
    return RunFolder::open(real);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(path, ignored);
    throw;
  }
}

}  // namespace

RunFolder create_folder(const fs::path& runs, std::string_view job_name, std::string_view job,
                        std::span<const FirstFile> files) {
  std::error_code error;
  fs::create_directories(runs, error);
  if (error) fail_errno(runs.string() + ": mkdir", error.value());

  const std::string stem = file_name_of(job_name) + "-" + local_time_stamp();
  std::string name = stem;
  for (int n = 2; ::mkdir((runs / name).c_str(), 0777) != 0; ++n) {
    if (errno != EEXIST) fail_errno((runs / name).string() + ": mkdir", errno);
    name = stem + "-" + std::to_string(n);
  }
  RunFolder folder = filled(runs / name, job, files);
  point_latest_at(runs, name);
  return folder;
}

RunFolder create_folder_at(const fs::path& path, std::string_view job,
                           std::span<const FirstFile> files) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) fail_errno(path.parent_path().string() + ": mkdir", error.value());
  make_folder(path);
  return filled(path, job, files);
}

bool is_unfinished(std::string_view name, std::string_view whole) {
  constexpr std::string_view kMark = ".tmp";
  if (!name.starts_with(whole) || !name.substr(whole.size()).starts_with(kMark)) return false;
  return name.find_first_not_of("0123456789", whole.size() + kMark.size()) == std::string::npos;
}

bool may_become_run(const fs::path& path) {
  if (kind_of(path) != FileKind::folder || kind_of(path / "job.toml") != FileKind::none)
    return false;
  std::error_code error;
  for (auto it = fs::directory_iterator(path, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto is_first = [&](std::string_view first) {
      return name == first || is_unfinished(name, first);
    };
    if (std::ranges::none_of(kBeforeJob, is_first)) return false;
  }
  return !error;
}

void remove_half_made(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> halves;
  for (auto it = fs::directory_iterator(path, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (is_unfinished(it->path().filename().string(), "job.toml")) halves.push_back(it->path());
  }
  std::error_code ignored;
  for (const fs::path& half : halves) fs::remove(half, ignored);
  for (const char* empty : {"checkpoints", "tensorboard", ""}) fs::remove(path / empty, ignored);
}

RunFolder RunFolder::create(const fs::path& runs, std::string_view job_name, std::string_view job) {
  return create_folder(runs, job_name, job, {});
}

RunFolder RunFolder::create_at(const fs::path& path, std::string_view job) {
  make_folder(path);
  return filled(path, job, {});
}

namespace {

// A session of `ductile tune` has a job.toml, too: its trials are runs, and it is none. What would
// resume it would train the job as it is, beside the trials.
void refuse_tuning_session(const fs::path& folder) {
  const fs::path state = folder / "tune.json";
  if (kind_of(state) == FileKind::none) return;
  std::string runs = fmt::format("its runs are in {}", (folder / "trials").string());
  try {
    if (kind_of(state) == FileKind::file) {
      const nlohmann::json saved =
          parse_json(read_file(state), state.string(), ErrorCode::data_loss);
      const auto best = saved.is_object() ? saved.find("best") : saved.end();
      if (best != saved.end() && best->is_number_integer() && *best >= 0)
        runs =
            fmt::format("its best run is {}",
                        (folder / "trials" / fmt::format("{:04}", best->get<int64_t>())).string());
    }
  } catch (const Error&) {  // where it is damaged, none is the best
  }
  fail(ErrorCode::not_found,
       "{0}: not a run but a tuning session; go on with `ductile tune --resume {0}`; {1}",
       folder.string(), runs);
}

}  // namespace

RunFolder RunFolder::open(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (is_absence(error)) {
    if (!path.has_parent_path() && !path.empty())
      fail(ErrorCode::not_found,
           "{0}: no such run directory here; of a job of a service, `ductile why {0} --json` names "
           "it (run)",
           path.string());
    fail(ErrorCode::not_found, "{}: no such run directory ({})", path.string(), error.message());
  }
  if (error) fail_errno(path.string(), error.value());
  RunFolder folder(real);
  if (kind_of(real) != FileKind::folder) {
    fail(ErrorCode::not_found, "{}: not a run directory but a file; give the folder it lies in",
         path.string());
  }
  if (kind_of(folder.job_file()) == FileKind::none) {
    if (kind_of(real / "latest") != FileKind::none) {
      fail(
          ErrorCode::not_found,
          "{0}: not a run directory but a folder of runs; give one of them, for example {0}/latest",
          path.string());
    }
    fail(ErrorCode::not_found, "{}: not a run directory (it holds no job.toml)", path.string());
  }
  refuse_tuning_session(real);
  // Opening a FIFO would wait for ever.
  for (const char* name :
       {"job.toml", "events.jsonl", "metrics.jsonl", "worker.log", "membership.json",
        "controller.json", "hosts.json", "replay.json", "minima.jsonl", "trace.jsonl", "plan.json",
        "former_plan.json", "plan_before.json"}) {
    const FileKind kind = kind_of(real / name);
    if (kind != FileKind::file && kind != FileKind::none) {
      fail(ErrorCode::data_loss, "{}: it is {}, and a run has a file there; remove it",
           (real / name).string(), kind_text(real / name));
    }
  }
  return folder;
}

void RunFolder::remove_leftovers() const {
  constexpr std::string_view kOwned[] = {
      "membership.json", "controller.json", "hosts.json", "job.toml",         "report.html",
      "replay.json",     "plan.json",       "trace.json", "former_plan.json", "plan_before.json"};
  std::error_code error;
  for (auto it = fs::directory_iterator(path_, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto is_of = [&](std::string_view whole) { return is_unfinished(name, whole); };
    if (name.ends_with(".tmp") || std::none_of(std::begin(kOwned), std::end(kOwned), is_of))
      continue;
    std::error_code ignored;
    fs::remove(it->path(), ignored);
  }
}

}  // namespace ductile::run
