#include "ductile/sched/work_left.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {

namespace {

constexpr size_t kMostApplications = 1 << 14;
constexpr size_t kRemembered = 512;  // jobs of one kind; beyond it every second is dropped

void remember(std::vector<double>& sorted, double value) {
  sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), value), value);
  if (sorted.size() <= kRemembered) return;
  size_t kept = 0;
  for (size_t i = 0; i < sorted.size(); i += 2) sorted[kept++] = sorted[i];
  sorted.resize(kept);
}

}  // namespace

void WorkLeft::ended(const std::string& application, double progress, double service) {
  if (!application.empty() && progress > 0) {
    if (progress_.size() == kMostApplications && !progress_.contains(application))
      progress_.clear();
    remember(progress_[application], progress);
  }
  if (service > 0) remember(service_, service);
}

nlohmann::json WorkLeft::state() const {
  nlohmann::json out = {{"service", service_}, {"progress", nlohmann::json::object()}};
  for (const auto& [application, ended] : progress_) out["progress"][application] = ended;
  return out;
}

WorkLeft WorkLeft::from_state(const nlohmann::json& state, const std::string& where) {
  return as_data_loss([&] {
    const JsonFields f(state, where);
    f.only({"service", "progress"});
    const auto ended = [&](const nlohmann::json& list, const char* key) {
      std::vector<double> out =
          numbers_from(f, list, key, 1e-300, kMostSaved, SIZE_MAX, kRemembered);
      if (!std::is_sorted(out.begin(), out.end())) f.wrong(key, "lists of rising numbers", list);
      return out;
    };
    WorkLeft out;
    out.service_ = ended(f.at("service"), "service");
    const nlohmann::json& progress = f.at("progress");
    if (!progress.is_object() || progress.size() > kMostApplications)
      f.wrong("progress", "an object of at most 16384 applications", progress);
    for (const auto& [application, list] : progress.items()) {
      if (list.empty()) f.wrong("progress", "lists that are not empty", list);
      out.progress_[application] = ended(list, "progress");
    }
    return out;
  });
}

std::vector<double> WorkLeft::guess(const std::string& application, double progress, double service,
                                    double progress_per_service, double claim) const {
  const std::vector<double>* samples = &service_;
  double at = service, scale = 1, doubt = 8;
  if (const auto found = progress_.find(application);
      found != progress_.end() && progress_per_service > 0 && found->second.back() > progress) {
    samples = &found->second;
    at = progress;
    scale = 1 / progress_per_service;
    doubt = 1;
  }
  const auto first = std::upper_bound(samples->begin(), samples->end(), at);
  const auto n = static_cast<size_t>(samples->end() - first);
  const auto known = static_cast<size_t>(
      std::floor(kParts * static_cast<double>(n) / (static_cast<double>(n) + doubt)));
  std::vector<double> parts;
  for (size_t i = 0; i < known; ++i) {
    const size_t rank = (2 * i + 1) * n / (2 * known);
    parts.push_back((first[static_cast<ptrdiff_t>(rank)] - at) * scale);
  }
  const size_t open = kParts - known;
  for (size_t i = 0; i < open; ++i) {
    const double u = (static_cast<double>(i) + 0.5) / static_cast<double>(open);
    parts.push_back((claim + kLeastService) / ((1 - u) * (1 - u)) - claim);
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

}  // namespace ductile::sched
