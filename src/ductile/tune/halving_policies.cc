#include <algorithm>
#include <cmath>

#include "ductile/base/json_fields.h"
#include "ductile/tune/halving.h"
#include "ductile/tune/trial_policies_impl.h"

namespace ductile::tune {
namespace {

using Json = nlohmann::json;

int64_t whole(double x) { return static_cast<int64_t>(std::floor(x + 1e-9)); }

std::vector<int64_t> numbers(const JsonFields& fields, const char* key, int64_t most) {
  std::vector<int64_t> out;
  for (const Json& v : fields.array(key)) out.push_back(fields.as_integer(v, key, 0, most));
  return out;
}

// One bracket after the other, rung by rung. A rung is decided when all of its trials are done.
class BracketPolicy : public TrialPolicy {
 public:
  using TrialPolicy::TrialPolicy;

 private:
  // The number of rungs and of trials of bracket number `index`.
  virtual std::pair<int64_t, int64_t> shape(int64_t index) const = 0;

  Move decide() override {
    while (true) {
      if (rungs_.empty()) {
        const auto [num_rungs, settings] = shape(brackets_);
        rungs_ = bracket_rungs(options(), num_rungs, settings);
        for (Rung& r : rungs_) r.budget = rounded(r.budget);
        rung_ = 0;
        members_.clear();
      }
      const Rung& rung = rungs_[rung_];
      if (rung_ == 0 && static_cast<int64_t>(members_.size()) < rung.trials) {
        Move move = start(rung.budget, fmt::format("it fills rung 1 of {} of bracket {}",
                                                   rungs_.size(), brackets_ + 1));
        if (move.kind == MoveKind::start) {
          members_.push_back(move.trial);
          return move;
        }
        if (members_.empty()) return move;
        rungs_[0].trials = static_cast<int64_t>(members_.size());
      }
      for (const int64_t t : members_) {
        if (status(t) == Status::paused && budget_of(t) < rung.budget)
          return resume(t, rung.budget,
                        fmt::format("it is among the best {} of the rung before", members_.size()));
      }
      for (const int64_t t : members_)
        if (status(t) == Status::running) return wait_or_stop("the rung is not complete");
      close_rung();
    }
  }

  void close_rung() {
    ++rung_;
    if (rung_ == rungs_.size()) {
      for (const int64_t t : members_) drop(t);
      rungs_.clear();
      ++brackets_;
      return;
    }
    std::vector<int64_t> alive;
    for (const int64_t t : members_)
      if (status(t) == Status::paused) alive.push_back(t);
    members_ = ranked(alive);
    const size_t keep = static_cast<size_t>(rungs_[rung_].trials);
    for (size_t i = keep; i < members_.size(); ++i) drop(members_[i]);
    if (members_.size() > keep) members_.resize(keep);
  }

  // One that is refused leaves its place in the first rung to another.
  void learn(const Result& result) override {
    if (result.refused) std::erase(members_, result.trial);
  }

  double budget_of(int64_t t) const { return trials()[static_cast<size_t>(t)].budget(); }

  Json save_state() const override {
    Json rungs = Json::array();
    for (const Rung& r : rungs_) rungs.push_back({r.trials, r.budget});
    return {{"brackets", brackets_},
            {"rung", rung_},
            {"rungs", std::move(rungs)},
            {"members", members_}};
  }
  void restore_state(const Json& state) override {
    const JsonFields fields(state, "saved state");
    std::vector<Rung> rungs;
    for (const Json& r : fields.array("rungs")) {
      if (!r.is_array() || r.size() != 2) fields.wrong("rungs", "a list of pairs", r);
      rungs.push_back({fields.as_integer(r[0], "rungs", 1, INT64_MAX),
                       fields.as_number(r[1], "rungs", 0, options().full_budget)});
    }
    const int64_t most = static_cast<int64_t>(trials().size()) - 1;
    std::vector<int64_t> members = numbers(fields, "members", most);
    const int64_t rung = fields.integer("rung", 0, INT64_MAX);
    if (!rungs.empty() && rung >= static_cast<int64_t>(rungs.size()))
      fail(ErrorCode::data_loss, "rung {} of {}", rung, rungs.size());
    brackets_ = fields.integer("brackets", 0, INT64_MAX);
    rung_ = static_cast<size_t>(rung);
    rungs_ = std::move(rungs);
    members_ = std::move(members);
  }

  int64_t brackets_ = 0;  // that are complete
  size_t rung_ = 0;
  std::vector<Rung> rungs_;
  std::vector<int64_t> members_;
};

class HalvingPolicy final : public BracketPolicy {
 public:
  using BracketPolicy::BracketPolicy;

 private:
  std::pair<int64_t, int64_t> shape(int64_t) const override {
    const int64_t rungs = most_rungs(options());
    if (options().halving.settings > 0) return {rungs, options().halving.settings};
    if (!std::isfinite(left()))
      return {rungs, whole(std::pow(options().halving.eta, static_cast<double>(rungs - 1)))};
    // As many as the budget pays for. The cost grows with their number.
    const double most = left() + kRounding * options().unit;
    int64_t low = 1, high = whole(left() / options().least_budget) + 1;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (cost(rungs, middle) <= most ? low : high) = middle;
    }
    return {rungs, low};
  }

  double cost(int64_t rungs, int64_t settings) const {
    double sum = 0, before = 0;
    for (const Rung& r : bracket_rungs(options(), rungs, settings)) {
      sum += static_cast<double>(r.trials) * (rounded(r.budget) - before);
      before = rounded(r.budget);
    }
    return sum;
  }
};

class HyperbandPolicy final : public BracketPolicy {
 public:
  using BracketPolicy::BracketPolicy;

