#include "comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include <unistd.h>

#include "ductile/base/error.h"

namespace ductile::replay {
namespace {

void leave_out_small(Comparison& c) {
  const size_t least = c.request.least_runs;
  c.left_out = std::erase_if(c.tasks, [&](const Task& t) { return t.curves.size() < least; });
  if (c.tasks.empty())
    fail(ErrorCode::invalid_argument, "--least-runs {}: none of {} tasks has so many runs", least,
         c.left_out);
}

// The tasks that choose the settings come first, and `tuned` is their number.
void keep_apart(Comparison& c) {
  const std::string& text = c.request.apart;
  if (text.empty()) return;
  const auto apart = std::stable_partition(c.tasks.begin(), c.tasks.end(), [&](const Task& t) {
    return t.name.find(text) == std::string::npos;
  });
  c.request.tuned = static_cast<size_t>(apart - c.tasks.begin());
  if (c.request.tuned == 0 || c.request.tuned == c.tasks.size())
    fail(ErrorCode::invalid_argument,
         "--apart {}: {} of {} tasks are named so; there have to be others, which choose the "
         "settings, and some that are kept apart",
         text, c.tasks.size() - c.request.tuned, c.tasks.size());
}

}  // namespace

std::vector<std::string> Comparison::groups() const {
  std::vector<std::string> out;
  for (const MethodResult& r : results)
    if (std::find(out.begin(), out.end(), r.method.group) == out.end())
      out.push_back(r.method.group);
  return out;
}

bool Comparison::has(const std::string& group) const {
  return std::any_of(results.begin(), results.end(),
                     [&](const MethodResult& r) { return r.method.group == group; });
}

const MethodResult& Comparison::chosen(const std::string& group, size_t share) const {
  const size_t count = request.tuned == 0 ? tasks.size() : std::min(request.tuned, tasks.size());
  const MethodResult* best = nullptr;
  double best_mean = 0;
  for (const MethodResult& r : results) {
    if (r.method.group != group) continue;
    double sum = 0;
    for (size_t t = 0; t < count; ++t) {
      // A seed that has found nothing counts as ten spreads.
      for (const double x : r.regrets[t][share]) sum += std::min(x, 10.0);
    }
    if (best != nullptr && sum >= best_mean) continue;
    best = &r;
    best_mean = sum;
  }
  DUCTILE_CHECK(best != nullptr, "no method of group {}", group);
  return *best;
}

Comparison compare(const Request& request) {
  Comparison out;
  out.request = request;
  out.tasks = read_tasks(request.file, request.metric, request.only);
  leave_out_small(out);
  keep_apart(out);
  for (const double s : kShares)
    if (s <= request.until + 1e-9) out.shares.push_back(s);
  for (const Task& t : out.tasks) out.needs.push_back(random_needs(t, request.share, 1001));
  for (Method& m : parse_methods(request.methods)) {
    MethodResult result;
    result.method = std::move(m);
    for (size_t t = 0; t < out.tasks.size(); ++t) {
      const double need = static_cast<double>(out.needs[t]);
      const auto budget = [&](double share) {
        return std::max<int64_t>(1, static_cast<int64_t>(std::llround(share * need)));
      };
      result.regrets.emplace_back(out.shares.size());
      const int64_t end = budget(request.until);
      std::vector<std::vector<double>> along(kCurvePoints + 1);
      for (int seed = 0; seed < request.seeds; ++seed) {
        const Trajectory all =
            replay(out.tasks[t], result.method, static_cast<uint64_t>(seed), end);
        for (size_t s = 0; s < out.shares.size(); ++s) {
          const int64_t total = budget(out.shares[s]);
          const double regret =
              result.method.uses_total && total != end
                  ? replay(out.tasks[t], result.method, static_cast<uint64_t>(seed), total)
                        .regret.back()
                  : all.regret[static_cast<size_t>(total)];
          result.regrets[t][s].push_back(regret);
        }
        for (int k = 0; k <= kCurvePoints; ++k)
          along[static_cast<size_t>(k)].push_back(
              all.regret[static_cast<size_t>(end * k / kCurvePoints)]);
      }
      result.curves.emplace_back();
      for (auto& at : along) {
        std::sort(at.begin(), at.end());
        result.curves.back().push_back(at[at.size() / 2]);
      }
    }
    if (::isatty(2)) std::fprintf(stderr, "%s\n", result.method.name.c_str());
    out.results.push_back(std::move(result));
  }
  return out;
}

double win_rate(const MethodResult& a, const MethodResult& b, size_t share,
                const std::vector<size_t>& tasks) {
  double wins = 0, count = 0;
  for (const size_t t : tasks) {
    const Regrets &x = a.regrets[t][share], &y = b.regrets[t][share];
    for (size_t i = 0; i < x.size(); ++i) {
      wins += x[i] < y[i] ? 1 : x[i] == y[i] ? 0.5 : 0;
      ++count;
    }
  }
  return count > 0 ? wins / count : 0;
}

}  // namespace ductile::replay
