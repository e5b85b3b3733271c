#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "ductile/run/folder.h"

namespace ductile::run {

// A file that a run has from its beginning, beside job.toml.
struct FirstFile {
  std::string name;                  // in the run's folder
  std::span<const std::byte> bytes;  // they live as long as the call that takes this
};

// RunFolder::create() and create_at() for a run that begins with more than a job. job.toml, which
// makes a folder a run, is written last, when the others are on disk: whoever finds a run finds all
// of them, wherever the process was killed that made it. create_folder_at() also makes the folders
// that `path` lies in, where they are missing.
RunFolder create_folder(const fs::path& runs, std::string_view job_name, std::string_view job,
                        std::span<const FirstFile> files);
RunFolder create_folder_at(const fs::path& path, std::string_view job,
                           std::span<const FirstFile> files);

// Whether `name` is a file `whole` that did not get its name, as write_file_atomic() calls it.
bool is_unfinished(std::string_view name, std::string_view whole);

// Whether the folder `path` has nothing but what a run has before its job.toml: a process may be
// making a run there, or it was killed meanwhile.
bool may_become_run(const fs::path& path);

// Removes what a process that was killed while it made the run `path` has left: empty folders, and
// job.toml before it got its name. Anything else stays, and is then in the way.
void remove_half_made(const fs::path& path);

}  // namespace ductile::run
