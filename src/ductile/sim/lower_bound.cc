#include "ductile/sim/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ductile/base/error.h"
#include "ductile/base/interruption.h"
#include "ductile/noise/noise_scale.h"
#include "ductile/sched/goodput.h"

namespace ductile::sim {

namespace {

constexpr double kGridStep = 4;    // seconds of the time grid
constexpr double kBucket = 600;    // seconds with one price
constexpr int kBatches = 512;      // tried of each number of devices, all where there are fewer
constexpr double kWorkStep = 1.1;  // lengths of jobs are taken to the nearest power of this

struct Way {
  int32_t type = 0;
  int32_t devices = 0;
  std::vector<double> seconds;  // of each piece of the job's work; inf: not possible
};

// An application cut into pieces of its progress, and what each takes at best.
struct Course {
  size_t pieces = 1;
  std::vector<Way> ways;
  double pause = 30;
};

std::vector<int32_t> packed(int32_t devices, int32_t per_node) {
  std::vector<int32_t> counts(static_cast<size_t>(devices / per_node), per_node);
  if (devices % per_node) counts.push_back(devices % per_node);
  return counts;
}

// The highest progress a second at any time in epochs [from, to), over batch sizes: every whole one
// that `devices` can share evenly, or every so many-th, the last always.
double best_rate(const Application& app, const Profile& profile, double slowdown,
                 const std::vector<int32_t>& counts, int32_t devices, int32_t from, int32_t to) {
  double best = 0;
  int32_t most_local = std::max(profile.max_local(counts), profile.max_local());
  if (app.most_local > 0) most_local = std::min(most_local, app.most_local);
  const int32_t least = std::max(app.init_batch, devices * profile.min_local());
  const int32_t step = std::max(1, (app.max_batch - least) / (kBatches * devices)) * devices;
  const int32_t first = (least + devices - 1) / devices * devices;
  for (int32_t whole = first, last = 0; last == 0 && first <= app.max_batch; whole += step) {
    if (whole + step > app.max_batch) whole = app.max_batch / devices * devices, last = 1;
    const int32_t each = whole / devices;
    const int32_t parts = (each + most_local - 1) / most_local;
    const int32_t local = (each + parts - 1) / parts;
    const int32_t batch = local * parts * devices;
    const StepTime time = profile.at(counts, local);
    const double seconds = time.step + (parts - 1) * (time.step - time.sync);
    for (int32_t e = from; e < to; ++e)
      best = std::max(
          best,
          noise::gain(app.noise(batch, e), static_cast<double>(batch) / app.init_batch) / seconds);
  }
  return best / slowdown;
}

// Ways that take no piece of the work faster than one with fewer devices are of no use.
void drop_dominated(std::vector<Way>& ways, int32_t type) {
  std::vector<Way> kept;
  for (Way& way : ways) {
    const bool useless = std::any_of(kept.begin(), kept.end(), [&](const Way& other) {
      return other.type == type && way.type == type &&
             std::equal(other.seconds.begin(), other.seconds.end(), way.seconds.begin(),
                        [](double a, double b) { return a <= b; });
    });
    if (!useless) kept.push_back(std::move(way));
  }
  ways = std::move(kept);
}

Course make_course(const Application& app, const Catalog& catalog, const sched::Cluster& cluster) {
  Course course;
  course.pause = pause_of(app, catalog.rules);
  const double slowdown = catalog.rules.own_pause ? app.slowdown : 1;
  for (const size_t pieces : {size_t{1}, size_t{0}}) {
    // First in one piece, to learn how long it takes alone; then in pieces of some 100 s.
    if (pieces == 0) {
      double alone = HUGE_VAL;
      for (const Way& w : course.ways) alone = std::min(alone, w.seconds[0]);
      course.pieces = static_cast<size_t>(
          std::clamp<double>(alone / 100, 2, std::min<double>(20, std::max(1, app.epochs))));
    }
    course.ways.clear();
    for (int32_t t = 0; t < cluster.type_count(); ++t) {
      const int32_t per_node = cluster.devices_per_node(t);
      const auto all = static_cast<int32_t>(cluster.usable_devices(t));
      const int32_t most = app.most_devices > 0 ? std::min(all, app.most_devices) : all;
      for (int32_t k = 1; k <= most; ++k) {
        Way way{t, k, {}};
        const Profile& profile = app.profile(cluster.types[static_cast<size_t>(t)]);
        for (size_t p = 0; p < course.pieces; ++p) {
          const auto epochs = static_cast<size_t>(app.epochs);
          const auto from = static_cast<int32_t>(p * epochs / course.pieces);
          const auto to = static_cast<int32_t>((p + 1) * epochs / course.pieces);
          const double work = app.progress_at(to) - (from > 0 ? app.progress_at(from) : 0);
          const double rate = best_rate(app, profile, slowdown, packed(k, per_node), k, from,
                                        std::max(to, from + 1));
          way.seconds.push_back(rate > 0 ? work / rate : HUGE_VAL);
        }
        course.ways.push_back(std::move(way));
      }
      drop_dominated(course.ways, t);
    }
  }
  return course;
}

// An application and the power of kWorkStep nearest to a job's length.
using Kind = std::pair<std::string, int>;

Kind kind_of(const Submission& job) {
  return {job.application, static_cast<int>(std::lround(std::log(job.work) / std::log(kWorkStep)))};
}

class Dual {
 public:
  Dual(const Workload& workload, const Catalog& catalog, const sched::Cluster& cluster)
      : workload_(workload) {
    DUCTILE_CHECK(!workload.jobs.empty(), "a workload without jobs has no mean");
    double least_work = 0;
    for (const Submission& s : workload.jobs) {
      const Kind kind = kind_of(s);
      if (!courses_.count({s.application, 0}))
        courses_[{s.application, 0}] = make_course(catalog.find(s.application), catalog, cluster);
      if (!courses_.count(kind)) {
        Course scaled = courses_[{s.application, 0}];
        for (Way& way : scaled.ways)
          for (double& piece : way.seconds) piece *= std::pow(kWorkStep, kind.second);
        courses_[kind] = std::move(scaled);
      }
      used_.insert(kind);
      const Course& c = courses_[kind];
      double least = HUGE_VAL;
      for (const Way& w : c.ways) {
        double sum = 0;
        for (double x : w.seconds) sum += x;
        least = std::min(least, sum * w.devices);
      }
      least_work += least;
    }
    double devices = 0;
    for (int32_t t = 0; t < cluster.type_count(); ++t) {
      capacity_.push_back(static_cast<double>(cluster.usable_devices(t)));
      devices += capacity_.back();
    }
    const double horizon = workload.jobs.back().time + 3 * least_work / devices + 3600;
    buckets_ = static_cast<size_t>(horizon / kBucket) + 1;
    steps_ = static_cast<size_t>(static_cast<double>(buckets_) * kBucket / kGridStep);
  }