 private:
  std::pair<int64_t, int64_t> shape(int64_t index) const override {
    const int64_t rungs = most_rungs(options()), s = rungs - 1 - index % rungs;
    return {s + 1, hyperband_settings(options(), s)};
  }
};

// Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020, algorithm 2.
class AshaPolicy final : public TrialPolicy {
 public:
  AshaPolicy(std::string_view name, std::unique_ptr<Searcher> searcher,
             const PolicyOptions& options)
      : TrialPolicy(name, std::move(searcher), options) {
    for (const Rung& r : bracket_rungs(options, most_rungs(options), 1))
      budgets_.push_back(rounded(r.budget));
    done_.resize(budgets_.size());
    promoted_.resize(budgets_.size());
  }

 private:
  Move decide() override {
    for (size_t k = budgets_.size() - 1; k-- > 0;) {
      const std::vector<int64_t> order = ranked_in(k);
      const size_t top =
          static_cast<size_t>(static_cast<double>(order.size()) / options().halving.eta + 1e-9);
      for (size_t i = 0; i < top; ++i) {
        const int64_t t = order[i];
        if (status(t) != Status::paused ||
            std::find(promoted_[k].begin(), promoted_[k].end(), t) != promoted_[k].end())
          continue;
        promoted_[k].push_back(t);
        return resume(
            t, budgets_[k + 1],
            fmt::format("it is among the best {} of {} in rung {}", top, order.size(), k + 1));
      }
    }
    Move move = start(budgets_[0], "no trial is due for the next rung");
    if (move.kind != MoveKind::stop) return move;
    // The space is used up: what is paused goes on, the best first.
    for (size_t k = budgets_.size() - 1; k-- > 0;) {
      for (const int64_t t : ranked_in(k)) {
        if (status(t) != Status::paused) continue;
        if (trials()[static_cast<size_t>(t)].budget() >= budgets_[k + 1]) continue;
        promoted_[k].push_back(t);
        return resume(t, budgets_[k + 1], "no new setting is left");
      }
    }
    return move;
  }

  // By what they had there: those that went on have come further since, and would look better.
  std::vector<int64_t> ranked_in(size_t k) const {
    return ranked(done_[k], budgets_[k] * (1 + 1e-9));
  }

  void learn(const Result& result) override {
    if (result.refused) return;  // it came as far as no rung
    const double reached = trials()[static_cast<size_t>(result.trial)].budget();
    for (size_t k = 0; k < budgets_.size(); ++k) {
      const bool is_there =
          std::find(done_[k].begin(), done_[k].end(), result.trial) != done_[k].end();
      // One that diverged or ended counts in the rung that it was on its way to.
      const bool is_over = status(result.trial) != Status::paused;
      if (!is_there && (reached >= budgets_[k] || is_over)) {
        done_[k].push_back(result.trial);
        if (reached < budgets_[k] || is_over) break;
      }
    }
  }

  Json save_state() const override { return {{"done", done_}, {"promoted", promoted_}}; }
  void restore_state(const Json& state) override {
    const JsonFields fields(state, "saved state");
    const auto lists = [&](const char* key) {
      std::vector<std::vector<int64_t>> out;
      for (const Json& list : fields.array(key)) {
        if (!list.is_array()) fields.wrong(key, "a list of lists", list);
        out.emplace_back();
        for (const Json& v : list)
          out.back().push_back(
              fields.as_integer(v, key, 0, static_cast<int64_t>(trials().size()) - 1));
      }
      if (out.size() != budgets_.size())
        fail(ErrorCode::data_loss, "{} rungs, not {}", out.size(), budgets_.size());
      return out;
    };
    auto done = lists("done"), promoted = lists("promoted");
    done_ = std::move(done);
    promoted_ = std::move(promoted);
  }

  std::vector<double> budgets_;                        // of each rung
  std::vector<std::vector<int64_t>> done_, promoted_;  // of each rung: complete, sent on
};

}  // namespace

int64_t most_rungs(const PolicyOptions& options) {
  const double ratio = options.full_budget / options.least_budget;
  return 1 + whole(std::log(ratio) / std::log(options.halving.eta));
}

std::vector<Rung> bracket_rungs(const PolicyOptions& options, int64_t num_rungs, int64_t settings) {
  std::vector<Rung> out;
  for (int64_t i = 0; i < num_rungs; ++i) {
    const double shrunk = std::pow(options.halving.eta, static_cast<double>(i));
    const double behind = std::pow(options.halving.eta, static_cast<double>(num_rungs - 1 - i));
    out.push_back({std::max<int64_t>(1, whole(static_cast<double>(settings) / shrunk)),
                   options.full_budget / behind});
  }
  return out;
}

int64_t hyperband_settings(const PolicyOptions& options, int64_t s) {
  const double brackets = static_cast<double>(most_rungs(options));
  const double grown = std::pow(options.halving.eta, static_cast<double>(s));
  return static_cast<int64_t>(std::ceil(brackets * grown / static_cast<double>(s + 1) - 1e-9));
}

MadePolicy make_halving(std::unique_ptr<Searcher> searcher, const PolicyOptions& options) {
  return std::make_unique<HalvingPolicy>("halving", std::move(searcher), options);
}

MadePolicy make_hyperband(std::unique_ptr<Searcher> searcher, const PolicyOptions& options) {
  return std::make_unique<HyperbandPolicy>("hyperband", std::move(searcher), options);
}

MadePolicy make_asha(std::unique_ptr<Searcher> searcher, const PolicyOptions& options) {
  return std::make_unique<AshaPolicy>("asha", std::move(searcher), options);
}

}  // namespace ductile::tune
