#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/server/testing/emulated_hosts.h"
#include "points.h"

// Small jobs, what they come to when nobody disturbs them, and what is to hold when somebody does.
namespace ductile::injection {

// What a disturbed command begins with.
enum class Begin {
  anew,
  half_done,   // a run that its user stopped
  leaderless,  // workers at work, whose controller was killed
};

struct JobKind {
  const char* name;
  bool several;  // workers, hence a controller
  bool hosts;    // on two emulated hosts
  bool
      real;  // ductile-worker; else the torch-free test worker, which starts a hundred times faster
  Begin begin;
  int weight;                     // how often it is drawn
  std::vector<const char*> sets;  // options beside those that all jobs have
};
const std::vector<JobKind>& job_kinds();
const JobKind& job_kind(const std::string& name);

// How a disturbed job went.
struct Verdict {
  bool struck = false;  // the call came
  std::string what;     // the first that was struck
  int code = 0;
  std::vector<std::string> complaints;  // empty: all promises were kept
};

// Undisturbed runs come first: they say what is right, how many calls there are, and leave the
// half-done runs that others go on from. try_point() may then be called from several threads.
class Laboratory {
 public:
  Laboratory();
  Laboratory(const Laboratory&) = delete;
  Laboratory& operator=(const Laboratory&) = delete;
  ~Laboratory();

  bool can(const JobKind& kind) const { return !kind.hosts || hosts_.why().empty(); }
  // Throws where an undisturbed job fails.
  void prepare(const JobKind& kind);
  const Counts& counts(const std::string& job) const { return counts_.at(job); }
  Verdict try_point(const Point& point);

 private:
  class Trial;

  const TempFolder root_, aside_;  // jobs; what they must not be struck in
  const server::testing::EmulatedHosts hosts_{3};
  std::map<std::string, Counts> counts_;
  std::map<std::string, std::string> results_;  // of equal jobs
  std::mutex mutex_;
  int trials_ = 0;
};

}  // namespace ductile::injection