  size_t buckets() const { return buckets_; }
  size_t types() const { return capacity_.size(); }

  // The bound at these prices (price[type][bucket]); `asked` becomes the mean number of devices the
  // jobs would use.
  double value(const std::vector<std::vector<double>>& price,
               std::vector<std::vector<double>>& asked) {
    // Price of a device from the start to each grid point.
    std::vector<std::vector<double>> paid(types(), std::vector<double>(steps_ + 1));
    double total = 0;
    const auto per_bucket = static_cast<size_t>(kBucket / kGridStep);
    for (size_t t = 0; t < types(); ++t)
      for (size_t i = 0; i < steps_; ++i) {
        paid[t][i + 1] = paid[t][i] + kGridStep * price[t][i / per_bucket];
        total -= capacity_[t] * kGridStep * price[t][i / per_bucket];
      }
    const auto paid_at = [&](size_t t, double s) {
      const double x = s / kGridStep;
      if (x >= static_cast<double>(steps_)) return paid[t].back();
      const auto i = static_cast<size_t>(x);
      return paid[t][i] + (x - static_cast<double>(i)) * (paid[t][i + 1] - paid[t][i]);
    };
    for (auto& a : asked) std::fill(a.begin(), a.end(), 0.0);
    for (const Kind& kind : used_) {
      ask_whether_wanted();
      const Course& course = courses_.at(kind);
      // left[p][i]: least cost of pieces p.. from grid time i; choice: how. -1: wait a step.
      std::vector<std::vector<double>> left(course.pieces + 1,
                                            std::vector<double>(steps_ + 1, 0.0));
      std::vector<std::vector<int16_t>> how(course.pieces, std::vector<int16_t>(steps_ + 1, -1));
      for (size_t p = course.pieces; p-- > 0;) {
        for (size_t i = steps_ + 1; i-- > 0;) {
          double best = i < steps_ ? kGridStep + left[p][i + 1] : HUGE_VAL;
          int16_t with = -1;
          const double now = static_cast<double>(i) * kGridStep;
          for (size_t w = 0; w < course.ways.size(); ++w) {
            const Way& way = course.ways[w];
            const double s = way.seconds[p];
            if (s >= best) continue;
            const auto t = static_cast<size_t>(way.type);
            const double end = now + s;
            const double x = std::min(end / kGridStep, static_cast<double>(steps_));
            const auto k = static_cast<size_t>(x);
            // Between grid points: it could also have waited from the one before.
            const double rest =
                std::max(0.0, left[p + 1][k] - (x - static_cast<double>(k)) * kGridStep *
                                                   (p + 1 < course.pieces));
            const double cost = s + way.devices * (paid_at(t, end) - paid[t][i]) + rest;
            if (cost < best) best = cost, with = static_cast<int16_t>(w);
          }
          left[p][i] = best;
          how[p][i] = with;
        }
      }
      for (const Submission& job : workload_.jobs) {
        if (kind_of(job) != kind) continue;
        double now = job.time + course.pause;
        const auto i = static_cast<size_t>(std::min(now / kGridStep, static_cast<double>(steps_)));
        total +=
            course.pause + std::max(0.0, left[0][i] - (now - static_cast<double>(i) * kGridStep));
        for (size_t p = 0; p < course.pieces;) {
          const auto at =
              static_cast<size_t>(std::min(now / kGridStep, static_cast<double>(steps_)));
          if (how[p][at] < 0) {
            now += kGridStep;
            continue;
          }
          const Way& way = course.ways[static_cast<size_t>(how[p][at])];
          use(asked[static_cast<size_t>(way.type)], now, now + way.seconds[p], way.devices);
          now += way.seconds[p];
          ++p;
        }
      }
    }
    return total / static_cast<double>(workload_.jobs.size());
  }

