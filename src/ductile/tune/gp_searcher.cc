#include <algorithm>
#include <cmath>

#include "ductile/base/json_fields.h"
#include "ductile/tune/gp.h"
#include "ductile/tune/searchers_impl.h"

namespace ductile::tune {
namespace {

constexpr size_t kGpCandidates = 500;
constexpr size_t kMostPoints = 400;     // of the process: the best half and the latest
constexpr size_t kMostFitPoints = 150;  // that the scales are fitted to

class GpSearcher final : public Searcher {
 public:
  GpSearcher(std::string_view name, const Space& space, const SearcherOptions& options)
      : Searcher(name, space, options), scales_(usual_scales(this->space().num_features())) {}

 private:
  Pick pick(Rng& rng, std::span<const int64_t>) override {
    const size_t enough = startup(std::min<size_t>(4 + space().size(), 12));
    std::vector<Scored> scores = scores_of(trials(), enough);
    if (scores.size() < enough) return {.fresh = random_candidate(rng)};
    scores = thinned(std::move(scores));
    std::vector<Point> points;
    std::vector<double> raw;
    for (const Scored& s : scores) {
      points.push_back(space().features(trials()[s.trial].setting));
      raw.push_back(s.value);
    }
    const std::vector<double> values = normal_scores(raw);
    refit(points, values, told().size());
    const GaussianProcess process(points, values, scales_);
    std::vector<size_t> order(values.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return values[a] < values[b]; });
    std::vector<Setting> around;
    for (size_t i = 0; i < std::min<size_t>(5, order.size()); ++i)
      around.push_back(trials()[scores[order[i]].trial].setting);
    const size_t most =
        options().candidates > 0 ? static_cast<size_t>(options().candidates) : kGpCandidates;
    const std::vector<Candidate> from = candidates(rng, most, around);
    const Candidate* best = nullptr;
    double best_gain = 0;
    for (const Candidate& c : from) {
      const Normal here = process.predict(space().features(c.setting));
      const double gain =
          log_expected_improvement(here.mean, std::sqrt(here.variance), values[order[0]]);
      if (best != nullptr && !(gain > best_gain)) continue;
      best = &c;
      best_gain = gain;
    }
    if (best == nullptr) return {.fresh = random_candidate(rng)};
    return {.fresh = *best};
  }

  static std::vector<Scored> thinned(std::vector<Scored> scores) {
    if (scores.size() <= kMostPoints) return scores;
    std::vector<Scored> out = scores;
    std::stable_sort(out.begin(), out.end(),
                     [](const Scored& a, const Scored& b) { return a.value < b.value; });
    const size_t half = kMostPoints / 2;
    std::stable_sort(out.begin() + half, out.end(),
                     [](const Scored& a, const Scored& b) { return a.trial > b.trial; });
    out.resize(kMostPoints);
    return out;
  }

  // Whenever what was told has grown by a quarter.
  void refit(const std::vector<Point>& points, const std::vector<double>& values, size_t now) {
    if (now < fitted_ + std::max<size_t>(1, fitted_ / 4)) return;
    fitted_ = now;
    std::vector<Point> some;
    std::vector<double> of;
    const size_t n = points.size(), keep = std::min(n, kMostFitPoints);
    for (size_t i = 0; i < keep; ++i) {
      some.push_back(points[i * n / keep]);
      of.push_back(values[i * n / keep]);
    }
    scales_ = fit_scales(some, of, options().ard, scales_);
  }

  nlohmann::json save_model() const override {
    return {{"fitted", fitted_},
            {"lengths", scales_.lengths},
            {"signal", scales_.signal},
            {"noise", scales_.noise}};
  }
  void restore_model(const nlohmann::json& model) override {
    const JsonFields fields(model, "saved model");
    GaussianProcess::Scales scales;
    for (const nlohmann::json& v : fields.array("lengths"))
      scales.lengths.push_back(fields.as_number(v, "lengths", 1e-12, 1e12));
    if (scales.lengths.size() != space().num_features())
      fail(ErrorCode::data_loss, "saved model: {} lengths, {} wanted", scales.lengths.size(),
           space().num_features());
    scales.signal = fields.number("signal", 1e-12, 1e12);
    scales.noise = fields.number("noise", 1e-12, 1e12);
    fitted_ = static_cast<size_t>(fields.integer("fitted", 0, INT64_MAX));
    scales_ = std::move(scales);
  }

  GaussianProcess::Scales scales_;
  size_t fitted_ = 0;  // tells that the scales were fitted to
};

}  // namespace

std::unique_ptr<Searcher> make_gp(const Space& space, const SearcherOptions& options) {
  return std::make_unique<GpSearcher>("gp", space, options);
}

}  // namespace ductile::tune
