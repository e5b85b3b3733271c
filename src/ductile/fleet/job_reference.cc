#include "ductile/fleet/job_reference.h"

#include <system_error>

#include "ductile/base/error.h"
#include "ductile/run/folder.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

// The service's job whose run directory this is, if a service that is up has one.
std::optional<JobReference> job_with_run(const fs::path& run, const fs::path& folder) {
  std::error_code error;
  const fs::path runs = fs::canonical(folder / "runs", error);
  if (error || run.parent_path() != runs) return std::nullopt;
  const cluster::Client client(folder);
  if (!client.reachable()) return std::nullopt;
  const std::string name = run.filename().string();  // NUMBER-NAME
  try {
    const Json job =
        client.get("/v1/jobs/" + cluster::percent_encoded(name.substr(0, name.find('-'))));
    if (fs::path(job.at("run").get<std::string>()).filename() != name) return std::nullopt;
    return JobReference{JobReference::OfService{client, job.at("id")}, run};
  } catch (const Error& not_one_of_its_jobs) {
    if (not_one_of_its_jobs.code() != ErrorCode::not_found) throw;
    return std::nullopt;
  }
}

// Without a home there is no service of this user either, and a run directory needs none.
bool has_usual_folder(const Context& context) {
  try {
    cluster::usual_folder(context.environment);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
}

}  // namespace

std::string JobReference::OfService::path(const char* rest) const {
  return "/v1/jobs/" + std::to_string(id) + rest;
}

Json JobReference::OfService::record() const { return client.get(path()); }

JobReference find_job(const std::string& text, const std::optional<fs::path>& folder,
                      const Context& context) {
  const auto home_of = [&] {
    return folder ? *folder : cluster::usual_folder(context.environment);
  };
  std::error_code ignored;
  const bool is_path = text.find('/') != std::string::npos ||
                       (!folder && (text == "." || fs::is_directory(text, ignored)));
  if (is_path) {
    const fs::path run = fs::canonical(text, ignored);
    const bool may_be_of_service = !ignored && (folder || has_usual_folder(context));
    const auto job = may_be_of_service ? job_with_run(run, home_of()) : std::nullopt;
    return job ? *job : JobReference{std::nullopt, run::RunFolder::open(text).path()};
  }
  const fs::path home = home_of();
  const cluster::Client client(home);
  const char* here = folder ? "" : "no run directory of that name is here, and ";
  if (!client.reachable())
    fail(ErrorCode::not_found, "{}: {}no service answers in {}; `ductile up` starts one", text,
         here, home.string());
  try {
    const Json job = client.get("/v1/jobs/" + cluster::percent_encoded(text));
    return {JobReference::OfService{client, job.at("id")}, job.at("run").get<std::string>()};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    fail(ErrorCode::not_found, "{}: {}the service in {} says: {}", text, here, home.string(),
         error.what());
  }
}

fs::path run_of(const JobReference& job) {
  if (job.run.empty())
    fail(ErrorCode::not_found,
         "job {} has no run directory yet, since it has not run; `ductile why "
         "{}` says what it waits for",
         job.service->id, job.service->id);
  return job.run;
}

}  // namespace ductile::cli
