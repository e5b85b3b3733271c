#include "ductile/optim/param_layout.h"

#include <algorithm>
#include <utility>

#include "ductile/base/error.h"

namespace ductile::optim {
namespace {

const spec::NameRule* first_match(std::span<const spec::NameRule> rules, std::string_view name,
                                  bool is_norm) {
  const auto found = std::ranges::find_if(
      rules, [&](const spec::NameRule& rule) { return spec::matches(rule.name, name, is_norm); });
  return found == rules.end() ? nullptr : &*found;
}

}  // namespace

ParamLayout::ParamLayout(std::vector<std::string> no_decay) : no_decay_(std::move(no_decay)) {
  if (std::find(no_decay_.begin(), no_decay_.end(), "") != no_decay_.end()) {
    fail(ErrorCode::invalid_argument,
         "optimizer.no_decay holds an empty text, which is a part of every name; remove it");
  }
}

ParamLayout::ParamLayout(const spec::OptimizerOptions& options) : ParamLayout(options.no_decay) {
  lr_factors_ = spec::name_rules(options.lr_factors, "optimizer.lr_factors");
  freeze_ = spec::name_rules(options.freeze, "optimizer.freeze", 0);
  if (options.name == "muon") whole_but_ = options.muon.exclude;
}

int64_t ParamLayout::add(std::string_view name, const Shape& shape, bool is_norm, bool frozen) {
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
                  std::ranges::none_of(no_decay_, [&](const std::string& rule) {
                    return spec::matches(rule, name, is_norm);
                  })};
  if (const spec::NameRule* rule = first_match(lr_factors_, name, is_norm)) {
    segment.lr_factor = rule->value;
  }
  if (frozen) {
    segment.trained_epochs = 0;
  } else if (const spec::NameRule* rule = first_match(freeze_, name, is_norm)) {
    segment.trained_epochs = rule->value;
  }
  segment.whole = whole_but_ && segment.rows > 0 && size > 0 && segment.trained_epochs > 0 &&
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

void require_named(const spec::OptimizerOptions& options, std::span<const std::string> parameters) {
  constexpr size_t kMostShown = 12;
  const spec::OptimizerOptions defaults;
  const auto require = [&](std::string_view key, const std::string& part,
                           const std::vector<std::string>& exempt) {
    const bool is_exempt =
        part == "bias" || part == "norm" || std::ranges::find(exempt, part) != exempt.end();
    const auto has_part = [&](const std::string& name) {
      return name.find(part) != std::string::npos;
    };
    if (is_exempt || std::ranges::any_of(parameters, has_part)) return;
    const auto shown = parameters.first(std::min(parameters.size(), kMostShown));
    fail(ErrorCode::invalid_argument,
         "{} has \"{}\", which is part of no parameter's name; the model has {}{}", key, part,
         fmt::join(shown, ", "), shown.size() < parameters.size() ? ", ..." : "");
  };
  for (const std::string& part : options.no_decay) require("optimizer.no_decay", part, {});
  for (const spec::NameRule& rule : spec::name_rules(options.lr_factors, "optimizer.lr_factors"))
    require("optimizer.lr_factors", rule.name, {});
  for (const spec::NameRule& rule : spec::name_rules(options.freeze, "optimizer.freeze", 0))
    require("optimizer.freeze", rule.name, {});
  if (options.name != "muon") return;
  for (const std::string& part : options.muon.exclude)
    require("optimizer.muon.exclude", part, defaults.muon.exclude);
}

}  // namespace ductile::optim
