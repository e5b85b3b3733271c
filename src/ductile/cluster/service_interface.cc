// Who may ask the service, and from where.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/ranges.h>
#include <unistd.h>

#include "ductile/base/clock.h"
#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/base/options.h"
#include "ductile/cluster/access_file.h"
#include "ductile/cluster/front_impl.h"
#include "ductile/cluster/limits_impl.h"
#include "ductile/cluster/routes_impl.h"
#include "ductile/cluster/service_impl.h"
#include "ductile/spec/job.h"

namespace ductile::cluster {

namespace {

// The service's job whose run is there, a path without links, where the store still has it.
std::optional<JobRecord> job_of_run(const fs::path& real, const fs::path& runs,
                                    const fs::path& store) {
  std::error_code error;
  if (real.parent_path() != fs::canonical(runs, error) || error) return std::nullopt;
  const std::string name = real.filename().string();  // NUMBER-NAME
  JobId id = 0;
  std::from_chars(name.data(), name.data() + name.size(), id);
  if (id <= 0) return std::nullopt;
  std::optional<JobRecord> job;
  try {
    job = Reader(store).job_if_kept(id);
  } catch (const Error& e) {  // a store that was restored may never have had it
    if (e.code() != ErrorCode::not_found) throw;
  }
  if (job && fs::path(job->run).filename() != real.filename()) job.reset();
  return job;
}

// Who may not act on a job may not offer its weights either. A run elsewhere may be read by the
// service's user alone. Returns its path without links,
// which others could let lead elsewhere once it has been looked at. While nobody can see the runs
// it is not refused for good: throws unavailable.
fs::path require_own_run(const fs::path& run, const RunsFolder& runs, const fs::path& store,
                         const Principal& who) {
  require_folder_of_runs(runs);
  std::error_code error;
  const fs::path real = fs::canonical(run, error);
  if (const auto job = error ? std::nullopt : job_of_run(real, runs.path, store)) {
    require_owner(who, *job);
    return real;
  }
  throw Refused(fmt::format(
      "{} is not the run of a job that this service knows; only the service's own user may have "
      "others served",
      run.string()));
}

// A job that trains has nothing to serve until it has saved for the first time, and one that ended
// before has nothing for ever. Of a run that is nobody's here, who loads its weights says what
// helps.
void require_saved_weights(const Work& work, const fs::path& runs, const fs::path& store,
                           const Beginning& beginning) {
  const auto* serve = std::get_if<ServeSpec>(&work);
  if (serve == nullptr) return;
  std::error_code error;
  const fs::path real = fs::canonical(serve->run, error);
  const auto job = error ? std::nullopt : job_of_run(real, runs, store);
  if (!job || job->phase == Phase::finished) return;
  const bool has_ended_before = has_ended(job->phase);
  if (!has_ended_before && beginning.finished.contains(job->id)) return;
  if (has_weights(run::RunFolder::open(serve->run))) return;
  if (has_ended_before)
    fail(ErrorCode::conflict,
         "{0}: job {1} is {2}, and had neither finished nor saved a checkpoint, so there are no "
         "weights to answer with; submit it again, or finish its run with `ductile train --resume "
         "{0}`",
         serve->run.string(), job->id, to_string(job->phase));
  fail(ErrorCode::conflict,
       "{}: job {} has neither finished nor saved a checkpoint yet, so there are no weights to "
       "answer with; with --after {} the service begins once that job has finished",
       serve->run.string(), job->id, job->id);
}

// A server that runs as root could listen there for anybody, in the name of this machine.
void require_port_for_all(uint16_t port) {
  constexpr uint16_t kFirstForAll = 1024;
  if (port == 0 || port >= kFirstForAll) return;
  throw Refused(fmt::format(
      "port = {}: only an admin has a service listen at a port below {}; choose a larger one, or "
      "leave it out, and a free one is taken",
      port, kFirstForAll));
}

std::vector<std::string> texts_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> out;
  for (const fs::path& path : paths) out.push_back(path.string());
  return out;
}

// Below one of the folders that may be read for others, without links.
std::optional<fs::path> allowed_path(const fs::path& path, const std::vector<fs::path>& allowed) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return std::nullopt;
  for (const fs::path& folder : allowed) {
    const fs::path root = fs::canonical(folder, error);
    if (error) continue;
    if (std::mismatch(root.begin(), root.end(), real.begin(), real.end()).first == root.end())
      return real;
  }
  return std::nullopt;
}

// The service's user opens what a job names, and its results, or the text of its failure, tell what
// was there. So others name data in folders alone that whoever runs the service has opened to them;
// what is found there is kept without links, which could lead elsewhere later. The refusal says
// nothing of what is there. Whether the job is another one now.
bool require_allowed_data(spec::JobOptions& job, const std::vector<fs::path>& allowed,
                          const Principal& who) {
  bool named = false;
  for (const auto& [name, path] :
       {std::pair("data.path", &job.data.path), std::pair("data.test_path", &job.data.test_path)}) {
    if (path->empty()) continue;
    const auto real = allowed_path(*path, allowed);
    if (!real)
      throw Refused(fmt::format(
          "{} = \"{}\": the user of the service would read it for {}, who may name data in {} "
          "alone; whoever runs the service opens other folders: ductile up --data DIR",
          name, *path, who.name,
          allowed.empty() ? "no folder" : fmt::format("{}", fmt::join(texts_of(allowed), ", "))));
    *path = real->string();
    named = true;
  }
  return named;
}

}  // namespace

