#include "ductile/optim/param_layout.h"

#include <algorithm>
#include <utility>

#include "ductile/base/error.h"

namespace ductile::optim {
namespace {

bool excluded(std::span<const std::string> rules, std::string_view name, bool is_norm) {
  return std::any_of(rules.begin(), rules.end(), [&](const std::string& rule) {
    if (rule == "bias") return name.ends_with("bias");
    if (rule == "norm") return is_norm;
    return name.find(rule) != std::string_view::npos;
  });
}

}  // namespace

ParamLayout::ParamLayout(std::vector<std::string> no_decay) : no_decay_(std::move(no_decay)) {
  if (std::find(no_decay_.begin(), no_decay_.end(), "") != no_decay_.end()) {
    fail(ErrorCode::invalid_argument,
         "optimizer.no_decay holds an empty text, which is a part of every name; remove it");
  }
}

ParamLayout::ParamLayout(const spec::OptimizerOptions& options) : ParamLayout(options.no_decay) {
  if (options.name == "muon") whole_but_ = options.muon.exclude;
}

int64_t ParamLayout::add(std::string_view name, const Shape& shape, bool is_norm) {
  int64_t size = 1;
  for (const int64_t n : shape) {
    if (n < 0) {
      fail(ErrorCode::invalid_argument,
           "parameter '{}' has a dimension of {}; it must be 0 or more", name, n);
    }
    size *= n;
  }
  for (const Segment& s : segments_) {
    if (s.name == name) fail(ErrorCode::conflict, "there are two parameters named '{}'", name);
  }
  Segment segment{std::string(name), total_size_, size, shape.size() < 2 ? 0 : shape[0],
                  !excluded(no_decay_, name, is_norm)};
  segment.whole = whole_but_ && segment.rows > 0 && size > 0 &&
                  std::ranges::none_of(*whole_but_, [&](const std::string& part) {
                    return name.find(part) != std::string_view::npos;
                  });
  const int64_t used = total_size_ % kBlockFloats;
  if (segment.whole && used + size > kBlockFloats && used > 0) {
    segment.offset += kBlockFloats - used;
  }
  total_size_ =
      segment.offset + (size + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  num_parameters_ += size;
  segments_.push_back(std::move(segment));
  return segments_.back().offset;
}

const Segment& ParamLayout::segment(std::string_view name) const {
  for (const Segment& s : segments_) {
    if (s.name == name) return s;
  }
  fail(ErrorCode::not_found, "no parameter is named '{}'", name);
}

}  // namespace ductile::optim
