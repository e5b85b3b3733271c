#include "ductile/tune/curve_model.h"

#include <cmath>
#include <numbers>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"

namespace ductile::tune {
namespace {

using Json = nlohmann::json;

struct Number {
  const char* name;
  double CurveScales::*member;
};
constexpr Number kNumbers[] = {
    {"time", &CurveScales::time},           {"mean", &CurveScales::mean},
    {"level", &CurveScales::level},         {"shape", &CurveScales::shape},
    {"own_level", &CurveScales::own_level}, {"own_shape", &CurveScales::own_shape},
    {"noise", &CurveScales::noise}};
constexpr size_t kFirstLength = std::size(kNumbers);

}  // namespace

CurveScales usual_curve_scales(size_t num_features) {
  CurveScales out;
  out.lengths = usual_scales(num_features).lengths;
  return out;
}

Json to_json(const CurveScales& scales) {
  Json out = {{"lengths", scales.lengths}};
  for (const auto& [name, member] : kNumbers) out[name] = scales.*member;
  return out;
}

CurveScales curve_scales_from_json(const Json& json, size_t num_features) {
  const JsonFields fields(json, "saved scales");
  CurveScales out;
  for (const auto& [name, member] : kNumbers) out.*member = fields.number(name, 1e-30, 1e30);
  for (const Json& v : fields.array("lengths"))
    out.lengths.push_back(fields.as_number(v, "lengths", 1e-30, 1e30));
  if (out.lengths.size() != num_features)
    fail(ErrorCode::invalid_argument, "saved scales: {} lengths, {} wanted", out.lengths.size(),
         num_features);
  return out;
}

CurveModel::CurveModel(CurveScales scales) : scales_(std::move(scales)) {
  for (const double l : scales_.lengths) per_length_.push_back(1 / l);
}

double CurveModel::covariance(const Place& a, const Place& b) const {
  const double m = a.when == b.when ? 1 : matern52(std::abs(a.when - b.when) / scales_.time);
  const bool is_same = a.trial >= 0 && a.trial == b.trial;
  double squares = 0;
  for (size_t d = 0; d < per_length_.size(); ++d) {
    const double r = (a.features[d] - b.features[d]) * per_length_[d];
    squares += r * r;
  }
  const double k = is_same ? 1 : matern52(std::sqrt(squares));
  double sum = scales_.mean * m + k * (scales_.level + scales_.shape * m);
  if (is_same) sum += scales_.own_level + scales_.own_shape * m;
  return sum;
}

void CurveModel::append(Place place, double value) {
  std::vector<double> row;
  row.reserve(places_.size());
  for (const Place& p : places_) row.push_back(covariance(p, place));
  const CurveScales& s = scales_;
  factor_.append(row, s.mean + s.level + s.shape + s.own_level + s.own_shape + s.noise);
  places_.push_back(std::move(place));
  values_.push_back(value);
  factor_.extend_forward(std::span(values_).subspan(values_.size() - 1), solved_);
}

Normal CurveModel::forecast(Target& target) const {
  std::vector<double> k;
  for (size_t i = target.solved.size(); i < places_.size(); ++i)
    k.push_back(covariance(places_[i], target.place));
  factor_.extend_forward(k, target.solved);
  const double* v = target.solved.data();
  const CurveScales& s = scales_;
  const double prior = s.mean + s.level + s.shape + s.own_level + s.own_shape;
  return {dot(v, solved_.data(), places_.size()),
          std::max(1e-12 * prior, prior - dot(v, v, places_.size()))};
}

double explained_share(const CurveScales& s, double when) {
  const double level = s.level + s.own_level, shape = s.shape + s.own_shape;
  const double both = level + shape * matern52(std::abs(when) / s.time);
  return both * both / ((level + shape) * (level + shape + s.noise));
}

double CurveModel::log_likelihood() const {
  const double n = static_cast<double>(places_.size());
  return -0.5 * (dot(solved_.data(), solved_.data(), solved_.size()) + factor_.log_determinant() +
                 n * std::log(2 * std::numbers::pi));
}

CurveScales fit_curve_scales(const std::vector<CurveModel::Place>& places,
                             const std::vector<double>& values, bool ard,
                             const CurveScales& start) {
  const size_t dims = start.lengths.size();
  const CurveScales usual = usual_curve_scales(dims);
  const size_t num_lengths = ard ? dims : std::min<size_t>(dims, 1);
  const auto scales_at = [&](const std::vector<double>& x) {
    CurveScales s;
    for (size_t i = 0; i < kFirstLength; ++i) s.*kNumbers[i].member = std::exp(x[i]);
    for (size_t d = 0; d < dims; ++d)
      s.lengths.push_back(std::exp(x[kFirstLength + (ard ? d : 0)]));
    return s;
  };
  const auto prior = [](double x, double mean, double deviation) {
    const double z = (x - mean) / deviation;
    return -0.5 * z * z;
  };
  const auto value = [&](const std::vector<double>& x) {
    CurveModel model(scales_at(x));
    for (size_t i = 0; i < places.size(); ++i) model.append(places[i], values[i]);
    double sum = model.log_likelihood();
    for (size_t i = 0; i < kFirstLength; ++i)
      sum += prior(x[i], std::log(usual.*kNumbers[i].member), i == 0 ? 0.5 : 1.2);
    for (size_t d = 0; d < num_lengths; ++d)
      sum += prior(x[kFirstLength + d], std::log(usual.lengths[d]), 0.8);
    return sum;
  };
  std::vector<double> x;
  for (const auto& [name, member] : kNumbers) x.push_back(std::log(start.*member));
  for (size_t d = 0; d < num_lengths; ++d) x.push_back(std::log(start.lengths[d]));
  return scales_at(climb(value, x, 0.8, 4 * static_cast<int>(x.size())));
}

}  // namespace ductile::tune
