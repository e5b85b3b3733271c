#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ductile::sched {

// Estimates how much work jobs have, from past jobs and never from the future. Sizes are in
// device-seconds of the reference type ("service") or in the job's own steps ("progress").
class WorkLeft {
 public:
  // The number of quantiles that represent the distribution of the work that one job has left.
  static constexpr int kParts = 8;

  // To be called when a job has ended with this much progress, after this much service.
  void ended(const std::string& application, double progress, double service);

  // Returns kParts equally likely amounts of work left, in service, in rising order, for a job that
  // has made `progress`, attained `service`, and makes `progress_per_service`.
  //  - If n ended jobs of its application went further than it has, they give n/(n+1) of the parts.
  //  - Otherwise, n ended jobs of any kind with more service give n/(n+8) of the parts.
  //  - A Pareto distribution with shape 1/2, given `claim`, gives the other parts: the more a job
  //    has had, the more it may still need (there is no scale except the floor kLeastService).
  // `claim` is the attained service, or less if the claim of the job falls in steps.
  std::vector<double> guess(const std::string& application, double progress, double service,
                            double progress_per_service, double claim) const;

  static constexpr double kLeastService = 3000;  // device-seconds

  // All of it as JSON. from_state() throws data_loss, beginning with `where`, for a damaged state.
  nlohmann::json state() const;
  static WorkLeft from_state(const nlohmann::json& state, const std::string& where);

 private:
  // Of ended jobs, sorted, for at most kMostApplications applications: a further one takes the
  // place of all.
  std::unordered_map<std::string, std::vector<double>> progress_;
  std::vector<double> service_;  // of ended jobs, sorted
};

}  // namespace ductile::sched
