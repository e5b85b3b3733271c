#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/files.h"

namespace ductile::cluster {

// Where a backup of a store says when it was made, until a service begins on it.
inline constexpr std::string_view kBackupMark = "a backup of";
// What nobody may take for granted of a store that was put back as it was earlier.
inline constexpr std::string_view kForgotten =
    "tokens that were revoked since are valid again (`ductile token list`, `ductile token "
    "revoke "
    "NAME`), and jobs that were cancelled since, commands too, may run again (`ductile jobs`, "
    "`ductile cancel JOB`)";
// The same of a backup of the time `made`, as its mark says it.
std::string backup_text(std::string_view made);

// What a look at the whole of a service's folder has found.
struct StoreReport {
  fs::path file;
  int64_t schema = 0, jobs = 0, live = 0, events = 0;
  std::vector<std::string> faults;  // the store contradicts itself, or cannot be read: in sentences
  std::vector<std::string> losses;  // what jobs that have not ended need is not there any more
  // And what those that have ended left, which people remove, or those that begin may not have
  // made.
  std::vector<std::string> notes;
  bool is_behind = false;  // there are runs of which it does not know, which is a loss
  std::string remedy;      // of the faults; empty: there are none
};

// Reads all of the store in `folder` as it is at one moment, and then looks for the run directories
// that it names. It changes nothing, so that it may be done while a service runs. Throws not_found
// if no store is there, data_loss if the file is none or empty, invalid_argument if it is a folder
// or the like, conflict for a schema of another version, each with its remedy.
StoreReport check_store(const fs::path& folder);

// Writes a copy of the store in `folder` to the file `to`, for this user alone, as it is at one
// moment and with all that was committed by then; while a service runs or none does. Throws
// as check_store() does, conflict if there is something at `to`, and unavailable, which names the
// one of the two that fails.
void back_up_store(const fs::path& folder, const fs::path& to);

}  // namespace ductile::cluster
