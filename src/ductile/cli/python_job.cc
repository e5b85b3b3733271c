#include "ductile/cli/python_job.h"

#include <cstdlib>
#include <system_error>

#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/cli/worker_process.h"
#include "ductile/process/find_program.h"
#include "ductile/process/worker.h"

namespace ductile::cli {

std::optional<std::string> python_object(const fs::path& word) {
  const std::string text = word.string();
  const auto file = [](const std::string& name) {
    return fs::absolute(name).lexically_normal().string();
  };
  if (text.ends_with(".py")) return file(text);
  std::error_code ignored;
  const size_t colon = text.rfind(':');
  const bool has_class = colon != std::string::npos && colon > 0 && colon + 1 < text.size() &&
                         text.find('/', colon) == std::string::npos;
  if (!has_class || fs::exists(word, ignored)) return std::nullopt;
  const std::string where = text.substr(0, colon);
  return where.ends_with(".py") ? file(where) + text.substr(colon) : text;
}

std::string find_interpreter(const std::string& wanted) {
  if (!wanted.empty()) {
    if (access(wanted.c_str(), X_OK) == 0) return fs::absolute(wanted).string();
    fail(ErrorCode::not_found, "python.interpreter = \"{}\" is not a program that can be run",
         wanted);
  }
  if (const char* folder = std::getenv("VIRTUAL_ENV"); folder != nullptr && *folder != '\0') {
    const fs::path python = fs::path(folder) / "bin" / "python";
    if (access(python.c_str(), X_OK) == 0) return python.string();
  }
  if (const auto found = process::find_program("python3")) return fs::absolute(*found).string();
  fail(ErrorCode::not_found,
       "python3 is not on PATH; name the Python that runs the job: --set "
       "python.interpreter=/usr/bin/python3");
}

namespace {

// Nothing where the question is to be asked, and its workers to be started, without one.
std::shared_ptr<process::Zygote> zygote_for(const WorkerQuestion& question) {
  if (!process::has_zygote(question.program)) return nullptr;
  process::SpawnOptions worker;
  worker.program = question.program;
  worker.arguments = question.arguments;
  worker.environment = process::worker_environment(question.threads);
  worker.log = "/dev/null";
  try {
    return std::make_shared<process::Zygote>(worker);
  } catch (const Error&) {  // who starts the program will find out why
    return nullptr;
  }
}

}  // namespace

PythonJob ask_python_job(const std::string& object, const std::string& interpreter,
                         const std::vector<std::string>& arguments, int64_t threads,
                         std::shared_ptr<process::Zygote>* loaded) {
  WorkerQuestion question;
  question.threads = threads;
  question.program = process::python_worker(process::find_worker());
  question.arguments = {"--interpreter", interpreter, "--describe-job",
                        object,          "--args",    dump_json(nlohmann::json(arguments))};
  if (loaded != nullptr) question.zygote = *loaded = zygote_for(question);
  const auto told = ask_worker(question);
  if (loaded != nullptr && *loaded && (*loaded)->broken()) loaded->reset();
  if (!told) fail(ErrorCode::unavailable, "{}: interrupted while it was asked", object);
  return {told->at("options"), told->at("source"), told->at("versions"), told->at("optimizer")};
}

}  // namespace ductile::cli
