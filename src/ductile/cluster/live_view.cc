// What the service knows of its jobs beside the store, for those who ask.
#include <mutex>
#include <utility>

#include "ductile/cluster/why_impl.h"

namespace ductile::cluster {

int rank_of(const std::string& tier) { return tier == "premium" ? 0 : tier == "standard" ? 1 : 2; }

namespace {

template <typename Figures>
std::optional<Figures> known_of(const std::map<JobId, Figures>& all, JobId job) {
  const auto found = all.find(job);
  return found == all.end() ? std::nullopt : std::optional(found->second);
}

// What waits for other jobs, for its user or for a larger service takes devices from nobody.
bool competes(const LiveState& state) {
  using Cause = LiveState::Cause;
  return state.moment != LiveState::Moment::waiting ||
         (state.cause != Cause::order && state.cause != Cause::user &&
          state.cause != Cause::too_large);
}

}  // namespace

void LiveView::set(JobId job, LiveState state) {
  const std::lock_guard lock(mutex_);
  if (const auto known = known_.find(job); known != known_.end()) {
    Known& of_job = known->second;
    of_tier_[of_job.tier] -= of_job.competes ? 1 : 0;
    of_job.competes = competes(state);
    of_tier_[of_job.tier] += of_job.competes ? 1 : 0;
  }
  states_[job] = std::move(state);
}

void LiveView::enter(JobId job, const std::string& owner, const std::string& tier) {
  const std::lock_guard lock(mutex_);
  if (!known_.emplace(job, Known{owner, tier, true}).second) return;
  ++live_of_[owner];
  ++of_tier_[tier];
}

std::pair<int64_t, int64_t> LiveView::above(JobId job, const std::string& tier) const {
  std::pair<int64_t, int64_t> out;
  const int rank = rank_of(tier);
  const std::lock_guard lock(mutex_);
  for (const auto& [name, count] : of_tier_)
    if (rank_of(name) < rank) out.first += count;
  if (out.first == 0) return out;  // as mostly
  for (auto later = known_.upper_bound(job); later != known_.end(); ++later)
    if (later->second.competes && rank_of(later->second.tier) < rank) ++out.second;
  return out;
}

std::pair<int64_t, int64_t> LiveView::live(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_of_.find(owner);
  return {static_cast<int64_t>(known_.size()), found == live_of_.end() ? 0 : found->second};
}

void LiveView::set_hardware(std::map<std::string, server::NodeHardware> hardware) {
  const std::lock_guard lock(mutex_);
  hardware_ = std::move(hardware);
}

std::map<std::string, server::NodeHardware> LiveView::hardware() const {
  const std::lock_guard lock(mutex_);
  return hardware_;
}

void LiveView::set_gpus(JobId job, int64_t gpus) {
  const std::lock_guard lock(mutex_);
  if (gpus > 0) gpus_[job] = gpus;
}

void LiveView::set_training(JobId job, const TrainingFigures& figures) {
  const std::lock_guard lock(mutex_);
  training_[job] = figures;
}

std::optional<TrainingFigures> LiveView::training(JobId job) const {
  const std::lock_guard lock(mutex_);
  return known_of(training_, job);
}

void LiveView::set_staged(JobId job, const StagedFigures& figures) {
  const std::lock_guard lock(mutex_);
  staged_[job] = figures;
}

std::optional<StagedFigures> LiveView::staged(JobId job) const {
  const std::lock_guard lock(mutex_);
  return known_of(staged_, job);
}

std::map<JobId, int64_t> LiveView::gpus() const {
  const std::lock_guard lock(mutex_);
  return gpus_;
}

void LiveView::set_claim(std::optional<NodeClaim> claim) {
  const std::lock_guard lock(mutex_);
  claim_ = std::move(claim);
}

std::optional<NodeClaim> LiveView::claim() const {
  const std::lock_guard lock(mutex_);
  return claim_;
}

void LiveView::note_round(double seconds, double turn) {
  const std::lock_guard lock(mutex_);
  ++rounds_.count;
  rounds_.seconds += seconds;
  rounds_.last = seconds;
  rounds_.last_turn = turn;
}

void LiveView::set_serving(JobId job, ServingFigures figures) {
  const std::lock_guard lock(mutex_);
  serving_[job] = std::move(figures);
}

void LiveView::end_serving(JobId job) {
  const std::lock_guard lock(mutex_);
  serving_.erase(job);
}

std::optional<ServingFigures> LiveView::serving(JobId job) const {
  const std::lock_guard lock(mutex_);
  const auto found = serving_.find(job);
  return found == serving_.end() ? std::nullopt : std::optional(found->second);
}

std::map<JobId, ServingFigures> LiveView::serving() const {
  const std::lock_guard lock(mutex_);
  return serving_;
}

std::map<LiveKind, int64_t> LiveView::counts() const {
  std::map<LiveKind, int64_t> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [job, state] : states_) ++out[{state.moment, state.cause}];
  return out;
}

RoundFigures LiveView::rounds() const {
  const std::lock_guard lock(mutex_);
  return rounds_;
}

std::string_view to_string(LiveState::Moment moment) {
  constexpr std::string_view kNames[] = {"waiting", "starting", "running", "saving", "resting"};
  return kNames[static_cast<size_t>(moment)];
}

std::string_view to_string(LiveState::Cause cause) {
  constexpr std::string_view kNames[] = {"",     "devices", "quota",   "too large", "user",
                                         "room", "end",     "failure", "order",     "node"};
  return kNames[static_cast<size_t>(cause)];
}

void LiveView::set_refusal(StoreFault fault, std::string text) {
  const std::lock_guard lock(mutex_);
  refusal_ = {fault, std::move(text)};
}

std::pair<StoreFault, std::string> LiveView::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void LiveView::forget(JobId job) {
  const std::lock_guard lock(mutex_);
  states_.erase(job);
  serving_.erase(job);
  gpus_.erase(job);
  staged_.erase(job);
  training_.erase(job);
  if (const auto known = known_.extract(job)) {
    const auto& [owner, tier, counts] = known.mapped();
    if (--live_of_[owner] == 0) live_of_.erase(owner);
    of_tier_[tier] -= counts ? 1 : 0;
  }
}

std::optional<LiveState> LiveView::of(JobId job) const {
  const std::lock_guard lock(mutex_);
  const auto found = states_.find(job);
  return found == states_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace ductile::cluster
