#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/testing/live_service.h"
#include "ductile/link/worker_processes.h"

// What commands of tests write into the service's folder.
namespace ductile::cluster::testing {

inline std::string text_of(const fs::path& file) { return fs::exists(file) ? read_file(file) : ""; }

inline int64_t lines_of(const fs::path& file) { return std::ranges::count(text_of(file), '\n'); }

inline void wait_for_lines(const fs::path& file, int64_t lines) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (lines_of(file) < lines && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  EXPECT_GE(lines_of(file), lines) << file;
}

// One of the keepers of its commands; -1: there is none.
inline pid_t keeper_of(const LiveService& service) {
  for (const pid_t pid : service.workers())
    if (text_of(fs::path("/proc") / std::to_string(pid) / "comm") == "ductile-keeper\n") return pid;
  return -1;
}

// Says `twice` where another one of its kind, or anything that came of one, is alive.
inline std::string alone(const std::string& rest) {
  return "exec 9>only; flock -n 9 || echo twice >> twice\necho $DUCTILE_RESTART >> starts\n" + rest;
}

// Waits until it has ended and nobody has reaped it; whether it came to that.
inline bool ends_unreaped(pid_t pid) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    const auto state = link::state_of(pid);
    if (state && state->letter == 'Z') return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Kills the service `pause` * i after it acknowledged command i, for i < `kills`: each command runs
// once, and the store is whole.
inline void run_once_though_the_service_is_killed(LiveService& service, int kills,
                                                  std::chrono::milliseconds pause) {
  std::vector<JobId> jobs;
  for (int i = 0; i < kills; ++i) {
    jobs.push_back(service.submit_command(
        "job" + std::to_string(i),
        "exec 9>only$DUCTILE_JOB; flock -n 9 || echo twice >> twice; echo x >> done$DUCTILE_JOB"));
    std::this_thread::sleep_for(i * pause);
    service.kill_service();
    service.start();
  }
  for (const JobId id : jobs) service.wait_for(id, "finished");
  for (const JobId id : jobs)
    EXPECT_EQ(text_of(service.folder() / ("done" + std::to_string(id))), "x\n");
  EXPECT_EQ(text_of(service.folder() / "twice"), "");
  EXPECT_TRUE(Reader(service.folder() / "store.db").check().empty());
}

}  // namespace ductile::cluster::testing
