#include "ductile/spec/start_warnings.h"

#include <fmt/format.h>

#include "ductile/spec/live_options.h"
#include "ductile/spec/optimizers.h"

namespace ductile::spec {
namespace {

// The least training loss is not the best setting of what changes that loss itself.
void warn_of_shaped_losses(const JobOptions& job, std::vector<std::string>& out) {
  if (!job.tune.online) return;
  for (const LiveOption& option : live_options()) {
    if (!option.shapes_loss) continue;
    for (const std::string& text : job.tune.options) {
      if (!text.starts_with(fmt::format("{}:", option.key))) continue;
      out.push_back(
          fmt::format("tune.options = \"{}\": trials are judged by their training loss, and {} "
                      "changes what that loss is; choose it with `ductile tune`, which judges by "
                      "evaluations",
                      text, option.key));
    }
  }
}

}  // namespace

std::vector<std::string> start_warnings(const JobOptions& job, const OptionSet& options) {
  std::vector<std::string> out;
  warn_of_shaped_losses(job, out);
  const RuleTraits* rule = rule_traits(job.optimizer.name);
  if (job.optimizer.name == "muon" && job.optimizer.momentum == 1)
    out.emplace_back(
        "optimizer.momentum = 1 takes nothing of a gradient, so optimizer.name = \"muon\" trains "
        "no matrix; choose a value below 1, for example 0.95");
  if (rule == nullptr || job.train.rate_control == "lrtuner") return out;
  const OptionField* rate = options.find("optimizer.lr");
  const bool is_rate_left =
      !(job.tune.online && !job.tune.lr.empty()) && rate != nullptr && rate->origin.is_default();
  if (rule->adam && is_rate_left) {
    out.push_back(
        fmt::format("optimizer.lr = {} is the default, which is meant for sgd and far too large "
                    "for optimizer.name = \"{}\"; begin with optimizer.lr = {}",
                    job.optimizer.lr, rule->name, rule->start_lr));
  }
  // LARS multiplies the rate by a trust ratio that is the coefficient times a quotient of norms.
  const LarsOptions& lars = job.optimizer.lars;
  if (job.optimizer.name == "lars" && !lars.trust_clip && is_rate_left &&
      job.optimizer.lr * lars.trust_coefficient <
          rule->start_lr * LarsOptions().trust_coefficient / 5) {
    out.push_back(
        fmt::format("optimizer.lr = {} is the default, which is meant for sgd and far too small "
                    "for optimizer.name = \"lars\" with optimizer.lars.trust_coefficient = {}; "
                    "begin with optimizer.lr = {:g}",
                    job.optimizer.lr, lars.trust_coefficient,
                    rule->start_lr * LarsOptions().trust_coefficient / lars.trust_coefficient));
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
