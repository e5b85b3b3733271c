#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/process/zygote.h"

// Jobs whose model, data and loss are a Python program's: what `ductile train FILE.py:CLASS` means.
namespace ductile::cli {

// The object that a word of the command line names, with the file's absolute path: FILE.py:CLASS,
// FILE.py for a program with a loop of its own, or MODULE:CLASS where no file has that name.
// Nothing for a job file.
std::optional<std::string> python_object(const fs::path& word);

// The absolute path of the Python to use: `wanted`, else that of $VIRTUAL_ENV, else python3 on
// PATH. Throws not_found.
std::string find_interpreter(const std::string& wanted);

// What a job says of itself.
struct PythonJob {
  nlohmann::json options;  // as job.toml has them
  std::string source, versions;
  bool has_optimizer = false;  // a rule of its own
};

// Imports the program in a Python process and asks it. Throws what that process reports: a program
// that cannot be imported, a class that is no job, a Python without torch.
// `loaded`: takes a process that forks the one which is asked, and afterwards workers of the job
// that have as many threads (1 or more); null where they cannot be forked.
PythonJob ask_python_job(const std::string& object, const std::string& interpreter,
                         const std::vector<std::string>& arguments, int64_t threads = 1,
                         std::shared_ptr<process::Zygote>* loaded = nullptr);

}  // namespace ductile::cli
