#include "ductile/cli/job_config.h"

#include "ductile/base/error.h"

namespace ductile::cli {

void JobConfig::read(const JobRequest& request, const char* const* environment) {
  read_data(request, environment);
  spec::check(job);
}

void JobConfig::read_saved(const fs::path& file) {
  options.read_toml(file, Moved::follow);
  spec::check(job);
}

void JobConfig::read_data(const JobRequest& request, const char* const* environment) {
  if (request.file) {
    std::error_code ignored;
    if (fs::is_directory(*request.file, ignored)) {
      fail(ErrorCode::invalid_argument, "{} is a folder, not a job file (TOML)",
           request.file->string());
    }
    options.read_toml(*request.file);
  }
  if (environment != nullptr) options.read_environment(environment);
  for (const std::string& assignment : request.assignments) options.set(assignment);
}

void JobConfig::make_paths_absolute() {
  for (std::string* path : {&job.data.path, &job.data.test_path, &job.model.library}) {
    if (!path->empty()) *path = fs::absolute(*path).lexically_normal().string();
  }
}

}  // namespace ductile::cli
