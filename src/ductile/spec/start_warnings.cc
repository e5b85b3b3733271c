#include "ductile/spec/start_warnings.h"

#include <fmt/format.h>

#include "ductile/spec/optimizers.h"

namespace ductile::spec {

std::vector<std::string> start_warnings(const JobOptions& job, const OptionSet& options) {
  std::vector<std::string> out;
  const RuleTraits* rule = rule_traits(job.optimizer.name);
  if (job.optimizer.name == "muon" && job.optimizer.momentum == 1)
    out.emplace_back(
        "optimizer.momentum = 1 takes nothing of a gradient, so optimizer.name = \"muon\" trains "
        "no matrix; choose a value below 1, for example 0.95");
  if (rule == nullptr || job.train.rate_control == "lrtuner") return out;
  const OptionField* rate = options.find("optimizer.lr");
  if (rule->adam && !(job.tune.online && !job.tune.lr.empty()) && rate != nullptr &&
      rate->origin.is_default()) {
    out.push_back(
        fmt::format("optimizer.lr = {} is the default, which is meant for sgd and far too large "
                    "for optimizer.name = \"{}\"; begin with optimizer.lr = {}",
                    job.optimizer.lr, rule->name, rule->start_lr));
  }
  // The schedule one_cycle rises by itself.
  if (rule->warm_up && job.schedule.warmup_epochs == 0 && job.schedule.name != "one_cycle") {
    out.push_back(
        fmt::format("optimizer.name = \"{}\" needs a warm-up, and schedule.warmup_epochs = 0; "
                    "begin with schedule.warmup_epochs = {}, 2 % of train.epochs",
                    rule->name, static_cast<double>(job.train.epochs) / 50));
  }
  return out;
}

}  // namespace ductile::spec
