#include <algorithm>

#include "ductile/sched/measurements.h"
#include "ductile/sched/saved_state_impl.h"

namespace ductile::sched {

using nlohmann::json;

namespace {

// Bounds of the logarithm of a measured over a fitted time, far beyond what samples can give.
constexpr double kMostLogarithm = 1000;

}  // namespace

int32_t count_from(const JsonFields& f, const json& v, const char* key) {
  return static_cast<int32_t>(f.as_integer(v, key, 1, kMostCount));
}

std::vector<double> numbers_from(const JsonFields& f, const json& v, const char* key, double low,
                                 double high, size_t count, size_t most) {
  if (!v.is_array() || v.size() > most || (count != SIZE_MAX && v.size() != count))
    f.wrong(key, "a list of as many numbers as was saved", v);
  std::vector<double> out;
  for (const json& item : v) out.push_back(f.as_number(item, key, low, high));
  return out;
}

std::vector<JobId> jobs_from(const JsonFields& f, const char* key) {
  std::vector<JobId> out;
  for (const json& item : f.array(key)) out.push_back(f.as_integer(item, key, 0, INT64_MAX));
  std::vector<JobId> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  if (out.size() > kMostSavedJobs ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    f.wrong(key, "a list of different jobs", f.at(key));
  return out;
}

json to_json(const PerfParams& p) {
  return {p.alpha_c, p.beta_c, p.alpha_n, p.beta_n, p.alpha_r, p.beta_r, p.gamma};
}

PerfParams perf_from(const JsonFields& f) {
  const json& list = f.array("perf");
  if (list.size() != 7) f.wrong("perf", "a list of 7 numbers", list);
  double v[7];
  for (size_t i = 0; i < 7; ++i) v[i] = f.as_number(list[i], "perf", 0, 1e30);
  return {v[0], v[1], v[2], v[3], v[4], v[5], f.as_number(list[6], "perf", 1, 10)};
}

json to_json(std::span<const StepModel::Shape> shapes) {
  json out = json::array();
  for (const StepModel::Shape& shape : shapes) {
    json points = json::array();
    for (const StepModel::Point& p : shape.points) points.push_back({p.local, p.gradient, p.step});
    out.push_back({shape.nodes, shape.replicas, std::move(points)});
  }
  return out;
}

std::vector<StepModel::Shape> shapes_from(const JsonFields& f) {
  std::vector<StepModel::Shape> shapes;
  size_t points = 0;
  for (const json& item : f.array("shapes")) {
    if (!item.is_array() || item.size() != 3 || !item[2].is_array() || item[2].empty())
      f.wrong("shapes", "a list of [nodes, replicas, points]", item);
    StepModel::Shape shape{count_from(f, item[0], "shapes"), count_from(f, item[1], "shapes"), {}};
    for (const json& point : item[2]) {
      if (!point.is_array() || point.size() != 3 || ++points > Measurements::kMostSamples)
        f.wrong("shapes", "a list of at most 1024 points of 3 numbers", point);
      double v[3];
      for (size_t i = 0; i < 3; ++i)
        v[i] = f.as_number(point[i], "shapes", -kMostLogarithm, kMostLogarithm);
      if (!shape.points.empty() && !(v[0] > shape.points.back().local))
        f.wrong("shapes", "a list of rising points", point);
      shape.points.push_back({v[0], v[1], v[2]});
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

json to_json(const GradientNoise& noise) { return {noise.sqr, noise.var}; }

GradientNoise noise_from(const JsonFields& f, const json& v, const char* key) {
  const std::vector<double> pair = numbers_from(f, v, key, 0, kMostSaved, 2);
  return {pair[0], pair[1]};
}

json to_json(const TypeModel& m) {
  json out = {
      {"allowed", m.allowed},
      {"fitted", m.fitted},
      {"perf", to_json(m.perf)},
      {"counts", {m.max_profiled, m.max_useful, m.unit, m.unit_batch}},
      {"limits", {m.limits.init_batch, m.limits.max_batch, m.limits.min_local, m.limits.max_local}},
      {"rates", {m.unit_rate, m.requested_rate}}};
  if (m.steps) out["shapes"] = to_json(m.steps->shapes());
  return out;
}

TypeModel type_model_from(const json& v, const std::string& where) {
  const JsonFields f(v, where);
  f.only({"allowed", "fitted", "perf", "counts", "limits", "rates", "shapes"});
  TypeModel m;
  m.allowed = f.boolean("allowed");
  m.fitted = f.boolean("fitted");
  // One that was never fitted has a gamma of 1 and zeros: also within the bounds.
  m.perf = perf_from(f);
  const auto whole = [&](const char* key, size_t at, int64_t low) {
    const json& list = f.array(key);
    if (list.size() != 4) f.wrong(key, "a list of 4 whole numbers", list);
    return static_cast<int32_t>(f.as_integer(list[at], key, low, kMostCount));
  };
  m.max_profiled = whole("counts", 0, 0);
  m.max_useful = whole("counts", 1, 0);
  m.unit = whole("counts", 2, 1);
  m.unit_batch = whole("counts", 3, 0);
  m.limits = {whole("limits", 0, 1), whole("limits", 1, 1), whole("limits", 2, 1),
              whole("limits", 3, 1)};
  if (m.limits.min_local > m.limits.max_local || m.limits.init_batch > m.limits.max_batch)
    f.wrong("limits", "limits that allow something", f.at("limits"));
  const std::vector<double> rates = numbers_from(f, f.at("rates"), "rates", 0, kMostSaved, 2);
  m.unit_rate = rates[0];
  m.requested_rate = rates[1];
  if (f.has("shapes"))
    m.steps = std::make_shared<StepModel>(StepModel::of_shapes(m.perf, shapes_from(f)));
  return m;
}

}  // namespace ductile::sched
