#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/options.h"
#include "ductile/cli/console.h"
#include "ductile/process/zygote.h"
#include "ductile/spec/job.h"

namespace ductile::cli {

// How the user names a job on the command line.
struct JobRequest {
  // A job file, or a Python job (python_job.h); without it: the defaults, which train on embedded
  // data.
  std::optional<fs::path> file;
  std::vector<std::string> assignments;               // --set a.b=c
  std::optional<std::vector<std::string>> arguments;  // of a Python job, after --
};

// A job and where each of its values came from. Not copied: the options point into the job.
class JobConfig {
 public:
  JobConfig() = default;
  JobConfig(const JobConfig&) = delete;
  JobConfig& operator=(const JobConfig&) = delete;

  spec::JobOptions job;
  OptionSet options{job};

  // Of a Python job that is to run next: the process that was asked for its options, which has
  // imported torch and forks its workers. Null: `keeps_loaded` was not set before read(), or this
  // job's workers are started one by one (process/zygote.h).
  bool keeps_loaded = false;
  std::shared_ptr<process::Zygote> loaded;

  // Defaults < file < DUCTILE_... environment < --set; then spec::check. In place of the file a
  // Python job is asked for its options. Throws invalid_argument, or not_found where there is no
  // such file.
  void read(const JobRequest& request, const char* const* environment);

  // What a run keeps of its job; options that have moved since are followed.
  void read_saved(const fs::path& file);
  // The same of the text that a file had, which errors name.
  void read_saved_text(const std::string& text, const fs::path& file);

  // As read() for a command that needs the data alone: what fits model and data together is not
  // checked.
  void read_data(const JobRequest& request, const char* const* environment);

  // A warning for each option and each part of the run that does nothing, and for a start that will
  // train badly.
  void warn(Console& console) const;

  // Paths are relative to the folder a command runs in; a run must find its data from anywhere.
  void make_paths_absolute();

 private:
  void take_own_optimizer(const std::string& object);
  void read_python(const std::string& object, const JobRequest& request,
                   const char* const* environment);
};

}  // namespace ductile::cli
