#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/dtype.h"
#include "ductile/spec/job.h"
#include "ductile/spec/name_rules.h"

namespace ductile::optim {

// Where one named parameter lies in the flat fp32 buffers (weights, gradient, optimiser state).
struct Segment {
  std::string name;
  int64_t offset = 0;  // in floats, a multiple of kSegmentAlignment
  int64_t size = 0;    // in floats
  int64_t rows = 0;    // the first of two or more dimensions; 0 for vectors and scalars
  bool decay = true;   // weight decay and layer-wise scaling apply
  // The rule updates this parameter as a matrix of `rows` rows, so all of it is kept by one worker.
  bool whole = false;
  double lr_factor = 1;  // on the learning rate, not on the weight decay
  // It is updated in steps that begin before this many epochs are done, and left alone later.
  double trained_epochs = std::numeric_limits<double>::infinity();
};

// Segments begin on cache lines.
inline constexpr int64_t kSegmentAlignment = 16;
// The flat buffers are cut into blocks of this many floats (the last one is shorter). A segment
// that is to stay whole lies in one block, or begins with one: so a cut that spares it can be found
// before and after it, whatever lies beside it.
inline constexpr int64_t kBlockFloats = 16384;

// The order and place of all parameters of a model in its flat buffers: segments in the order they
// were added, gaps between them zero. A plain value; build it once, then only read it.
class ParamLayout {
 public:
  // `no_decay` are the rules of spec::OptimizerOptions::no_decay: "bias" matches a name that ends
  // in "bias", "norm" a parameter of a normalisation layer, anything else a part of the name.
  explicit ParamLayout(std::vector<std::string> no_decay = {"bias", "norm"});
  // Also obeys lr_factors and freeze, and keeps those matrices whole that the rule updates as such
  // (muon).
  explicit ParamLayout(const spec::OptimizerOptions& options);

  // Appends a parameter and returns its segment's offset; a frozen one is never updated. Throws
  // invalid_argument for a negative dimension and conflict for a name that the layout already has.
  int64_t add(std::string_view name, const Shape& shape, bool is_norm, bool frozen = false);

  const std::vector<Segment>& segments() const { return segments_; }
  // Length of each flat buffer in floats, padding included: a multiple of kSegmentAlignment.
  int64_t total_size() const { return total_size_; }
  int64_t num_parameters() const { return num_parameters_; }  // padding not counted
  // Throws not_found.
  const Segment& segment(std::string_view name) const;

 private:
  std::vector<std::string> no_decay_;
  std::vector<spec::NameRule> lr_factors_, freeze_;
  std::optional<std::vector<std::string>> whole_but_;  // parts of names; absent: nothing is whole
  std::vector<Segment> segments_;
  int64_t total_size_ = 0;
  int64_t num_parameters_ = 0;
};

// Throws invalid_argument where a rule by name (no_decay, lr_factors, freeze, and muon.exclude for
// muon) is part of no parameter's name, as after a slip of the pen, and so would do nothing. The
// names of the defaults, "bias" and "norm" are exempt: not every model has such parameters.
void require_named(const spec::OptimizerOptions& options, std::span<const std::string> parameters);

}  // namespace ductile::optim
