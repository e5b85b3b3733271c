
#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/fleet/job_reference.h"
#include "ductile/run/minima.h"
#include "ductile/run/report.h"

namespace ductile::cli {

ExitCode report(const ReportCommand& command, Context& context) {
  const JobReference job = find_job(command.job, command.at, context);
  if (job.service && job.service->record().at("kind") == "command")
    fail(ErrorCode::conflict,
         "job {0} is a command, of which nothing but its output is known: ductile logs {0}{1}",
         job.service->id, job.service->client.option());
  const run::RunFolder folder = run::RunFolder::open(run_of(job));
  run::write_report(folder);
  if (command.json) {
    nlohmann::json all = run::report_json(folder);
    if (auto minima = run::read_minima(folder); !minima.empty()) all["minima"] = std::move(minima);
    all["run"] = folder.path().string();
    all["report"] = folder.report_file().string();
    context.console.print("{}\n", dump_json(all, 2));
  } else {
    context.console.print("{}\n", folder.report_file().string());
  }
  return kDone;
}

}  // namespace ductile::cli
