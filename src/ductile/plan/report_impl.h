#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ductile/plan/report.h"

// What picture and page share.
namespace ductile::plan {

extern const std::string_view kPictureCss;  // picture.css

// The elements inside <svg>; `height` is set to what they take.
std::string svg_body(const Report& report, double& height);

std::string shorten(const std::string& text, size_t most);

// Operators of stages, in the order in which they run; not escaped.
class OpNames {
 public:
  explicit OpNames(const graph::Graph& graph) : graph_(graph), topology_(graph) {}
  std::string first(const Stage& stage, size_t most) const;  // at most so many bytes of it
  std::string some(const Stage& stage) const;                // up to twelve: a title
  std::string ends(const Stage& stage) const;  // up to four, else the first and the last: a cell

 private:
  std::vector<graph::OpId> ordered(const Stage& stage) const;
  const graph::Graph& graph_;
  graph::Topology topology_;
};

}  // namespace ductile::plan
