#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/process/zygote.h"

// Starting `ductile-worker`, the process that links torch, and living beside it.
namespace ductile::cli {

struct WorkerLaunch {
  fs::path program;
  std::vector<std::string> arguments;  // without the program; --progress-fd N is added
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's own
  fs::path log;                                       // takes stdout and stderr; appended
  std::shared_ptr<process::Zygote> zygote = nullptr;  // forks it, if it can
};

// How a worker ended.
struct WorkerEnd {
  int exit_code = 0;         // where it exited
  int signal = 0;            // where a signal killed it; else 0
  bool interrupted = false;  // SIGINT, SIGTERM or SIGHUP reached us and was passed on
};

// Runs a worker to its end. `on_line` gets each line the worker writes to the progress pipe.
//
// SIGINT and SIGTERM of this process are passed on to the worker, which saves a checkpoint and
// ends; a second one kills it. A terminal's stop key stops both, and both go on together. If this
// process dies in any way, the worker gets SIGTERM. Call from a program's only thread (the worker
// is tied to the thread that starts it). Throws unavailable where the worker cannot be started.
WorkerEnd run_worker(const WorkerLaunch& launch,
                     const std::function<void(std::string_view)>& on_line);

// A worker that answers a question and ends.
struct WorkerQuestion {
  fs::path program = {};  // empty: ductile-worker
  std::vector<std::string> arguments;
  int64_t threads = 1;                                         // 0: the cores this process may use
  std::function<void(const nlohmann::json& row)> on_row = {};  // of an answer with rows
  std::shared_ptr<process::Zygote> zygote = nullptr;           // forks the worker, if it can
};

// What a worker answers. Throws the error that it reports, and unavailable where it ends without an
// answer, with its command, quoted for a shell, and the last lines that it printed; nothing comes
// back where a signal of this process ended it.
std::optional<nlohmann::json> ask_worker(const WorkerQuestion& question);

}  // namespace ductile::cli
