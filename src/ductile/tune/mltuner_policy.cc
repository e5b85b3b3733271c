#include <algorithm>
#include <cmath>

#include "ductile/base/json_fields.h"
#include "ductile/tune/progress.h"
#include "ductile/tune/trial_policies_impl.h"

namespace ductile::tune {
namespace {

using Json = nlohmann::json;

enum class Phase { first, rest, training, over };
constexpr std::pair<Phase, std::string_view> kPhases[] = {{Phase::first, "first"},
                                                          {Phase::rest, "rest"},
                                                          {Phase::training, "training"},
                                                          {Phase::over, "over"}};

// All that the rule remembers.
struct Memory {
  Phase phase = Phase::first;
  double time = 0;             // of the trials of this search
  std::vector<int64_t> live;   // trials that run side by side
  std::vector<double> slopes;  // of the trials of this search
  std::vector<double> line;    // values of what is trained
  int64_t best = -1;
  double best_slope = 0;
  int64_t judged = -1;   // the trial that is compared with the best one next
  int64_t count = 0;     // trials of this search
  int64_t previous = 0;  // trials of the search before; 0: there was none
  int64_t to_start = 0;
  int64_t retunings = 0;
  bool retuned = false;  // on this plateau
};

// MLtuner's rule (progress.h): trials run side by side for a time that doubles until one of them
// converges; then each new setting gets that time, and the better of it and the best lives; the
// best is trained until its values reach a plateau, which begins another search.
class MlTunerPolicy final : public TrialPolicy {
 public:
  MlTunerPolicy(std::string_view name, std::unique_ptr<Searcher> searcher,
                const PolicyOptions& options)
      : TrialPolicy(name, std::move(searcher), options) {
    const double asked = options.mltuner.trial_bound;
    bound_ = rounded(std::max(asked > 0 ? asked : options.full_budget / 4, options.least_budget));
    begin_search();
  }

  bool is_searching() const override { return m_.phase == Phase::first || m_.phase == Phase::rest; }

  bool runs_one() const override { return m_.phase == Phase::rest || m_.phase == Phase::training; }

  int64_t kept() const override {
    if (m_.phase == Phase::first) {
      const int64_t converging = best_of_live(true, m_.time).trial;
      if (converging >= 0) return converging;
      const int64_t sloped = furthest(true);
      return sloped >= 0 ? sloped : furthest(false);
    }
    const bool is_judged = m_.judged >= 0 && budget_of(m_.judged) >= m_.time;
    return is_judged && is_better(judge(m_.judged)) ? m_.judged : m_.best;
  }

 private:
  void begin_search() {
    m_.phase = Phase::first;
    m_.time = rounded(options().least_budget);
    m_.live.clear();
    m_.slopes.clear();
    m_.count = 0;
    m_.to_start = options().mltuner.side_by_side;
    m_.judged = -1;
  }

  Move decide() override {
    while (true) {
      if (m_.phase == Phase::over) return wait_or_stop("training has converged");
      if (std::optional<Move> move = m_.phase == Phase::first  ? first()
                                     : m_.phase == Phase::rest ? rest()
                                                               : train())
        return *move;
    }
  }

  std::optional<Move> begin_trial() {
    Move move = start(m_.time, "a new setting is compared with the others");
    if (move.kind != MoveKind::start) return std::nullopt;
    move.parent = options().mltuner.forks ? m_.best : -1;
    m_.live.push_back(move.trial);
    ++m_.count;
    return move;
  }

