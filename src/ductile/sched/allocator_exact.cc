#include <algorithm>
#include <array>
#include <cmath>

#include "ductile/sched/allocator.h"

namespace ductile::sched {

namespace {

// A partial solution: what the jobs decided so far use (one mixed-radix digit a type) and how much
// of the bound it gives away.
struct Label {
  uint64_t key = 0;
  double regret = 0;
  uint32_t parent = 0;
  int32_t choice = -1;
};

void merge_into(std::vector<Label>& into, const std::vector<Label>& more,
                std::vector<Label>& scratch) {
  scratch.clear();
  size_t a = 0, b = 0;
  while (a < into.size() || b < more.size()) {
    if (b == more.size() || (a < into.size() && into[a].key < more[b].key)) {
      scratch.push_back(into[a++]);
    } else if (a == into.size() || more[b].key < into[a].key) {
      scratch.push_back(more[b++]);
    } else {
      scratch.push_back(more[b].regret < into[a].regret ? more[b] : into[a]);
      ++a, ++b;
    }
  }
  into.swap(scratch);
}

}  // namespace

// Objective = bound - regrets of the choices made - price of what is left over, for any feasible
// solution. So only choices whose regret is below the present gap can be part of a better one.
// Jobs that have such a choice are open; a dynamic programme goes through them, one after the
// other, over what they use together.
class Allocator::ExactSearch {
 public:
  // `gap`: a better solution gives away less of the bound than this, by more than `noise`.
  ExactSearch(const Allocator& of, double gap, double noise)
      : of_(of), num_types_(static_cast<size_t>(of.num_types())), gap_(gap), noise_(noise) {
    find_open();
  }

  bool none_open() const { return open_.empty(); }
  // No open job was left out, and no label.
  bool complete() const { return complete_; }
  void leave_out_all_but(size_t most);
  // False where the room has more states than can be counted.
  bool prepare();
  void search(size_t most_labels);
  // The open jobs, each with its choice in a better solution; empty: there is none.
  std::vector<std::pair<int32_t, int32_t>> better() const;

 private:
  using Amounts = std::array<int64_t, kMaxTypes>;
  struct Open {
    int32_t job = 0;
    std::vector<std::pair<int32_t, double>> options;  // choice, regret
    double second = 0;                                // the least but the present choice's
  };

  const Job& job_of(const Open& open) const { return of_.jobs_[static_cast<size_t>(open.job)]; }
  const Option* options_of(const Open& open) const {
    return of_.choices_.data() + job_of(open).choice_begin;
  }
  double regret_of(const Job& job, int choice) const {
    return job.surplus - of_.reduced_value(job, choice, of_.prices_.data());
  }
  // Adds what the job holds now to the room, or takes it back.
  void change_room(const Job& job, int sign) {
    if (job.chosen < 0) return;
    const Option& held = of_.choices_[job.choice_begin + static_cast<size_t>(job.chosen)];
    room_[static_cast<size_t>(held.type)] += sign * held.gpus;
  }
  int64_t used(uint64_t key, size_t type) const {
    return static_cast<int64_t>(key / stride_[type] % (static_cast<uint64_t>(room_[type]) + 1));
  }
  // Price of what is left over when later jobs use `more` at most.
  double idle_cost(uint64_t key, const Amounts& more) const {
    double cost = 0;
    for (size_t t = 0; t < num_types_; ++t) {
      const int64_t left = std::max<int64_t>(room_[t] - used(key, t) - more[t], 0);
      cost += of_.prices_[t] * static_cast<double>(left);
    }
    return cost;
  }
  void find_open();
  std::vector<Label> decide(size_t k, const std::vector<Label>& from);

