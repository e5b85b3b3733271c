#include "ductile/tune/space.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <set>
#include <sstream>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/base/text.h"
#include "ductile/base/toml.h"

namespace ductile::tune {
namespace {

using Json = nlohmann::json;

constexpr double kMostWhole = 9007199254740992.0;  // 2^53: whole numbers are exact up to it
constexpr std::pair<Kind, std::string_view> kKinds[] = {
    {Kind::real, "real"}, {Kind::integer, "integer"}, {Kind::choice, "choice"}};
constexpr std::pair<Scale, std::string_view> kScales[] = {
    {Scale::linear, "linear"}, {Scale::log, "log"}, {Scale::log_to_one, "log_to_one"}};

double values_of(const Dimension& d) {
  return d.kind == Kind::choice ? static_cast<double>(d.choices.size()) : d.high - d.low + 1;
}

bool has_one_value(const Dimension& d) {
  return d.kind == Kind::choice ? d.choices.size() == 1 : d.low == d.high;
}

double scaled(const Dimension& d, double value) {
  return d.scale == Scale::log          ? std::log(value)
         : d.scale == Scale::log_to_one ? -std::log1p(-value)
                                        : value;
}

double unscaled(const Dimension& d, double x) {
  return d.scale == Scale::log ? std::exp(x) : d.scale == Scale::log_to_one ? -std::expm1(-x) : x;
}

// The ends of the coordinate's range: whole numbers get half a step on either side.
struct Range {
  double low, high;
};
Range range_of(const Dimension& d) {
  const double margin = d.kind == Kind::integer ? 0.5 : 0;
  return {scaled(d, d.low - margin), scaled(d, d.high + margin)};
}

void check(const Dimension& d) {
  const auto refuse = [&](const std::string& what) {
    fail(ErrorCode::invalid_argument, "dimension \"{}\": {}", d.name, what);
  };
  if (d.name.empty()) fail(ErrorCode::invalid_argument, "a dimension of the space has no name");
  if (d.kind == Kind::choice) {
    if (d.choices.empty()) refuse("it has no choices; give at least one");
    if (std::set<std::string>(d.choices.begin(), d.choices.end()).size() != d.choices.size())
      refuse("the same choice is there twice");
    return;
  }
  if (!std::isfinite(d.low) || !std::isfinite(d.high))
    refuse(fmt::format("bounds {} and {} must be finite", d.low, d.high));
  if (d.low > d.high) refuse(fmt::format("low is {}, which is above high, {}", d.low, d.high));
  if (!std::isfinite(d.high - d.low)) refuse("the distance of its bounds is not finite");
  if (d.scale == Scale::log && !(d.low > 0))
    refuse(fmt::format("low is {}; on a log scale it must be above 0", d.low));
  if (d.scale == Scale::log_to_one && !(d.high < 1))
    refuse(fmt::format("high is {}; on the scale log_to_one it must be below 1", d.high));
  if (d.kind == Kind::integer) {
    if (d.scale == Scale::log_to_one) refuse("whole numbers have no scale log_to_one");
    if (d.low != std::floor(d.low) || d.high != std::floor(d.high))
      refuse(fmt::format("bounds {} and {} must be whole numbers", d.low, d.high));
    if (std::abs(d.low) > kMostWhole || std::abs(d.high) > kMostWhole)
      refuse("bounds beyond 2^53 are not exact");
  }
}

bool is_value_of(const Dimension& d, double v) {
  if (d.kind == Kind::choice)
    return v >= 0 && v < static_cast<double>(d.choices.size()) && v == std::floor(v);
  return v >= d.low && v <= d.high && (d.kind == Kind::real || v == std::floor(v));
}

Dimension dimension_from(const Json& json, const std::string& name, const std::string& where) {
  const JsonFields fields(json, where);
  Dimension d;
  d.name = name;
  if (fields.has("choices")) {
    fields.only({"kind", "choices"});
    if (fields.has("kind") && fields.text("kind") != "choice")
      fail(ErrorCode::invalid_argument, "{}: it has choices, so its kind cannot be \"{}\"", where,
           JsonFields::shorten(fields.text("kind")));
    d.kind = Kind::choice;
    for (const Json& choice : fields.array("choices")) {
      if (!choice.is_string() && !choice.is_number() && !choice.is_boolean())
        fields.wrong("choices", "a list of texts, numbers, or true and false", choice);
      d.choices.push_back(dump_json_exactly(choice, where));
    }
    return d;
  }
  fields.only({"kind", "scale", "low", "high"});
  if (fields.has("kind")) fields.read("kind", d.kind, kKinds);
  if (d.kind == Kind::choice)
    fail(ErrorCode::invalid_argument, "{}: choices is missing: a list of what there is", where);
  if (fields.has("scale")) fields.read("scale", d.scale, kScales);
  constexpr double kMost = std::numeric_limits<double>::max();
  d.low = fields.number("low", -kMost, kMost);
  d.high = fields.number("high", -kMost, kMost);
  return d;
}

}  // namespace

Space::Space(std::vector<Dimension> dimensions) : dimensions_(std::move(dimensions)) {
  std::set<std::string_view> names;
  for (const Dimension& d : dimensions_) {
    check(d);
    if (!names.insert(d.name).second)
      fail(ErrorCode::invalid_argument, "dimension \"{}\" is there twice", d.name);
    if (!has_one_value(d)) num_features_ += d.kind == Kind::choice ? d.choices.size() : 1;
  }
  if (dimensions_.empty())
    fail(ErrorCode::invalid_argument, "the space has no dimension, so there is nothing to tune");
}

Space Space::only(std::vector<Setting> settings) const {
  if (settings.empty()) fail(ErrorCode::invalid_argument, "the list of allowed settings is empty");
  for (size_t i = 0; i < settings.size(); ++i) {
    if (!contains(settings[i]))
      fail(ErrorCode::invalid_argument, "allowed setting {} is not in the space", i);
  }
  Space out = *this;
  out.listed_ = std::move(settings);
  return out;
}

Space Space::from_toml(std::string_view text, std::string_view source) {
  std::ostringstream json;
  json << toml::json_formatter(parse_toml(text, source));
  return from_json(parse_json(json.str(), source, ErrorCode::invalid_argument), source);
}

Space Space::from_json(const Json& value, std::string_view source) {
  const JsonFields fields(value, std::string(source));
  std::vector<Dimension> dimensions;
  for (const auto& [name, json] : value.items())
    dimensions.push_back(
        dimension_from(json, name, fmt::format("{}: dimension \"{}\"", source, to_utf8(name))));
  try {
    return Space(std::move(dimensions));
  } catch (Error& e) {
    throw e.with_context(std::string(source));
  }
}

Json Space::to_json() const {
  Json out = Json::object();
  for (const Dimension& d : dimensions_) {
    Json& json = out[d.name];
    json["kind"] = kKinds[static_cast<size_t>(d.kind)].second;
    if (d.kind == Kind::choice) {
      json["choices"] = Json::array();
      for (const std::string& c : d.choices) json["choices"].push_back(parse_json(c));
    } else {
      json["scale"] = kScales[static_cast<size_t>(d.scale)].second;
      json["low"] = d.low;
      json["high"] = d.high;
    }
  }
  return out;
}

int64_t Space::count() const {
  if (!listed_.empty())
    return static_cast<int64_t>(std::set<Setting>(listed_.begin(), listed_.end()).size());
  double count = 1;
  for (const Dimension& d : dimensions_) {
    if (d.kind == Kind::real && !has_one_value(d)) return 0;
    count *= d.kind == Kind::real ? 1 : values_of(d);
  }
  return count > kMostWhole ? 0 : static_cast<int64_t>(count);
}

bool Space::contains(const Setting& setting) const {
  if (setting.size() != dimensions_.size()) return false;
  for (size_t i = 0; i < setting.size(); ++i)
    if (!is_value_of(dimensions_[i], setting[i])) return false;
  return true;
}

Setting Space::at(const Point& point) const {
  DUCTILE_CHECK(point.size() == dimensions_.size(), "{} coordinates", point.size());
  Setting out(point.size());
  for (size_t i = 0; i < point.size(); ++i) {
    const Dimension& d = dimensions_[i];
    const double u = point[i] > 0 ? std::min(point[i], 1.0) : 0;
    if (d.kind == Kind::choice) {
      const double k = static_cast<double>(d.choices.size());
      out[i] = std::min(std::floor(u * k), k - 1);
      continue;
    }
    const Range r = range_of(d);
    double v = unscaled(d, r.low + u * (r.high - r.low));
    if (d.kind == Kind::integer) v = std::round(v);
    out[i] = std::clamp(v, d.low, d.high);
  }
  return out;
}

Point Space::to_point(const Setting& setting) const {
  DUCTILE_CHECK(contains(setting), "the setting is not in the space");
  Point out(setting.size());
  for (size_t i = 0; i < setting.size(); ++i) {
    const Dimension& d = dimensions_[i];
    if (has_one_value(d)) {
      out[i] = 0.5;
    } else if (d.kind == Kind::choice) {
      out[i] = (setting[i] + 0.5) / static_cast<double>(d.choices.size());
    } else {
      const Range r = range_of(d);
      out[i] = std::clamp((scaled(d, setting[i]) - r.low) / (r.high - r.low), 0.0, 1.0);
    }
  }
  return out;
}

Point Space::features(const Setting& setting) const {
  const Point point = to_point(setting);
  Point out;
  out.reserve(num_features_);
  for (size_t i = 0; i < point.size(); ++i) {
    const Dimension& d = dimensions_[i];
    if (has_one_value(d)) continue;
    if (d.kind != Kind::choice) {
      out.push_back(point[i]);
      continue;
    }
    for (size_t k = 0; k < d.choices.size(); ++k)
      out.push_back(setting[i] == static_cast<double>(k) ? 1 : 0);
  }
  return out;
}

Json Space::values(const Setting& setting) const {
  DUCTILE_CHECK(contains(setting), "the setting is not in the space");
  Json out = Json::object();
  for (size_t i = 0; i < setting.size(); ++i) {
    const Dimension& d = dimensions_[i];
    if (d.kind == Kind::choice) {
      out[d.name] = parse_json(d.choices[static_cast<size_t>(setting[i])]);
    } else if (d.kind == Kind::integer) {
      out[d.name] = static_cast<int64_t>(setting[i]);
    } else {
      out[d.name] = setting[i];
    }
  }
  return out;
}

Setting Space::setting_from(const Json& values, std::string_view source) const {
  const JsonFields fields(values, std::string(source));
  std::vector<std::string> names;
  for (const Dimension& d : dimensions_) names.push_back(d.name);
  for (const auto& [key, value] : values.items())
    if (std::find(names.begin(), names.end(), key) == names.end())
      fail_unknown_name(fields.where() + ": dimension", to_utf8(key), names);
  Setting out;
  for (const Dimension& d : dimensions_) {
    const Json& value = fields.at(d.name.c_str());
    if (d.kind == Kind::choice) {
      const std::string text = dump_json(value);
      const auto found = std::find(d.choices.begin(), d.choices.end(), text);
      if (found == d.choices.end())
        fail_unknown_name(fields.where() + ": " + d.name + " =", JsonFields::shorten(text),
                          d.choices);
      out.push_back(static_cast<double>(found - d.choices.begin()));
    } else if (d.kind == Kind::integer) {
      out.push_back(static_cast<double>(fields.integer(d.name.c_str(), static_cast<int64_t>(d.low),
                                                       static_cast<int64_t>(d.high))));
    } else {
      out.push_back(fields.number(d.name.c_str(), d.low, d.high));
    }
  }
  return out;
}

}  // namespace ductile::tune