  // Until one converges: all for the same time, which doubles.
  std::optional<Move> first() {
    for (const int64_t t : m_.live)
      if (status(t) == Status::paused && budget_of(t) < m_.time)
        return resume(t, m_.time, "no trial converges yet; those that are left run twice as long");
    bool is_exhausted = false;
    if (m_.to_start > 0) {
      if (auto move = begin_trial()) {
        --m_.to_start;
        return move;
      }
      is_exhausted = true;
    }
    for (const int64_t t : m_.live)
      if (status(t) == Status::running) return wait_or_stop("trials of this length still run");
    if (const Sloped valid = best_of_live(true); valid.trial >= 0) {
      adopt(valid);
      return std::nullopt;
    }
    const bool is_crowd = options().mltuner.side_by_side > 1;  // of which only the best goes on
    Sloped unstable = best_of_live(false);
    if (is_crowd && unstable.trial < 0) unstable.trial = furthest(false);
    if ((is_exhausted && m_.time >= bound_) || (m_.previous > 0 && m_.count >= m_.previous)) {
      if (unstable.trial < 0) {
        m_.phase = Phase::over;
      } else {
        adopt(unstable);
        begin_training();
      }
      return std::nullopt;
    }
    std::vector<int64_t> kept;
    for (const int64_t t : m_.live) {
      const bool is_done = is_crowd || judge(t).verdict == Verdict::diverged ||
                           budget_of(t) >= bound_ || status(t) != Status::paused;
      if (is_done && t != unstable.trial) {
        drop(t);
      } else {
        kept.push_back(t);
      }
    }
    m_.live = std::move(kept);
    m_.time = std::min(rounded(2 * m_.time), bound_);
    m_.to_start = options().mltuner.side_by_side;
    return std::nullopt;
  }

  // One at a time for the time that the first one needed.
  std::optional<Move> rest() {
    if (m_.judged >= 0) {
      if (status(m_.judged) == Status::running) return wait_or_stop("the trial still runs");
      const Progress progress = judge(m_.judged);
      if (progress.slope) m_.slopes.push_back(*progress.slope);
      if (is_better(progress)) {
        drop(m_.best);
        m_.best = m_.judged;
        m_.best_slope = *progress.slope;
      } else {
        drop(m_.judged);
      }
      m_.judged = -1;
    }
    if (!may_search()) {
      m_.count = m_.previous;  // of one that is cut short the next search learns nothing
    } else if (!has_settled(m_.slopes) && (m_.previous == 0 || m_.count < m_.previous)) {
      if (auto move = begin_trial()) {
        m_.judged = move->trial;
        return move;
      }
    }
    begin_training();
    return std::nullopt;
  }

  // Else what is left of the budget is for the best trial.
  bool may_search() const {
    return spent() < options().mltuner.search_share * options().total_budget * (1 - kRounding);
  }

  // A trial that took over the state of the best one goes on with its line of values.
  void begin_training() {
    m_.phase = Phase::training;
    if (!options().mltuner.forks) m_.line.clear();
  }

  // A piece at a time, until there is no new best.
  std::optional<Move> train() {
    if (status(m_.best) == Status::running) return wait_or_stop("the best trial is being trained");
    const int64_t flat = values_without_best(m_.line);
    const bool is_over = status(m_.best) != Status::paused;
    if (options().mltuner.forks && flat > options().mltuner.patience) {
      m_.phase = Phase::over;
    } else if (is_over || flat >= options().mltuner.patience) {
      if (m_.retunings >= options().mltuner.retunings || (is_over && options().mltuner.forks)) {
        m_.phase = Phase::over;
      } else if (!is_over && !may_search()) {
        return piece();  // a new trial that nothing is compared with would replace it
      } else if (!options().mltuner.forks || !m_.retuned) {
        ++m_.retunings;
        m_.retuned = true;
        m_.previous = m_.count;
        begin_search();
      } else {
        return piece();
      }
    } else {
      m_.retuned = false;
      return piece();
    }
    return std::nullopt;
  }

  Move piece() {
    return resume(m_.best, budget_of(m_.best) + options().unit, "the best trial is trained on");
  }

  void learn(const Result& result) override {
    if (result.refused) forget(result.trial);
    if (m_.phase == Phase::training && result.trial == m_.best)
      for (const Observation& o : result.seen) m_.line.push_back(o.value);
  }

  // A setting that was refused is none of the search: another one takes its place.
  void forget(int64_t trial) {
    m_.count = std::max<int64_t>(0, m_.count - 1);
    if (m_.phase == Phase::first && std::erase(m_.live, trial) > 0) ++m_.to_start;
  }

  struct Sloped {
    int64_t trial = -1;
    double slope = 0;
  };

