#pragma once

#include <string>

#include "ductile/base/files.h"
#include "ductile/cluster/records.h"

namespace ductile::cluster {

class Reader;
struct ServiceOptions;

// Where the store keeps the mark.
inline constexpr const char* kRunsMark = "mark of the runs";

// The folder that run directories lie in, and its mark (run/runs_mark.h), by which it is told from
// another disk.
struct RunsFolder {
  fs::path path;
  std::string mark;  // empty: it could not be marked, so no more is known than whether it is there
  // Where the store's newest run was, if elsewhere: the service may have been started with another
  // --shared than before. Empty: nothing is to be said of that.
  fs::path before{};
};

// The folder of the runs, made and marked where it is missing. Of a store that knows runs it was
// there, and what is not to be seen was not deleted: throws unavailable, as
// require_folder_of_runs() does.
RunsFolder runs_of(const ServiceOptions& options, Reader& reader);

// That the folder is not there, or that another one is in its place, as where its disk is not
// mounted, and what helps, as a sentence without its point. Empty: it is, or that cannot be seen
// now. Whoever began there would begin anew, beside what is on that disk. `run`: a run directory
// that is known to be in it; where it is, nobody asks for a mark that was removed.
std::string absence_of_runs(const RunsFolder& runs, const fs::path& run = {});
// Throws unavailable, with the same words.
void require_folder_of_runs(const RunsFolder& runs, const fs::path& run = {});

// Whether the mark was missing beside runs that the store knows, as where somebody removed it
// alone; it is then written again.
bool restore_mark(const RunsFolder& runs, Reader& reader);

// The highest number of a job that has a run directory there; 0: none has.
JobId last_run_in(const fs::path& runs);
// What the run directory of a job is called, unless something else is there.
std::string name_of_run(const JobRecord& job);
// The run directory of a job of which the store believes that it never began, as an older copy of a
// store does; empty: it has none. What was there before the job was submitted is another one's.
fs::path forgotten_run(const fs::path& runs, const JobRecord& job);
// That there are runs of later jobs than the store knows, and what helps, without a point.
std::string behind_text(const fs::path& runs, JobId known, JobId there);

}  // namespace ductile::cluster
