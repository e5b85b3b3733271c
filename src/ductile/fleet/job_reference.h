#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/cluster/client.h"

namespace ductile::cli {

// What the user means by JOB, RUN or whatever a command calls it.
struct JobReference {
  // A job of a service; none: a run directory that no service has.
  struct OfService {
    cluster::Client client;
    int64_t id = 0;
    std::string named;                              // how the user named it
    std::string name;                               // that it has there
    std::string path(const char* rest = "") const;  // of the interface
    // To act on it: the service refuses a name that several jobs have which have not ended.
    std::string acts(const char* what) const;
    nlohmann::ordered_json record() const;  // as it is now
  };
  std::optional<OfService> service;
  fs::path run;  // empty: the job has not run yet
};

// A text that is a path (it has a slash), or the name of a folder that is here, means that run
// directory; where a service that is up has it, its job. Any other text is the number or the name
// of a job of the service that `at` names. With one named, only a path with a slash is a path.
// Throws not_found, which says what was looked for where, and cluster::Unreachable.
JobReference find_job(const std::string& text, const ServiceAt& at, const Context& context);

// What stands behind a command so that it asks the same service, with a space before it; empty:
// nothing has to.
std::string same_service(const ServiceAt& at);

// The service that is meant: --server or --folder, else $DUCTILE_SERVER, else the user's own.
cluster::Client client_of(const ServiceAt& at, const Context& context);

// The run directory of such a job; throws not_found if it has none yet.
fs::path run_of(const JobReference& job);

}  // namespace ductile::cli
