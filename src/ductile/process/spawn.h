#pragma once

#include <string>
#include <utility>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

// Starting programs as own processes.
namespace ductile::process {

struct SpawnOptions {
  fs::path program;
  std::vector<std::string> arguments;                            // without the program
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's own
  fs::path log;                    // takes stdout and stderr; appended. Empty: nothing does
  int progress_fd = -1;            // stays open in the child; "--progress-fd N" is added
  const sigset_t* mask = nullptr;  // the child's blocked signals; null: none
  // The child gets SIGTERM when the thread that starts it ends.
  bool dies_with_parent = true;
  // Instead: SIGKILL, and only until it calls forget_parent(). So whoever looks for it among all
  // processes once this one has ended finds it by its program and words, or it never begins.
  bool begins_with_parent = false;
  std::vector<int> cpus;  // the child runs on these alone; empty: where this process may
  int input_fd = -1, output_fd = -1, error_fd = -1;  // instead of nothing, and of the log
};

// fork and exec, in a process group of its own. The caller reaps the child. Throws not_found or
// unavailable where the program cannot be started.
pid_t spawn(const SpawnOptions& launch);

// For a program that was started with begins_with_parent, before anything else.
void forget_parent();

// Its parts, for those who start programs in another way: the environment of the child, as
// NAME=VALUE, and what takes its stdout and stderr.
std::vector<std::string> environment_of(const SpawnOptions& launch);
Descriptor open_log(const SpawnOptions& launch);

}  // namespace ductile::process
