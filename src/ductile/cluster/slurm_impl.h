#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ductile/base/files.h"

// Slurm's commands, without a shell and with a time limit each, and what they print, read strictly.
namespace ductile::cluster {

struct ProgramAnswer {
  int status = 0;  // exit status; 128 + the signal's number
  std::string out, error;
};
// Runs it to its end. Throws deadline where that takes longer, after which nothing of it runs, and
// data_loss where it prints more than 8 MiB.
ProgramAnswer run_program(const fs::path& program, const std::vector<std::string>& arguments,
                          const std::vector<std::pair<std::string, std::string>>& environment,
                          std::chrono::milliseconds limit);

// A job as squeue lists it.
struct QueueEntry {
  std::string id, state, partition, reason, name;
  double ends = 0;  // seconds since 1970; 0: not known
  bool operator==(const QueueEntry&) const = default;
};

// What they print. Throws data_loss, which shows the line, where it is anything else.
std::string parse_sbatch(std::string_view text);  // the job's number
std::vector<QueueEntry> parse_squeue(std::string_view text, const std::vector<std::string>& names);

// A state in which a job has ended for good. Another one, also an unknown one, may still run.
bool has_ended_in_slurm(std::string_view state);

class Slurm {
 public:
  // Throws not_found, which names the program that is not on PATH.
  Slurm();

  // Each throws unavailable with what the command said (slurmctld does not answer, or it refuses),
  // deadline, or data_loss. After those of submit() a job may or may not be there.
  std::string submit(const std::vector<std::string>& options, const fs::path& script) const;
  std::vector<QueueEntry> list(const std::vector<std::string>& names) const;
  void cancel(const std::string& name) const;  // all of this user's jobs of that name
  // Makes slurmctld write down, within seconds, that a job of this name has begun. By itself it may
  // take five minutes; one that is killed meanwhile forgets the job, or starts it a second time.
  void write_down(const std::string& name) const;

 private:
  fs::path sbatch_, squeue_, scancel_, scontrol_;
};

}  // namespace ductile::cluster
