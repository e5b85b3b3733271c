// `ductile server --check` and `--backup`: what is done with a service's store, while one runs or
// none does.
#include <string>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/cluster/service.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/store_check.h"
#include "ductile/fleet/service_request_impl.h"
#include "ductile/page/terminal.h"

namespace ductile::cli {

ExitCode check_the_store(const fs::path& folder, Context& context) {
  Console& console = context.console;
  const cluster::StoreReport report = cluster::check_store(folder);
  for (const std::string& fault : report.faults) console.print("{}\n", page::one_line(fault));
  for (const std::string& loss : report.losses) console.print("{}\n", page::one_line(loss));
  for (const std::string& note : report.notes) console.print("{}\n", page::one_line(note));
  console.say("{}: schema {}, {} job{}, of which {} {} not ended, {} event{}: {}",
              report.file.string(), report.schema, report.jobs, report.jobs == 1 ? "" : "s",
              report.live, report.live == 1 ? "has" : "have", report.events,
              report.events == 1 ? "" : "s",
              !report.faults.empty()   ? "it is damaged"
              : report.is_behind       ? "it is whole, but older than the runs"
              : !report.losses.empty() ? "it is whole, but what it names is not"
                                       : "it is whole");
  if (!report.remedy.empty()) console.say("{}", report.remedy);
  return report.faults.empty() && report.losses.empty() ? kDone : kFailed;
}

void require_store_of_one_machine(const fs::path& folder) {
  std::vector<cluster::NodeRecord> nodes;
  try {
    if (kind_of(folder / "store.db") == FileKind::none) return;
    nodes = cluster::Reader(folder / "store.db").nodes();
  } catch (const Error&) {  // an older schema, or damage, of which the service says more
    return;
  }
  if (nodes.size() < 2) return;
  fail(ErrorCode::conflict,
       "{0}: the store there is of a cluster of {1} nodes ({2}, ...), and `ductile up` shares one "
       "machine: start `ductile server CLUSTER.toml --folder {0}`, or choose another folder",
       page::shell_word(folder.string()), nodes.size(), nodes.front().node);
}

ExitCode back_up_the_store(const ServiceCommand& command, Context& context) {
  const fs::path folder = fs::absolute(
      command.at.folder ? *command.at.folder : cluster::usual_folder(context.environment));
  const fs::path to = fs::absolute(*command.backup).parent_path();
  if (kind_of(to) == FileKind::none)
    fail(ErrorCode::not_found, "--backup {}: there is no folder {}", command.backup->string(),
         to.string());
  cluster::back_up_store(folder, *command.backup);
  context.console.say(
      "the store of {} is in {}; back up its runs after it, and not before; to put it back: stop "
      "the service, remove store.db-wal and store.db-shm, and copy it to store.db; tokens that are "
      "revoked and jobs that are cancelled from now on then have to be so again",
      folder.string(), command.backup->string());
  return kDone;
}

}  // namespace ductile::cli
