#pragma once

#include <string>
#include <vector>

#include "ductile/spec/job.h"

// The forms in which the update rules are compared with their twins.
namespace ductile::optim::testing {

inline spec::OptimizerOptions options_of(const std::string& name) {
  spec::OptimizerOptions o{.name = name, .weight_decay = 0.01};
  if (name == "lars") o.lars.trust_coefficient = 0.1;
  // The epochs of moved(): SGD, a reset, iterates, two more resets.
  o.neumann.warmup_epochs = 0.5;
  o.neumann.reset_epochs = 1.5;
  return o;
}

// What a rule's options can make of its update, but for the default and NLCG's preconditioner.
inline std::vector<spec::OptimizerOptions> rule_forms() {
  std::vector<spec::OptimizerOptions> out;
  const auto form = [&](const char* name, const auto& change) {
    change(out.emplace_back(options_of(name)));
  };
  form("sgd", [](auto& o) { o.sgd.nesterov = true; });
  form("sgd", [](auto& o) { o.momentum = 0; });
  form("lars", [](auto& o) { o.lars.trust_outside = true; });
  form("lars", [](auto& o) { o.lars.trust_clip = true; });
  form("lars", [](auto& o) { o.lars.trust_clip = o.lars.trust_outside = true; });
  form("nadamw", [](auto& o) { o.nadamw.momentum_decay = 0.004; });
  form("ademamix", [](auto& o) { o.ademamix.warmup = 0; });
  form("ademamix", [](auto& o) { o.ademamix.warmup = 0.3; });
  form("schedule_free", [](auto& o) { o.adam.beta1 = 0; });
  form("muon", [](auto& o) { o.muon.nesterov = false; });
  form("muon", [](auto& o) { o.muon.adjust_lr = "rms"; });
  form("muon", [](auto& o) { o.muon.adjust_lr = "none", o.muon.rest_lr = 0.1; });
  form("muon", [](auto& o) { o.muon.rest = "sgd"; });
  form("muon", [](auto& o) {
    o.muon.rest = "sgd", o.sgd.nesterov = true, o.muon.rest_lr = 0.5, o.muon.rest_momentum = 0.8;
  });
  form("muon", [](auto& o) { o.muon.renormalize_every = 3; });
  form("muon", [](auto& o) { o.muon.steps = 3, o.muon.coefficients = {3.4576, -4.7391, 2.0843}; });
  form("neumann", [](auto& o) { o.neumann.variables = "scalars"; });
  form("neumann", [](auto& o) { o.neumann.mu_unit = "epochs"; });
  form("neumann", [](auto& o) { o.neumann.alpha = 0.01, o.neumann.beta = 1e-3; });
  form("neumann", [](auto& o) { o.neumann.warmup_epochs = 0, o.neumann.reset_epochs = 0; });
  for (const char* update : {"fletcher_reeves", "polak_ribiere"}) {
    for (const char* search : {"step", "online", "none"}) {
      form("nlcg", [&](auto& o) {
        o.nlcg.preconditioner = "none";
        o.nlcg.update = update;
        o.nlcg.line_search = search;
      });
    }
  }
  return out;
}

}  // namespace ductile::optim::testing
