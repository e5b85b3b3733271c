#pragma once

#include <string>

#include "ductile/base/files.h"

// Which folder of runs this is. A service marks the folder that its run directories lie in, so that
// an empty disk, or another one, that is mounted in its place is not taken for runs that were
// deleted.
namespace ductile::run {

// The file in the folder that has the mark, as a line of 16 hexadecimal digits.
fs::path runs_mark_file(const fs::path& runs);

// The folder's mark. Empty: it has none, or is not there. Throws data_loss, with the path, for a
// file that holds something else, and unavailable for one that cannot be read now.
std::string runs_mark(const fs::path& runs);

// Whether the folder is known by another mark than this one, or by none. One that cannot be read
// now is believed to be the same: throws unavailable.
bool is_another_folder(const fs::path& runs, const std::string& mark);

}  // namespace ductile::run