  double capacity(size_t type) const { return capacity_[type]; }

 private:
  static void use(std::vector<double>& asked, double from, double to, int32_t devices) {
    for (auto b = static_cast<size_t>(from / kBucket); b < asked.size(); ++b) {
      const double start = std::max(from, static_cast<double>(b) * kBucket);
      const double end = std::min(to, static_cast<double>(b + 1) * kBucket);
      if (end <= start) break;
      asked[b] += devices * (end - start) / kBucket;
    }
  }

  const Workload& workload_;
  std::map<Kind, Course> courses_;
  std::set<Kind> used_;
  std::vector<double> capacity_;
  size_t buckets_ = 0, steps_ = 0;
};

}  // namespace

LowerBound lower_bound(const Workload& workload, const Catalog& catalog,
                       const sched::Cluster& cluster, int rounds) {
  for (const Submission& s : workload.jobs) {
    const Application& app = catalog.find(s.application);
    if (s.service || app.micro_batches > 0 || !app.plans.empty())
      fail(ErrorCode::invalid_argument,
           "least mean JCT: '{}' is a service, a pipeline or a job with plans; only other jobs can "
           "be estimated",
           s.name);
  }
  Dual dual(workload, catalog, cluster);
  std::vector<std::vector<double>> price(dual.types(), std::vector<double>(dual.buckets(), 0.0));
  std::vector<std::vector<double>> asked = price;
  LowerBound result;
  result.solo_mean_jct = result.mean_jct = dual.value(price, asked);
  for (auto& p : price) std::fill(p.begin(), p.end(), 0.02);
  for (int r = 0; r < rounds; ++r) {
    const double value = dual.value(price, asked);
    if (value > result.mean_jct) {
      result.mean_jct = value;
      result.price = price[0];
    }
    // Dearer where more is asked for than there is, cheaper where less; ever smaller steps.
    const double step = 0.8 / (1 + 0.12 * r);
    for (size_t t = 0; t < dual.types(); ++t)
      for (size_t b = 0; b < dual.buckets(); ++b)
        price[t][b] = std::clamp(
            price[t][b] *
                std::exp(step * std::clamp(asked[t][b] / dual.capacity(t) - 1, -1.0, 1.5)),
            1e-6, 10.0);
    ++result.rounds;
  }
  return result;
}

}  // namespace ductile::sim
