#include "replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ductile/base/error.h"

namespace ductile::replay {
namespace {

struct Alias {
  std::string_view name, policy, searcher;
};
constexpr Alias kAliases[] = {
    {"random", "full", "random"},
    {"grid", "full", "grid"},
    {"tpe", "full", "tpe"},
    {"gp", "full", "gp"},
    {"ductile", "freeze_thaw", "curves"},
    {"bohb", "hyperband", "tpe"},
    {"freeze_thaw", "freeze_thaw", "curves"},
    {"mltuner", "mltuner", "tpe"},
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == at) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

// Options of the policy and of the searcher in one list, by the names that each of them knows.
struct AllOptions {
  tune::PolicyOptions policy;
  tune::SearcherOptions searcher;
};
void describe(Describer& d, AllOptions& o) {
  describe(d, o.policy);
  d.section("searcher", o.searcher, "the searcher's own");
}

Method parse_method(const std::string& text) {
  Method out;
  const std::vector<std::string> parts = split(text, ':');
  out.name = text;
  out.group = parts[0];
  const size_t plus = parts[0].find('+');
  out.policy = parts[0].substr(0, plus);
  out.searcher = plus == std::string::npos ? "" : parts[0].substr(plus + 1);
  for (const Alias& a : kAliases) {
    if (!out.searcher.empty() || out.policy != a.name) continue;
    out.policy = a.policy;
    out.searcher = a.searcher;
    break;
  }
  if (out.searcher.empty()) out.searcher = "random";
  tune::searchers().at(out.searcher);
  // These two begin with random settings: how many, depends on how many they are asked for.
  const bool counts_asks = out.policy == "full" && (out.searcher == "tpe" || out.searcher == "gp");
  out.uses_total = tune::trial_policies().at(out.policy).uses_total || counts_asks;
  out.options.assign(parts.begin() + 1, parts.end());
  AllOptions options;
  OptionSet set(options);
  for (const std::string& o : out.options) set.set(o, text);
  return out;
}

}  // namespace

std::vector<Method> parse_methods(const std::string& text) {
  std::vector<Method> out;
  for (const std::string& one : split(text, ',')) {
    std::vector<std::string> names = {""};
    for (const std::string& part : split(one, ':')) {
      const size_t equals = part.find('=');
      const std::string key = equals == std::string::npos ? "" : part.substr(0, equals + 1);
      const auto values = split(equals == std::string::npos ? part : part.substr(equals + 1), '|');
      std::vector<std::string> longer;
      for (const std::string& name : names)
        for (const std::string& v : values)
          longer.push_back(name.empty() ? key + v : name + ":" + key + v);
      names = std::move(longer);
    }
    for (const std::string& name : names) out.push_back(parse_method(name));
  }
  return out;
}

std::unique_ptr<tune::TrialPolicy> make_method(const Task& task, const Method& method,
                                               uint64_t seed, double total) {
  AllOptions options;
  options.policy.full_budget = static_cast<double>(task.length());
  options.policy.total_budget = total;
  options.policy.mltuner.forks = false;  // recorded curves begin from nothing
  options.searcher.full_budget = options.policy.full_budget;
  options.searcher.seed = static_cast<int64_t>(seed);
  // As `ductile tune` does.
  if (method.policy == "full" && std::isfinite(total))
    options.searcher.asks = static_cast<int64_t>(total / options.policy.full_budget + 1e-9);
  OptionSet set(options);
  for (const std::string& o : method.options) set.set(o, method.name);
  auto& p = options.policy;
  p.least_budget = std::min(p.least_budget, p.full_budget);
  return tune::make_trial_policy(
      method.policy, tune::make_searcher(method.searcher, task.space, options.searcher), p);
}

tune::Result look_up(const Task& task, const tune::TrialPolicy& policy, const tune::Move& move) {
  const tune::Trial& trial = policy.searcher().trials()[static_cast<size_t>(move.trial)];
  const std::vector<double>& curve = task.curves[static_cast<size_t>(trial.listed)];
  tune::Result out;
  out.trial = move.trial;
  const size_t to = std::min(static_cast<size_t>(move.budget), curve.size());
  for (size_t i = static_cast<size_t>(trial.budget()); i < to; ++i)
    out.seen.push_back({static_cast<double>(i + 1), curve[i]});
  out.ended = to == curve.size();
  return out;
}

Trajectory replay(const Task& task, const Method& method, uint64_t seed, int64_t total) {
  const auto policy = make_method(task, method, seed, static_cast<double>(total));
  Trajectory out;
  const double best = task.best(), spread = task.spread();
  double reached = std::numeric_limits<double>::infinity();
  out.regret.push_back(reached);
  while (true) {
    const tune::Move move = policy->next();
    if (move.kind == tune::MoveKind::stop) break;
    if (move.kind == tune::MoveKind::drop) continue;
    DUCTILE_CHECK(move.kind != tune::MoveKind::wait, "{} waits for nothing", method.name);
    const tune::Result result = look_up(task, *policy, move);
    for (const tune::Observation& o : result.seen) {
      if (std::isfinite(o.value)) reached = std::min(reached, o.value);
      out.regret.push_back((reached - best) / spread);
    }
    policy->tell(result);
  }
  out.spent = policy->spent();
  out.trials = static_cast<int64_t>(policy->searcher().trials().size());
  DUCTILE_CHECK(out.regret.size() <= static_cast<size_t>(total) + 1, "{} of {} spent by {}",
                out.regret.size() - 1, total, method.name);
  out.regret.resize(static_cast<size_t>(total) + 1, out.regret.back());
  return out;
}

int64_t random_needs(const Task& task, double share, int shuffles) {
  std::vector<double> sorted;
  for (size_t i = 0; i < task.curves.size(); ++i) sorted.push_back(task.best_of(i));
  std::vector<double> best = sorted;
  std::sort(sorted.begin(), sorted.end());
  const size_t count =
      std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(sorted.size()) + 1e-9));
  const double target = sorted[count - 1];
  std::vector<int64_t> needs;
  std::vector<size_t> order(best.size());
  for (int s = 0; s < shuffles; ++s) {
    Rng rng(static_cast<uint64_t>(s), 0x6e656564);
    std::iota(order.begin(), order.end(), size_t{0});
    int64_t spent = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      std::swap(order[i], order[i + rng.below(static_cast<uint32_t>(order.size() - i))]);
      spent += static_cast<int64_t>(task.curves[order[i]].size());
      if (best[order[i]] <= target) break;
    }
    needs.push_back(spent);
  }
  std::sort(needs.begin(), needs.end());
  return needs[needs.size() / 2];
}

}  // namespace ductile::replay