// What is submitted is read once: the checks look at what was read, and the service takes it up.
SpecReader::Read Service::Impl::checked_work(const Submission& s, nlohmann::json& spec,
                                             const Principal& who) {
  if (s.kind == "serve" && who.role < Role::admin) {
    const ServeSpec serve = serve_of(spec);
    require_port_for_all(serve.port);
    spec["run"] = require_own_run(serve.run, runs_, options_.folder / "store.db", who).string();
  }
  SpecReader::Read read = specs_.read(s.kind, spec);
  if (who.role == Role::admin || !std::holds_alternative<spec::JobOptions>(read->work)) return read;
  spec::JobOptions job = std::get<spec::JobOptions>(read->work);
  if (!require_allowed_data(job, options_.data, who)) return read;
  spec["job"] = OptionSet(job).to_toml();
  return specs_.keep(s.kind, spec, std::move(job));
}

void Service::Impl::open_interface() {
  api_ = std::make_unique<Api>(options_.folder / "store.db", queue_);
  api_->check_submission([this, devices = nodes_.devices(), of_a_node = nodes_.most_devices()](
                             const Submission& s, nlohmann::json& spec, const Principal& who,
                             const Beginning* beginning) {
    const auto read = checked_work(s, spec, who);
    check_spec(s, read->work, read->plans, devices, of_a_node);
    if (beginning != nullptr) {
      const fs::path store = options_.folder / "store.db";
      require_saved_weights(read->work, runs_.path, store, *beginning);
      const auto* job = std::get_if<spec::JobOptions>(&read->work);
      // Nodes of a cluster may have what this machine has not.
      if (job != nullptr && beginning->after.empty() && !options_.cluster) spec::require_data(*job);
    }
    check_gpus(s, read->work, *engine_);
    check_region(s, cluster_, options_.policy);
    if (who.role < Role::admin && runs_own_code(read->work))
      throw Refused(
          "model.library and python.object name code that runs as the user of the service, so only "
          "that user may submit such a job");
  });
  api_->show(&view_);
  api_->on_commit([post = make_poster(loop_, alive_), this] { post([this] { look(); }); });
  api_->set_policy(options_.policy);
  HttpOptions http;
  const int most = http.limits.connections;
  http.limits.connections = connections_for(most);
  if (http.limits.connections < most)
    log_line(fmt::format(
        "{} connections at once instead of {}, since this process may open few files: raise the "
        "hard limit (ulimit -Hn)",
        http.limits.connections, most));
  http.socket = options_.folder / "api.sock";
  if (options_.port) {
    http.port = options_.port;
    http.or_any_port = options_.or_any_port;
    http.page = &page_;
    api_->make_links([this](const Principal& who) { return page_.link_for(who); });
  }
  http.principal_of = [this](std::string_view token) { return api_->recognise(token); };
  http.tls = options_.tls;
  if (http.tls && http.tls->certificate.empty()) {
    http.tls->certificate = options_.folder / "certificate.pem";
    http.tls->key = options_.folder / "certificate.key";
    http.tls->make = true;
  }
  http_ = std::make_unique<HttpServer>(*api_, std::move(http));
  if (options_.port) api_->set_address(fmt::format("http://127.0.0.1:{}", http_->port()), "");
  if (options_.tls) offer_access();
}

std::string Service::Impl::page_link() {
  return page_.link_for({user_name(::geteuid()), Role::admin});
}

// The access file of the service's own user says where the service is now. Its token is made once,
// and again where the file, or the token, is no good any more.
void Service::Impl::offer_access() {
  std::string host = options_.tls->address.host;
  if (host == "0.0.0.0" || host == "::") {
    char name[256] = {};
    host = ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
  }
  // An operator's own certificate is renewed, perhaps with another key, and has a name.
  Access access{"https://" + net::Address{host, http_->tls_port()}.to_string(),
                options_.tls->certificate.empty() ? http_->pin() : "", ""};
  address_ = access.address;
  api_->set_address(access.address, access.fingerprint);
  const fs::path file = options_.folder / "access.json";
  const Principal own{user_name(::geteuid()), Role::admin, "", true};
  if (fs::exists(file)) {
    try {
      const Access before = read_access(file);
      access.token = before.token;
      if (before == access && api_->recognise(before.token).principal == own) return;
    } catch (const Error& error) {
      log_line(fmt::format("{}; it is made anew", error.what()));
    }
  }
  if (api_->recognise(access.token).principal != own) {
    access.token = make_token();
    queue_.commit([&](Change& change) {
      const double now = wall_seconds();
      const TokenRecord record{0,   own.name,     Role::admin, "", digest_of_token(access.token),
                               now, std::nullopt, std::nullopt};
      try {
        change.revoke_token(own.name, own.name, now);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::not_found) throw;
      }
      change.add_token(record, own.name);
    });
    api_->load_tokens();
  }
  write_access(file, access);
}

}  // namespace ductile::cluster
