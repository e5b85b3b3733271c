#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

// What a tuner may choose: named dimensions, and settings, which are points in them. A space is a
// value; nothing here is shared or changes.
namespace ductile::tune {

enum class Kind { real, integer, choice };
enum class Scale { linear, log, log_to_one };

// One option. A real or integer one goes from `low` to `high`, both included; low == high is
// allowed and leaves nothing to choose. On a log scale equal factors are equal distances, and low
// is above 0. On the scale log_to_one that holds for 1 - value, as it should for a momentum (0.9,
// 0.99, 0.999), and high is below 1.
struct Dimension {
  std::string name;
  Kind kind = Kind::real;
  Scale scale = Scale::linear;
  double low = 0, high = 1;
  std::vector<std::string> choices = {};  // each as JSON writes it: "\"adam\"", "64", "true"
};

// One value for each dimension, in their order: the number, or the index of a choice.
using Setting = std::vector<double>;

// A point of the unit cube, one coordinate for each dimension.
using Point = std::vector<double>;

class Space {
 public:
  // Throws invalid_argument, naming the dimension, for one that has no name or that of another, no
  // choices or the same one twice, or bounds that are not finite, in the wrong order, not whole
  // (integer) or not above 0 (log).
  explicit Space(std::vector<Dimension> dimensions);

  // The same space, but only these settings may be asked for, each as often as it is listed. Throws
  // invalid_argument for none at all or one that is not in the space.
  Space only(std::vector<Setting> settings) const;

  // From text: a table for each dimension,
  //   [learning_rate]            # real unless `kind` says otherwise
  //   low = 1e-5
  //   high = 1.0
  //   scale = "log"              # or "log_to_one", or "linear", which is the default
  //   [layers]
  //   kind = "integer"
  //   low = 1
  //   high = 8
  //   [batch]
  //   choices = [4, 16, 64]      # text, numbers, or true and false
  // in alphabetical order of the names. Throws invalid_argument, which names `source`, dimension
  // and field, for anything else.
  static Space from_toml(std::string_view text, std::string_view source);
  static Space from_json(const nlohmann::json& value, std::string_view source);
  nlohmann::json to_json() const;

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  size_t size() const { return dimensions_.size(); }
  // The listed settings; none where every setting of the space is allowed.
  const std::vector<Setting>& listed() const { return listed_; }
  // How many different settings there are; 0 where a dimension is real, or for more than 2^53.
  int64_t count() const;

  bool contains(const Setting& setting) const;
  // Every point of the cube [0, 1]^n gives a setting; coordinates outside are moved to the border.
  // Each whole number, and each choice, has an equal part of its coordinate (on a log scale a part
  // in proportion to its factor).
  Setting at(const Point& point) const;
  // at(to_point(s)) is s, a real value to within rounding. A dimension with one value lies at 0.5.
  Point to_point(const Setting& setting) const;

  // Coordinates for models of distance: as to_point(), but a choice of k values is k coordinates,
  // of which one is 1, and dimensions with one value are left out.
  Point features(const Setting& setting) const;
  size_t num_features() const { return num_features_; }

  // {"learning_rate": 0.1, "batch": 64}, as the options of a job are written.
  nlohmann::json values(const Setting& setting) const;
  // The setting of such an object, which must name every dimension and nothing else.
  Setting setting_from(const nlohmann::json& values, std::string_view source) const;

 private:
  std::vector<Dimension> dimensions_;
  std::vector<Setting> listed_;
  size_t num_features_ = 0;
};

}  // namespace ductile::tune