  void adopt(const Sloped& chosen) {
    if (m_.best >= 0) drop(m_.best);
    m_.best = chosen.trial;
    m_.best_slope = chosen.slope;
    m_.slopes.assign(1, chosen.slope);
    m_.time = budget_of(chosen.trial);
    for (const int64_t t : m_.live)
      if (t != chosen.trial) drop(t);
    m_.live.clear();
    m_.phase = Phase::rest;
  }

  // Of those that live, the one that gained most: their times differ where the search is cut short,
  // and then their slopes say little. The noise of short trials may exceed what they gain; then
  // none has a slope.
  int64_t furthest(bool sloped) const {
    int64_t best = -1;
    double gain = 0;
    for (const int64_t t : m_.live) {
      const Progress p = judge(t);
      if (p.verdict == Verdict::diverged || (sloped && !p.slope) || p.gain >= gain) continue;
      best = t;
      gain = p.gain;
    }
    return best;
  }

  bool is_better(const Progress& progress) const {
    return progress.slope && *progress.slope < m_.best_slope;
  }

  // Of those that live and have come so far, the one with the best slope; trial -1 for none.
  Sloped best_of_live(bool converging, double least = 0) const {
    Sloped best;
    for (const int64_t t : m_.live) {
      const Progress p = judge(t);
      if (p.verdict == Verdict::diverged || !p.slope || budget_of(t) < least) continue;
      if (converging && p.verdict != Verdict::converging) continue;
      if (best.trial < 0 || *p.slope < best.slope) best = {t, *p.slope};
    }
    return best;
  }

  // The first value stands for the loss before any training. A tuner inside a run measures just
  // that; recorded curves do not have it.
  Progress judge(int64_t t) const {
    const std::vector<Observation>& seen = trials()[static_cast<size_t>(t)].seen;
    if (seen.empty()) return {};
    return progress_of(seen[0], std::span(seen).subspan(1));
  }

  double budget_of(int64_t t) const { return trials()[static_cast<size_t>(t)].budget(); }

  Json save_state() const override {
    Json line = Json::array();
    for (const double v : m_.line) line.push_back(std::isfinite(v) ? Json(v) : Json(nullptr));
    return {{"phase", kPhases[static_cast<size_t>(m_.phase)].second},
            {"time", m_.time},
            {"live", m_.live},
            {"slopes", m_.slopes},
            {"line", std::move(line)},
            {"best", m_.best},
            {"best_slope", m_.best_slope},
            {"judged", m_.judged},
            {"count", m_.count},
            {"previous", m_.previous},
            {"to_start", m_.to_start},
            {"retunings", m_.retunings},
            {"retuned", m_.retuned}};
  }
  void restore_state(const Json& state) override {
    const JsonFields fields(state, "saved state");
    const int64_t most = static_cast<int64_t>(trials().size()) - 1;
    constexpr double kMost = std::numeric_limits<double>::max();
    const auto doubles = [&](const char* key) {
      std::vector<double> out;
      for (const Json& v : fields.array(key))
        out.push_back(v.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                  : fields.as_number(v, key, -kMost, kMost));
      return out;
    };
    Memory f;
    fields.read("phase", f.phase, kPhases);
    for (const Json& v : fields.array("live"))
      f.live.push_back(fields.as_integer(v, "live", 0, most));
    f.slopes = doubles("slopes");
    f.line = doubles("line");
    f.best = fields.integer("best", -1, most);
    f.judged = fields.integer("judged", -1, most);
    if (f.best < 0 && f.phase == Phase::training)
      fail(ErrorCode::data_loss, "saved state: a trial is trained, and there is none");
    f.time = fields.number("time", 0, options().full_budget);
    f.best_slope = fields.number("best_slope", -kMost, kMost);
    f.count = fields.integer("count", 0, INT64_MAX);
    f.previous = fields.integer("previous", 0, INT64_MAX);
    f.to_start = fields.integer("to_start", 0, INT64_MAX);
    f.retunings = fields.integer("retunings", 0, INT64_MAX);
    f.retuned = fields.boolean("retuned");
    m_ = std::move(f);
  }

  Memory m_;
  double bound_;
};

}  // namespace

MadePolicy make_mltuner(std::unique_ptr<Searcher> searcher, const PolicyOptions& options) {
  return std::make_unique<MlTunerPolicy>("mltuner", std::move(searcher), options);
}

}  // namespace ductile::tune
