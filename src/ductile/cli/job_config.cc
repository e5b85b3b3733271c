#include "ductile/cli/job_config.h"

#include <algorithm>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/base/paths.h"
#include "ductile/cli/python_job.h"
#include "ductile/spec/start_warnings.h"
#include "ductile/spec/without_effect.h"

namespace ductile::cli {

void JobConfig::read(const JobRequest& request, const char* const* environment) {
  const auto object = request.file ? python_object(*request.file) : std::nullopt;
  if (request.arguments && !object) {
    fail(ErrorCode::invalid_argument,
         "what follows -- are arguments of a Python job, as in ductile train train.py:Job -- --lr "
         "3");
  }
  if (object) {
    read_python(*object, request, environment);
  } else {
    read_data(request, environment);
  }
  spec::check(job);
}

void JobConfig::read_python(const std::string& object, const JobRequest& request,
                            const char* const* environment) {
  const auto read_ours = [&](OptionSet& to) {
    if (environment != nullptr) to.read_environment(environment);
    for (const std::string& assignment : request.assignments) to.set(assignment);
  };
  spec::JobOptions asked;  // which Python it is has to be known before the job can say anything
  OptionSet asked_options(asked);
  read_ours(asked_options);
  const std::string interpreter = find_interpreter(asked.python.interpreter);
  const std::vector<std::string> arguments = request.arguments.value_or(std::vector<std::string>());
  const int64_t threads = std::max<int64_t>(asked.train.threads, 1);  // as settle_threads() has it
  const PythonJob told =
      ask_python_job(object, interpreter, arguments, threads, keeps_loaded ? &loaded : nullptr);
  job.model.name = job.data.format = "python";
  options.read_json(told.options, object);
  read_ours(options);
  if (told.has_optimizer) {
    take_own_optimizer(object);
  } else if (job.optimizer.name == "python") {
    fail(ErrorCode::invalid_argument,
         "optimizer.name = \"python\", and this job's class has no optimizer(); write one, or name "
         "one of Ductile's rules");
  }
  job.python = {object,      interpreter,   arguments,
                told.source, told.versions, job.python.verify_every};
}

// The optimizer() of the job's class says all that these options would say.
void JobConfig::take_own_optimizer(const std::string& object) {
  for (const OptionField& field : options.fields()) {
    const bool is_of_it =
        field.path.starts_with("optimizer.") || field.path.starts_with("schedule.");
    if (!is_of_it || field.path == "optimizer.clip_norm" || field.origin.is_default()) continue;
    fail(ErrorCode::invalid_argument,
         "{} ({}) says nothing, since {} has an optimizer() of its own; leave one of them out",
         field.path, field.origin.text, object);
  }
  job.optimizer.name = "python";
}

void JobConfig::read_saved(const fs::path& file) {
  options.read_toml(file, Moved::follow);
  spec::check(job);
}

void JobConfig::read_saved_text(const std::string& text, const fs::path& file) {
  options.read_toml_text(text, file.string(), Moved::follow);
  spec::check(job);
}

namespace {

void refuse_other_files(const fs::path& file) {
  const FileKind kind = kind_of(file);
  if (kind == FileKind::none)
    fail(ErrorCode::not_found,
         "{}: no such file; a job is a TOML file, as `ductile config` prints one, or FILE.py:CLASS",
         file.string());
  if (kind == FileKind::file && (file.extension() == ".pt" || file.extension() == ".pth"))
    fail(ErrorCode::invalid_argument,
         "{0} is a model, not a job file (TOML); a job trains one that ductile capture --model "
         "wrote: --set model.name=custom --set model.library={0}",
         file.string());
}

}  // namespace

void JobConfig::read_data(const JobRequest& request, const char* const* environment) {
  if (request.file) {
    std::error_code ignored;
    if (fs::is_directory(*request.file, ignored)) {
      fail(ErrorCode::invalid_argument, "{} is a folder, not a job file (TOML)",
           request.file->string());
    }
    refuse_other_files(*request.file);
    options.read_toml(*request.file);
  }
  if (environment != nullptr) options.read_environment(environment);
  for (const std::string& assignment : request.assignments) options.set(assignment);
}

void JobConfig::warn(Console& console) const {
  for (const std::string& text : spec::without_effect(job, options))
    console.say("warning: {}", text);
  for (const std::string& text : spec::start_warnings(job, options))
    console.say("warning: {}", text);
}

void JobConfig::make_paths_absolute() {
  for (std::string* path : {&job.data.path, &job.data.test_path, &job.model.library}) {
    if (!path->empty()) *path = fs::absolute(*path).lexically_normal().string();
  }
}

}  // namespace ductile::cli