  const Allocator& of_;
  const size_t num_types_;
  const double gap_, noise_;
  bool complete_ = true;
  std::vector<Open> open_;
  Amounts room_{};  // what the open jobs share
  std::array<uint64_t, kMaxTypes> stride_{};
  std::vector<Amounts> later_;  // what the jobs from each on can use, at most
  double fixed_ = 0;            // regret of the jobs that are not open
  std::vector<std::vector<Label>> levels_;
  std::vector<Label> more_, scratch_;
};

void Allocator::ExactSearch::find_open() {
  for (size_t t = 0; t < num_types_; ++t) room_[t] = of_.capacity_[t] - of_.used_[t];
  for (int i = 0; i < of_.num_jobs(); ++i) {
    const Job& j = of_.jobs_[static_cast<size_t>(i)];
    if (j.num_choices == 0) continue;
    Open open{i, {}};
    for (int c = -1; c < j.num_choices; ++c) {
      if (c >= 0 && !of_.allowed(j, c)) continue;
      const double regret = regret_of(j, c);
      if (regret < gap_ || c == j.chosen) open.options.push_back({c, std::max(regret, 0.0)});
    }
    if (open.options.size() < 2) continue;
    open.second = HUGE_VAL;
    for (auto [c, regret] : open.options)
      if (c != j.chosen) open.second = std::min(open.second, regret);
    change_room(j, 1);
    open_.push_back(std::move(open));
  }
}

// The jobs whose second thoughts cost least are those worth thinking about.
void Allocator::ExactSearch::leave_out_all_but(size_t most) {
  if (open_.size() <= most) return;
  complete_ = false;
  std::nth_element(open_.begin(), open_.begin() + static_cast<ptrdiff_t>(most), open_.end(),
                   [](const Open& a, const Open& b) { return a.second < b.second; });
  for (size_t k = most; k < open_.size(); ++k) change_room(job_of(open_[k]), -1);
  open_.resize(most);
}

bool Allocator::ExactSearch::prepare() {
  uint64_t space = 1;
  for (size_t t = 0; t < num_types_; ++t) {
    stride_[t] = space;
    const auto radix = static_cast<uint64_t>(room_[t]) + 1;
    if (space > UINT64_MAX / 4 / radix) return false;
    space *= radix;
  }
  later_.resize(open_.size() + 1);
  for (size_t k = open_.size(); k-- > 0;) {
    later_[k] = later_[k + 1];
    const Option* all = options_of(open_[k]);
    Amounts most{};
    for (auto [c, regret] : open_[k].options)
      if (c >= 0) {
        auto& m = most[static_cast<size_t>(all[c].type)];
        m = std::max<int64_t>(m, all[c].gpus);
      }
    for (size_t t = 0; t < num_types_; ++t) later_[k][t] += most[t];
  }
  double all = 0;
  for (const Job& j : of_.jobs_) all += regret_of(j, j.chosen);
  for (const Open& open : open_) all -= regret_of(job_of(open), job_of(open).chosen);
  fixed_ = std::max(all, 0.0);
  return true;
}

// The labels after the k-th open job, of those before it.
std::vector<Label> Allocator::ExactSearch::decide(size_t k, const std::vector<Label>& from) {
  const Option* all = options_of(open_[k]);
  std::vector<Label> next;
  for (auto [c, regret] : open_[k].options) {
    more_.clear();
    for (size_t l = 0; l < from.size(); ++l) {
      uint64_t key = from[l].key;
      if (c >= 0) {
        const auto t = static_cast<size_t>(all[c].type);
        if (used(key, t) + all[c].gpus > room_[t]) continue;
        key += stride_[t] * static_cast<uint64_t>(all[c].gpus);
      }
      const double sum = from[l].regret + regret;
      if (sum + fixed_ + idle_cost(key, later_[k + 1]) >= gap_ - noise_) continue;
      more_.push_back({key, sum, static_cast<uint32_t>(l), c});
    }
    merge_into(next, more_, scratch_);
  }
  return next;
}

void Allocator::ExactSearch::search(size_t most_labels) {
  levels_.assign(1, {Label{}});
  for (size_t k = 0; k < open_.size(); ++k) {
    std::vector<Label> next = decide(k, levels_.back());
    if (next.size() > most_labels) {
      complete_ = false;
      const auto keep = static_cast<ptrdiff_t>(most_labels);
      std::nth_element(next.begin(), next.begin() + keep, next.end(),
                       [](const Label& a, const Label& b) { return a.regret < b.regret; });
      next.resize(most_labels);
      std::sort(next.begin(), next.end(),
                [](const Label& a, const Label& b) { return a.key < b.key; });
    }
    levels_.push_back(std::move(next));
    if (levels_.back().empty()) break;
  }
}

std::vector<std::pair<int32_t, int32_t>> Allocator::ExactSearch::better() const {
  if (levels_.size() != open_.size() + 1 || levels_.back().empty()) return {};
  const std::vector<Label>& last = levels_.back();
  size_t best = 0;
  double least = HUGE_VAL;
  for (size_t l = 0; l < last.size(); ++l) {
    const double cost = last[l].regret + idle_cost(last[l].key, {});
    if (cost < least) least = cost, best = l;
  }
  std::vector<std::pair<int32_t, int32_t>> choices;
  for (size_t k = open_.size(); k > 0; --k) {
    const Label& label = levels_[k][best];
    choices.push_back({open_[k - 1].job, label.choice});
    best = label.parent;
  }
  return choices;
}

void Allocator::improve_exactly() {
  const double gap = result_.bound - result_.objective;
  const double noise = 1e-10 * result_.bound;
  if (gap <= noise) {
    result_.exact = true;
    return;
  }
  ExactSearch search(*this, gap, noise);
  if (search.none_open()) {
    result_.exact = true;
    result_.bound = result_.objective;
    return;
  }
  search.leave_out_all_but(static_cast<size_t>(options_.exact_jobs));
  if (!search.prepare()) return;
  search.search(static_cast<size_t>(options_.exact_labels));
  if (const auto choices = search.better(); !choices.empty()) {
    for (auto [job, choice] : choices) choose(jobs_[static_cast<size_t>(job)], -1);
    for (auto [job, choice] : choices) choose(jobs_[static_cast<size_t>(job)], choice);
    summarise();
  }
  if (search.complete()) {
    result_.exact = true;
    result_.bound = result_.objective;
  }
}

}  // namespace ductile::sched
