#pragma once

#include <string>
#include <unordered_map>
#include <vector>

namespace ductile::sched {

// What is known of how much work jobs turn out to have: of past jobs, never of the future. Sizes
// are in device-seconds of the reference type ("service") or in the job's own steps ("progress").
class WorkLeft {
 public:
  // Quantiles that stand for the distribution of what is left of one job.
  static constexpr int kParts = 8;

  // A job has ended with this much progress, after this much service.
  void ended(const std::string& application, double progress, double service);

  // kParts equally likely amounts of work left, in service, rising, of a job that has made
  // `progress`, attained `service` and makes `progress_per_service` of it.
  //  - n ended jobs of its application that went further than it has: n/(n+1) of the parts;
  //  - else n ended jobs of any kind with more service: n/(n+8) of the parts;
  //  - the other parts: a Pareto distribution with shape 1/2 given `claim`, that is the more a job
  //    has had, the more it may still need (no scale of its own but a floor of kLeastService).
  // `claim` is the service it attained, or less where its claim is to fall in steps.
  std::vector<double> guess(const std::string& application, double progress, double service,
                            double progress_per_service, double claim) const;

  static constexpr double kLeastService = 3000;  // device-seconds

 private:
  std::unordered_map<std::string, std::vector<double>> progress_;  // of ended jobs, sorted
  std::vector<double> service_;                                    // of ended jobs, sorted
};

}  // namespace ductile::sched
