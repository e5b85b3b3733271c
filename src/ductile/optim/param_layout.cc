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

int64_t ParamLayout::add(std::string_view name, int64_t size, int ndim, bool is_norm) {
  if (size < 0) {
    fail(ErrorCode::invalid_argument, "parameter '{}' has size {}; it must be 0 or more", name,
         size);
  }
  for (const Segment& s : segments_) {
    if (s.name == name) fail(ErrorCode::conflict, "there are two parameters named '{}'", name);
  }
  const int64_t offset = total_size_;
  segments_.push_back({std::string(name), offset, size, ndim, !excluded(no_decay_, name, is_norm)});
  total_size_ += (size + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  num_parameters_ += size;
  return offset;
}

const Segment& ParamLayout::segment(std::string_view name) const {
  for (const Segment& s : segments_) {
    if (s.name == name) return s;
  }
  fail(ErrorCode::not_found, "no parameter is named '{}'", name);
}

}  // namespace ductile::optim
