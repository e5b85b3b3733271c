#include "ductile/fleet/job_reference.h"

#include <system_error>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/cluster/access_file.h"
#include "ductile/page/terminal.h"
#include "ductile/run/folder.h"
#include "ductile/run/runs_mark.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

// The access file that the environment names; empty: none.
std::string server_here(const Context& context) {
  constexpr std::string_view kName = "DUCTILE_SERVER=";
  for (const char* const* at = context.environment; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    if (entry.starts_with(kName)) return std::string(entry.substr(kName.size()));
  }
  return "";
}

bool is_given(const ServiceAt& at) { return at.folder || at.server; }

// A service marks the folder of its runs, or, where it could not, keeps them in its own. Runs that
// lie elsewhere are none of its jobs, whatever they are called: nobody waits for an answer about
// them that may never come.
bool may_be_of_service(const fs::path& run, const fs::path& folder) {
  std::error_code unknown;
  const fs::path runs = run.parent_path();
  if (fs::exists(run::runs_mark_file(runs), unknown) || unknown) return true;
  return fs::equivalent(runs, folder / "runs", unknown);
}

// The service's job whose run directory this is, if a service that is up has one. Where its runs
// are the service says, as `ductile server --shared` puts them elsewhere than into its folder.
std::optional<JobReference> job_with_run(const fs::path& run, const fs::path& folder,
                                         const std::string& option) {
  const std::string name = run.filename().string();  // NUMBER-NAME
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string::npos || name[digits] != '-') return std::nullopt;
  if (!may_be_of_service(run, folder)) return std::nullopt;
  const cluster::Client client(folder, cluster::Client::kPatience, option);
  if (!client.reachable()) return std::nullopt;
  try {
    const Json job = client.get("/v1/jobs/" + name.substr(0, digits));
    std::error_code error;
    if (fs::canonical(job.at("run").get<std::string>(), error) != run || error) return std::nullopt;
    const auto id = job.at("id").get<int64_t>();
    return JobReference{
        JobReference::OfService{client, id, std::to_string(id), job.value("name", "")}, run};
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

std::string JobReference::OfService::acts(const char* what) const {
  return "/v1/jobs/" + cluster::percent_encoded(named) + what;
}

Json JobReference::OfService::record() const { return client.get(path()); }

std::string same_service(const ServiceAt& at) {
  return at.server   ? " --server " + page::shell_word(at.server->string())
         : at.folder ? " --folder " + page::shell_word(at.folder->string())
                     : "";
}

cluster::Client client_of(const ServiceAt& at, const Context& context) {
  if (at.server) return cluster::Client(cluster::read_access(*at.server), same_service(at));
  if (at.folder) return cluster::Client(*at.folder, cluster::Client::kPatience, same_service(at));
  if (const std::string file = server_here(context); !file.empty()) {
    try {
      return cluster::Client(cluster::read_access(file));
    } catch (Error& error) {
      throw error.with_context("DUCTILE_SERVER");
    }
  }
  return cluster::Client(cluster::usual_folder(context.environment));
}

JobReference find_job(const std::string& text, const ServiceAt& at, const Context& context) {
  std::error_code ignored;
  const bool is_path = text.find('/') != std::string::npos ||
                       (!is_given(at) && (text == "." || fs::is_directory(text, ignored)));
  if (is_path) {
    const fs::path run = fs::canonical(text, ignored);
    // A run directory of another machine's service is none of this machine.
    const bool of_this_machine = !ignored && !at.server && (at.folder || has_usual_folder(context));
    const auto job =
        of_this_machine
            ? job_with_run(run, at.folder ? *at.folder : cluster::usual_folder(context.environment),
                           same_service(at))
            : std::nullopt;
    return job ? *job : JobReference{std::nullopt, run::RunFolder::open(text).path()};
  }
  const cluster::Client client = client_of(at, context);
  const char* here = is_given(at) ? "" : "no run directory of that name is here, and ";
  if (!client.reachable())
    throw cluster::Unreachable(ErrorCode::unavailable,
                               fmt::format("{}: {}{}", text, here, client.where()));
  try {
    const Json job = client.get("/v1/jobs/" + cluster::percent_encoded(text));
    return {JobReference::OfService{client, job.at("id"), text, job.value("name", "")},
            job.at("run").get<std::string>()};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    fail(ErrorCode::not_found, "{}: {}{} says: {}", text, here, client.name(), error.what());
  }
}

fs::path run_of(const JobReference& job) {
  if (job.run.empty())
    fail(ErrorCode::not_found, "{}",
         job.service->client.with_option(
             fmt::format("job {0} has no run directory yet, since it has not run; `ductile why "
                         "{0}` says what it waits for",
                         job.service->id)));
  std::error_code ignored;
  if (job.service && !job.service->client.is_local() && !fs::exists(job.run, ignored))
    fail(ErrorCode::not_found,
         "job {}: its run directory {} is where the service runs, and not on this machine; do this "
         "there, or where its folder can be seen",
         job.service->id, job.run.string());
  return job.run;
}

}  // namespace ductile::cli
